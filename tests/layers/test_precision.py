"""The layer in half precision: as a module of that type, and under autocast.

What adds up over thousands of tokens, and what is solved for, stays in float32.
"""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from titans import NeuralMemory
from titans.errors import StateError
from titans.ops import MemoryState

HALF = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def made(kind: str) -> NeuralMemory:
    torch.manual_seed(0)
    if kind == "network":
        network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        return NeuralMemory(16, num_heads=2, module=network, chunk_size=8)
    if kind == "chunk gates":
        return NeuralMemory(16, num_heads=2, chunk_size=8, gates="chunk", gate_conv_size=3)
    return NeuralMemory(16, num_heads=2, chunk_size=8)


def half(
    kind: str, dtype: torch.dtype, way: str, x: Tensor
) -> tuple[NeuralMemory, Tensor, AbstractContextManager]:
    """A layer, an input and the context to call it in."""
    memory = made(kind)
    if way == "module":
        return memory.to(dtype), x.to(dtype), nullcontext()
    return memory, x, torch.autocast("cpu", dtype)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("way", ["module", "autocast"])
@pytest.mark.parametrize("kind", ["default", "chunk gates", "network"])
def test_forward_backward_streaming(kind: str, dtype: torch.dtype, way: str) -> None:
    x = torch.randn(2, 20, 16)
    exact = made(kind)
    wanted, _ = exact(x)
    wanted.square().sum().backward()
    memory, given, context = half(kind, dtype, way, x)
    with context:
        y, state = memory(given)
        state = state.detach()
        first, between = memory(given[:, :7])
        rest = [first]
        for t in range(7, 20):
            one, between = memory(given[:, t : t + 1], between)
            rest.append(one)
        read, _ = memory.read(given, state)
    y.float().square().sum().backward()
    near = 16 * ROUNDING[dtype]
    torch.testing.assert_close(y.float(), wanted, rtol=0, atol=near * wanted.abs().max().item())
    torch.testing.assert_close(torch.cat(rest, dim=1), y, rtol=0, atol=near)
    assert y.dtype == read.dtype == dtype
    for name, tensor in state.named_tensors().items():
        assert tensor.dtype == (torch.int64 if "position" in name else torch.float32), name
    for (name, one), other in zip(memory.named_parameters(), exact.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        scale = max(other.grad.abs().max().item(), 1e-2)
        torch.testing.assert_close(
            one.grad.float(), other.grad, rtol=0, atol=4 * near * scale, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("way", ["module", "autocast"])
@pytest.mark.parametrize("size", [0.0, 1e-7, 300.0])
def test_inputs_at_the_edge_of_the_type(dtype: torch.dtype, way: str, size: float) -> None:
    """Zeros, numbers below the type's smallest normal one, and large ones."""
    memory, x, context = half("default", dtype, way, size * torch.randn(2, 20, 16))
    with context:
        y, state = memory(x.requires_grad_())
    y.float().mean().backward()
    found = [y, x.grad, *state.named_tensors().values(), *(p.grad for p in memory.parameters())]
    assert all(torch.isfinite(t).all() for t in found)  # type: ignore[arg-type]


@pytest.mark.untyped
def test_a_state_in_half_precision_is_refused() -> None:
    memory = made("default")
    x = torch.randn(1, 3, 16)
    state = memory(x)[1].to(dtype=torch.bfloat16)
    with pytest.raises(StateError, match=r"bfloat16.*state\.to\(dtype=torch.float32\)"):
        memory(x, state)
    layers = [torch.randn(2, 4, 4, dtype=torch.bfloat16)]
    assert MemoryState.initial(layers, 1).dtype == torch.float32
