"""Numbers at the edge of a type: huge values, NaN, infinity."""

import pytest
import torch

from support.parity import memory_inputs
from titans.ops import Gates, MemoryState, ScanOptions, scan_memory, step

STABLE = ScanOptions(forget_towards="initial", step_limit=1.0)


@pytest.mark.parametrize(("depth", "values", "weights"), [(2, 1e18, 1.0), (4, 1e4, 1e4)])
def test_the_stabiliser_does_not_overflow_before_its_result(
    depth: int, values: float, weights: float
) -> None:
    """In float32, a chunk whose errors and layers have products that have no place in the type."""
    inputs = memory_inputs(time=8, depth=depth, largest_step=0.1, options=STABLE)
    found = []
    for dtype in (torch.float32, torch.float64):
        layers = [weights * w.to(dtype) for w in inputs.layers]  # type: ignore[union-attr]
        tokens = [t.to(dtype) for t in (inputs.queries, inputs.keys, values * inputs.values)]
        gates = Gates(*(g.to(dtype) for g in inputs.gates))
        state = MemoryState.initial(layers, 2)
        _, _, trace = scan_memory(*tokens, gates, state, chunk_size=8, options=STABLE)
        first = Gates(*(g[:, 0] for g in gates))
        one = step(*(t[:, 0] for t in tokens), first, state, chunk_size=8, options=STABLE)[2]
        torch.testing.assert_close(one.factor, trace.factor[:, 0], rtol=1e-4, atol=0)
        found.append(trace.factor.double())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3 * found[1].abs().max().item())
