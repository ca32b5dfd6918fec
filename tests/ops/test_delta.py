"""The block form of the delta rule against the general scan with chunks of one token."""

import pytest
import torch
from torch import Tensor

from titans.ops import Gates, MemoryState, scan_memory
from titans.ops.delta import scan_delta
from titans.ops.options import ScanOptions

BATCH, HEADS, DIM = 3, 2, 6


def inputs(time: int, seed: int = 0) -> tuple[list[Tensor], Gates, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    tokens = [draw(BATCH, time, HEADS, DIM) for _ in range(3)]
    alpha, theta = draw(BATCH, time, HEADS), draw(BATCH, time, HEADS)
    layer = draw(HEADS, DIM, DIM)
    gates = Gates(alpha.sigmoid(), torch.zeros_like(alpha), theta.sigmoid() / 8)
    return tokens, gates, [*tokens, alpha, theta, layer]


def compare(time: int, masks: dict[str, Tensor] | None = None, threshold: float | None = None):
    """Outputs, state, surprise and the derivative of a sum over all of them, both ways."""
    found = []
    for is_block in (True, False):
        tokens, gates, leaves = inputs(time)
        state = MemoryState.initial([leaves[-1]], BATCH)
        if is_block:
            out = scan_delta(*tokens, gates, state, write_threshold=threshold, **(masks or {}))
        else:
            options = ScanOptions(write_threshold=threshold)
            out = scan_memory(
                *tokens,
                gates,
                state,
                chunk_size=1,
                options=options,
                **(masks or {}),
            )
        reads, state, trace = out
        weight = torch.linspace(-1, 1, reads.numel(), dtype=torch.float64).view_as(reads)
        total = (reads * weight).sum() + state.weights[0].square().sum() + trace.surprise.loss.sum()
        gradients = torch.autograd.grad(total, leaves)
        found.append(
            (reads, state.weights[0], state.position, *trace.surprise, *trace[1:], *gradients)
        )
    return found


@pytest.mark.parametrize("time", [1, 7, 32, 71])
def test_equal_to_the_online_scan(time: int) -> None:
    for got, wanted in zip(*compare(time), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-9, rtol=1e-9)


def test_equal_with_padding_and_tokens_that_do_not_write() -> None:
    time = 40
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([40, 33, 5])
    mask = torch.arange(time) < lengths[:, None]
    write_mask = torch.rand(BATCH, time, generator=generator) < 0.7
    masks = {"mask": mask, "write_mask": write_mask}
    for got, wanted in zip(*compare(time, masks, threshold=0.05), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-9, rtol=1e-9)


def test_a_memory_that_forgets_everything() -> None:
    tokens, gates, leaves = inputs(40)
    gates = gates._replace(forget_gate=torch.ones_like(gates.forget_gate))
    state = MemoryState.initial([leaves[-1]], BATCH)
    got = scan_delta(*tokens, gates, state)[0]
    wanted = scan_memory(*tokens, gates, state, chunk_size=1)[0]
    torch.testing.assert_close(got, wanted, atol=1e-9, rtol=1e-9)


def test_it_continues_from_a_state() -> None:
    tokens, gates, leaves = inputs(50)
    state = MemoryState.initial([leaves[-1]], BATCH)
    whole = scan_delta(*tokens, gates, state)
    parts = []
    for begin, end in ((0, 13), (13, 50)):
        piece = [t[:, begin:end] for t in tokens]
        out, state, _ = scan_delta(*piece, Gates(*(g[:, begin:end] for g in gates)), state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), whole[0], atol=1e-10, rtol=0)
    torch.testing.assert_close(state.weights[0], whole[1].weights[0], atol=1e-10, rtol=0)


def test_deep_memories_are_refused() -> None:
    tokens, gates, leaves = inputs(4)
    state = MemoryState.initial([leaves[-1], leaves[-1]], BATCH)
    with pytest.raises(ValueError, match="one matrix, got 2"):
        scan_delta(*tokens, gates, state)
