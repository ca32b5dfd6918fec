"""One token at a time equals the scan, with every option, mask and gradient."""

import pytest
import torch

from support.parity import OPTIONS, assert_parity, memory_inputs, random_mask
from titans.ops import Gates, ScanOptions, Trace, reference_options, step


def scan_by_steps(queries, keys, values, gates, state, *, mask=None, write_mask=None, **settings):
    """`scan_memory` made of single steps."""
    outputs, traces = [], []
    for t in range(keys.shape[1]):
        output, state, trace = step(
            queries[:, t],
            keys[:, t],
            values[:, t],
            Gates(*(g[:, t] for g in gates)),
            state,
            mask=None if mask is None else mask[:, t],
            write_mask=None if write_mask is None else write_mask[:, t],
            **settings,
        )
        outputs.append(output)
        traces.append(trace.map(lambda t: t[:, None]))
    return torch.stack(outputs, dim=1), state, Trace.join(traces)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["plain", *OPTIONS])
def test_steps_match_the_specification(name: str, masked: bool) -> None:
    inputs = memory_inputs(time=13, bias=True, options=OPTIONS.get(name))
    if masked:
        inputs.mask = random_mask(2, 13)
        inputs.write_mask = random_mask(2, 13, seed=2)
    assert_parity(scan_by_steps, reference_options.scan_memory, inputs, chunk_size=5)


def test_residual_memory() -> None:
    inputs = memory_inputs(time=9, key_dim=5, value_dim=5)
    inputs.options = ScanOptions(residual=True)
    assert_parity(scan_by_steps, reference_options.scan_memory, inputs, chunk_size=4)
