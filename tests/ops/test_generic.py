"""Any network as the memory: an MLP written as a module must equal the closed form's reference."""

import pytest
import torch
from torch import Tensor, nn

from support.parity import OPTIONS, assert_parity, memory_inputs, random_mask
from titans.ops import MemoryState, ScanOptions, reference_options
from titans.ops.generic import NetworkMemory


class ModuleMLP(nn.Module):
    """The MLP of the closed form, as an ordinary module with biases."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        pairs = zip(widths[:-1], widths[1:], strict=True)
        self.layers = nn.ModuleList(nn.Linear(a, b, dtype=torch.float64) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(nn.functional.silu(x) if number else x)
        return x


def generic_scan(queries, keys, values, gates, state, *, options, **settings):
    network = NetworkMemory(ModuleMLP([4, 6, 5] if values.shape[-1] == 5 else [4, 4]))
    return network.scan(queries, keys, values, gates, state, options=options, **settings)


WHOLE = [name for name, options in OPTIONS.items() if options.written == "all"]
"""A network of one's own is written as a whole."""


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["plain", *WHOLE])
def test_generic_path_matches_the_specification(name: str, masked: bool) -> None:
    inputs = memory_inputs(time=13, bias=True, options=OPTIONS.get(name))
    if masked:
        inputs.mask = random_mask(2, 13)
        inputs.write_mask = random_mask(2, 13, seed=2)
    assert_parity(generic_scan, reference_options.scan_memory, inputs, chunk_size=5)


def test_single_layers_of_a_network_are_refused() -> None:
    inputs = memory_inputs(time=3, bias=True, options=OPTIONS["first_layer"])
    with pytest.raises(ValueError, match="written='first' needs an MLP"):
        assert_parity(generic_scan, reference_options.scan_memory, inputs, chunk_size=2)


def test_residual_memory() -> None:
    options = ScanOptions(residual=True)
    inputs = memory_inputs(time=9, depth=1, value_dim=4, bias=True, options=options)
    assert_parity(generic_scan, reference_options.scan_memory, inputs, chunk_size=4)


def test_read_is_the_network_at_the_present_weights() -> None:
    module = ModuleMLP([3, 5, 3])
    network = NetworkMemory(module)
    state = MemoryState.from_parameters(network.initial_parameters(1), 2)
    queries = torch.randn(2, 4, 1, 3, dtype=torch.float64)
    torch.testing.assert_close(network.read(queries, state), module(queries))


def test_networks_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(ValueError, match="no parameters"):
        NetworkMemory(nn.SiLU())
    with pytest.raises(ValueError, match="buffers"):
        NetworkMemory(nn.BatchNorm1d(3))
