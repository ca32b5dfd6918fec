"""The block form of the delta rule against the general scan with chunks of one token, and with a
forget gate per channel against a loop over tokens."""

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


def by_channel(time: int, seed: int = 0) -> tuple[list[Tensor], Gates, list[Tensor]]:
    """As `inputs`, with a forget gate per channel; values are narrower than keys."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    tokens = [draw(BATCH, time, HEADS, DIM) for _ in range(2)]
    tokens.append(draw(BATCH, time, HEADS, DIM - 2))
    alpha, theta = draw(BATCH, time, HEADS, DIM), draw(BATCH, time, HEADS)
    layer = draw(HEADS, DIM - 2, DIM)
    gates = Gates(alpha.sigmoid(), torch.zeros_like(theta), theta.sigmoid() / 8)
    return tokens, gates, [*tokens, alpha, theta, layer]


def kimi_delta_attention(
    tokens: list[Tensor], gates: Gates, matrix: Tensor, acts: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Token by token, as published: S_t = (I - b k k^T) diag(a) S_{t-1} + b k v^T, S = M^T."""
    state, reads, losses = matrix.mT, [], []
    eye = torch.eye(DIM, dtype=torch.float64)
    for t in range(mask.shape[1]):
        q, k, v = (x[:, t, :, :, None] for x in tokens)
        on = acts[:, t, :, None, None]
        keep = 1 - gates.forget_gate[:, t, :, :, None] * on
        beta = 2 * gates.step_size[:, t, :, None, None]
        losses.append((v - (keep * state).mT @ k).square().sum((-1, -2)) * mask[:, t, None])
        new = (eye - beta * k @ k.mT) @ (keep * state) + beta * k @ v.mT
        state = torch.where(on, new, state)
        reads.append((state.mT @ q)[..., 0] * mask[:, t, None, None])
    return torch.stack(reads, 1), state.mT, torch.stack(losses, 1)


@pytest.mark.parametrize("time", [1, 7, 32, 71])
@pytest.mark.parametrize("masked", [False, True])
def test_a_gate_per_channel_is_kimi_delta_attention(time: int, masked: bool) -> None:
    mask = torch.arange(time) < torch.tensor([time, time - time // 4, (time + 3) // 4])[:, None]
    write_mask = torch.rand(BATCH, time, generator=torch.Generator().manual_seed(1)) < 0.7
    if not masked:
        mask = write_mask = torch.ones(BATCH, time, dtype=torch.bool)
    found = []
    for is_block in (True, False):
        tokens, gates, leaves = by_channel(time)
        state = MemoryState.initial([leaves[-1]], BATCH)
        threshold = 0.05 if masked else None
        if is_block:
            masks = {"mask": mask, "write_mask": write_mask} if masked else {}
            reads, state, trace = scan_delta(
                *tokens, gates, state, write_threshold=threshold, **masks
            )
            out = reads, state.weights[0], trace.surprise.loss
        else:
            acts = (mask & write_mask)[..., None] & (gates.step_size >= (threshold or 0))
            out = kimi_delta_attention(tokens, gates, state.weights[0], acts, mask)
        total = sum((o * torch.linspace(-1, 1, o.numel()).view_as(o)).sum() for o in out)
        found.append((*out, *torch.autograd.grad(total, leaves)))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-10)


def test_channels_that_forget_alike_are_the_gated_delta_rule() -> None:
    tokens, gates, leaves = by_channel(40)
    alpha = gates.forget_gate[..., :1]
    state = MemoryState.initial([leaves[-1]], BATCH)
    got = scan_delta(*tokens, gates._replace(forget_gate=alpha.expand_as(tokens[1])), state)
    # Errors after forgetting, by one that forgets before it: values and steps say so.
    plain = Gates(alpha[..., 0], gates.momentum_decay, gates.step_size * (1 - alpha[..., 0]))
    wanted = scan_delta(*tokens[:2], tokens[2] / (1 - alpha), plain, state)
    torch.testing.assert_close(got[0], wanted[0], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(got[1].weights[0], wanted[1].weights[0], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("alpha", [1.0, 1 - 1e-6, 0.9])
def test_channels_may_forget_everything(alpha: float) -> None:
    """Where differences of logarithms are infinity minus infinity, or overflow."""
    tokens, gates, leaves = by_channel(40)
    forget = gates.forget_gate.detach().clone()
    forget[:, ::3, :, ::2] = alpha
    forget[:, :, :, 1] = alpha
    forget.requires_grad_()
    tokens = [t.detach().float() for t in tokens]
    gates = Gates(forget.float(), *(g.detach().float() for g in gates[1:]))
    state = MemoryState.initial([leaves[-1].detach().float()], BATCH)
    reads, after, trace = scan_delta(*tokens, gates, state)
    everywhere = torch.ones(BATCH, 40, HEADS, dtype=torch.bool)
    wanted = kimi_delta_attention(
        [t.double() for t in tokens],
        Gates(*(g.double() for g in gates)),
        state.weights[0].double(),
        everywhere,
        everywhere[..., 0],
    )
    for got, want in zip((reads, after.weights[0], trace.surprise.loss), wanted, strict=True):
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)
    found = torch.autograd.grad(reads.square().sum(), forget, retain_graph=True)[0]
    want = torch.autograd.grad(wanted[0].square().sum(), forget)[0]
    torch.testing.assert_close(found, want, atol=1e-3, rtol=1e-4)


def test_a_gate_per_channel_continues_from_a_state() -> None:
    tokens, gates, leaves = by_channel(50)
    state = MemoryState.initial([leaves[-1]], BATCH)
    whole = scan_delta(*tokens, gates, state)
    parts = []
    for begin, end in ((0, 1), (1, 13), (13, 50)):
        piece = [t[:, begin:end] for t in tokens]
        out, state, _ = scan_delta(*piece, Gates(*(g[:, begin:end] for g in gates)), state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), whole[0], atol=1e-10, rtol=0)
    torch.testing.assert_close(state.weights[0], whole[1].weights[0], atol=1e-10, rtol=0)
