"""How the layer is called, and what it says to what it cannot use."""

import pytest
import torch
from torch import nn

from titans import NeuralMemory


def memory() -> NeuralMemory:
    torch.manual_seed(0)
    return NeuralMemory(8, num_heads=2, chunk_size=4)


def test_reading_without_a_state_reads_the_initial_memory() -> None:
    layer, x = memory(), torch.randn(2, 5, 8)
    assert torch.equal(layer.read(x)[0], layer.read(x, layer.initial_state(2))[0])


def test_reading_and_writing_are_called_alike() -> None:
    layer, x = memory(), torch.randn(2, 5, 8)
    mask = torch.ones(2, 5, dtype=torch.bool)
    for call in (layer, layer.read):
        for state in (None, layer.initial_state(2)):
            y, after = call(x, state, mask=mask)
            assert y.shape == x.shape and after.batch == 2


@pytest.mark.untyped
def test_inputs_that_are_no_batch_of_vectors_are_refused() -> None:
    layer, x = memory(), torch.randn(5, 8)
    for call in (layer, layer.read):
        with pytest.raises(
            ValueError, match=r"must be \[batch, time, 8\], got \(5, 8\); x\[None\]"
        ):
            call(x)
        with pytest.raises(ValueError, match=r"got ndarray; use torch.as_tensor"):
            call(x[None].numpy())


def test_in_a_sequence_of_layers() -> None:
    """The wrapper of docs/compatibility.md."""

    class Remember(nn.Module):
        def __init__(self, memory: NeuralMemory) -> None:
            super().__init__()
            self.memory = memory

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.memory(x)[0]

    layer, x = memory(), torch.randn(2, 5, 8)
    net = nn.Sequential(nn.LayerNorm(8), Remember(layer))
    assert torch.equal(net(x), layer(nn.functional.layer_norm(x, (8,)))[0])
