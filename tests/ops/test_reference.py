"""The specification, against a computation by hand, the paper's formulas and finite differences."""

import pytest
import torch
from torch import Tensor

from support.parity import memory_inputs
from titans.ops import Gates, MemoryState, ScanOptions, reference, reference_options

SMOOTH = ScanOptions(forget_towards="initial", loss="lp", lp_power=3.0, read="before")
"""Options without factors on theta, which are constants for autograd but not for differences."""


def scalar_tokens(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1)


def scalar_gates(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, -1, 1)


def test_two_steps_by_hand() -> None:
    """A memory of one number, M(k) = m k.

    Start m = 1, s = 0, chunk 1.
    t=1: k=1, v=3: loss 4, gradient 2(1-3)1 = -4; s = 0.5*0 - 0.1*(-4) = 0.4;
         m = (1-0.5)*1 + 0.4 = 0.9; y = 0.9 * 2 = 1.8.
    t=2: k=2, v=1: loss (1.8-1)^2 = 0.64, gradient 2*0.8*2 = 3.2; s = 0.25*0.4 - 0.2*3.2 = -0.54;
         m = (1-0.1)*0.9 - 0.54 = 0.27; y = 0.27 * 10 = 2.7.
    """
    state = MemoryState.initial([torch.ones(1, 1, 1, dtype=torch.float64)], 1)
    gates = Gates(scalar_gates(0.5, 0.1), scalar_gates(0.5, 0.25), scalar_gates(0.1, 0.2))
    output, state, surprise = reference.scan_memory(
        scalar_tokens(2, 10), scalar_tokens(1, 2), scalar_tokens(3, 1), gates, state,
        chunk_size=1,
    )  # fmt: skip
    torch.testing.assert_close(output.flatten(), torch.tensor([1.8, 2.7], dtype=torch.float64))
    torch.testing.assert_close(state.weights[0].item(), 0.27)
    torch.testing.assert_close(state.momentum[0].item(), -0.54)
    torch.testing.assert_close(surprise.loss.flatten().tolist(), [4.0, 0.64])
    torch.testing.assert_close(surprise.grad_norm.flatten().tolist(), [4.0, 3.2])
    assert state.position.tolist() == [2]


def test_chunk_takes_gradients_at_its_start() -> None:
    """The same two tokens as one chunk: the second gradient is 2(1*2 - 1)2 = 4, at m = 1.

    s = 0.25*0.4 - 0.2*4 = -0.7; m = 0.9*0.9 - 0.7 = 0.11.
    """
    state = MemoryState.initial([torch.ones(1, 1, 1, dtype=torch.float64)], 1)
    gates = Gates(scalar_gates(0.5, 0.1), scalar_gates(0.5, 0.25), scalar_gates(0.1, 0.2))
    _, state, _ = reference.scan_memory(
        scalar_tokens(2, 10), scalar_tokens(1, 2), scalar_tokens(3, 1), gates, state, chunk_size=2
    )
    torch.testing.assert_close(state.weights[0].item(), 0.11)
    torch.testing.assert_close(state.momentum[0].item(), -0.7)


@pytest.mark.parametrize("chunk_size", [1, 4, 64])
@pytest.mark.parametrize("depth", [1, 3])
def test_without_options_both_references_are_one(depth: int, chunk_size: int) -> None:
    inputs = memory_inputs(time=11, depth=depth, bias=True)
    state = MemoryState.initial(inputs.layers, 2)
    given = (inputs.queries, inputs.keys, inputs.values, Gates(*inputs.gates), state)
    y, after, surprise = reference.scan_memory(*given, chunk_size=chunk_size)
    other, state, trace = reference_options.scan_memory(*given, chunk_size=chunk_size)
    assert torch.equal(y, other)
    for name, tensor in after.named_tensors().items():
        assert torch.equal(tensor, state.named_tensors()[name]), name
    assert torch.equal(surprise.loss, trace.surprise.loss)
    assert torch.equal(surprise.grad_norm, trace.surprise.grad_norm)
    assert trace.active.all() and trace.written.all() and bool((trace.factor == 1).all())


@pytest.mark.parametrize("loss", ["l2", "huber", "lp"])
def test_inner_gradient_is_the_gradient_of_the_loss(loss: str) -> None:
    """One write with theta = 1 and no momentum moves the weights by minus the gradient, which is
    compared with central differences of the loss."""
    options = ScanOptions(loss=loss, huber_delta=0.7, lp_power=3.0)  # type: ignore[arg-type]
    inputs = memory_inputs(batch=1, time=1, heads=1, bias=True, options=options)
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    gates = Gates(ones * 0, ones * 0, ones)

    def absorb(layers: list, chunk: int = 1) -> tuple:
        return reference_options.scan_memory(
            inputs.queries, inputs.keys, inputs.values, gates, MemoryState.initial(layers, 1),
            chunk_size=chunk, options=options,
        )  # fmt: skip

    _, after, _ = absorb(inputs.layers)
    flat = [p for layer in inputs.layers for p in layer]
    for number, parameter in enumerate(flat):
        moved = (after.weights[number][0] - parameter).flatten()
        for place in range(parameter.numel()):
            slopes = []
            for sign in (1, -1):
                bumped = [p.clone() for p in flat]
                bumped[number].view(-1)[place] += sign * 1e-5
                pairs = list(zip(bumped[::2], bumped[1::2], strict=True))
                slopes.append(absorb(pairs)[2].surprise.loss.item())
            expected = -(slopes[0] - slopes[1]) / 2e-5
            assert moved[place].item() == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("chunk_size", [1, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_gradcheck(depth: int, chunk_size: int, is_plain: bool) -> None:
    """Autograd through the whole recurrence equals finite differences."""
    inputs = memory_inputs(batch=1, time=4, heads=1, key_dim=2, hidden=3, value_dim=2, depth=depth)
    tensors = (inputs.queries, inputs.keys, inputs.values, *inputs.gates, *inputs.layers)

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        state = MemoryState.initial(list(leaves[6:]), 1)
        given = (*leaves[:3], Gates(*leaves[3:6]), state)
        if is_plain:
            y, state, surprise = reference.scan_memory(*given, chunk_size=chunk_size)
        else:
            y, state, trace = reference_options.scan_memory(
                *given, chunk_size=chunk_size, options=SMOOTH
            )
            surprise = trace.surprise
        return y, surprise.loss, *state.weights, *state.momentum

    leaves = tuple(t.clone().requires_grad_() for t in tensors)  # type: ignore[union-attr]
    assert torch.autograd.gradcheck(outputs, leaves)
