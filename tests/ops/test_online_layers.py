"""The online rule in every layer of a deep memory, against a loop over tokens."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from titans.ops import Gates, MemoryState, ScanOptions
from titans.ops.online import largest_rate, scan_online
from titans.ops.online_layers import LARGEST, SHORTEST, scan_layers

BATCH, HEADS, KEY, HIDDEN, VALUE, CHUNK = 2, 2, 5, 7, 4, 8


def inputs(time: int, depth: int, seed: int = 0) -> tuple[list[Tensor], Gates, MemoryState, list]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    tokens = [draw(BATCH, time, HEADS, n) for n in (KEY, KEY, VALUE)]
    raw = [draw(BATCH, time, HEADS) for _ in range(3)]
    alpha, eta, theta = (r.sigmoid() for r in raw)
    widths = [KEY, *[HIDDEN] * (depth - 1), VALUE]
    layers = [draw(HEADS, n, m) for m, n in zip(widths, widths[1:], strict=False)]
    unit = [tokens[0], functional.normalize(tokens[1], dim=-1), tokens[2]]
    gates = Gates(alpha / 10, eta, theta * largest_rate(eta) / 2)
    return unit, gates, MemoryState.initial(layers, BATCH), [*tokens, *raw, *layers]


def limited(x: Tensor, length: Tensor | float) -> Tensor:
    size = x.norm(dim=-1, keepdim=True)
    return torch.where(size > length, x * length / size, x)


def token_by_token(tokens, gates, state, options: ScanOptions, mask: Tensor | None = None):
    """One row and head at a time, one token at a time."""
    _, time, heads, _ = tokens[0].shape
    reads, losses, ends = {}, {}, {}
    for b in range(BATCH):
        for h in range(heads):
            base = [w[b, h] for w in state.initial_weights]
            rest = base if options.forget_towards == "initial" else [0 * w for w in base]
            weights, backlog = list(base), [torch.zeros_like(w) for w in base]
            seen = 0
            for t in range(time):
                if mask is not None and not mask[b, t]:
                    reads[b, h, t], losses[b, h, t] = 0 * tokens[2][b, t, h], 0 * tokens[2].sum()
                    continue
                if seen % CHUNK == 0:
                    start = list(weights)
                seen += 1
                q, k, v = (x[b, t, h] for x in tokens)
                alpha, eta, theta = (g[b, t, h] for g in gates)
                eta = eta if options.momentum else torch.zeros_like(eta)
                pairs, loss = targets(k, v, start)
                losses[b, h, t] = loss
                for i, (a, target) in enumerate(pairs):
                    size = a.norm().clamp_min(SHORTEST)
                    forgotten = rest[i] + (1 - alpha) * (weights[i] - rest[i])
                    error = (target - forgotten @ a) / size
                    pile = (1 - alpha) * backlog[i] + 2 * theta * torch.outer(error, a / size)
                    weights[i], backlog[i] = forgotten + (1 - eta) * pile, eta * pile
                read = q
                for i, w in enumerate(weights):
                    read = w @ (functional.silu(read) if i else read)
                reads[b, h, t] = read
            for i, (w, s) in enumerate(zip(weights, backlog, strict=True)):
                ends[i, b, h] = torch.stack([w, s])

    def stacked(found: dict) -> Tensor:
        """`[batch time heads ...]`."""
        first = [found[b, h, t] for b in range(BATCH) for h in range(heads) for t in range(time)]
        return torch.stack(first).unflatten(0, (BATCH, heads, time)).transpose(1, 2)

    order = [(i, b, h) for i in range(len(base)) for b in range(BATCH) for h in range(heads)]
    return stacked(reads), stacked(losses), [ends[at] for at in order]


def targets(
    k: Tensor, v: Tensor, weights: list[Tensor]
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """The module's formulas, for one token."""
    a, z = [k], [weights[0] @ k]
    for w in weights[1:]:
        a.append(functional.silu(z[-1]))
        z.append(w @ a[-1])
    error = v - limited(z[-1], LARGEST * v.norm())
    d = [error]
    for w, out in zip(weights[:0:-1], z[-2::-1], strict=True):
        out = out.detach()
        gate = out.sigmoid()
        d.insert(0, gate * (1 + out * (1 - gate)) * (w.detach().T @ d[0]))
    total = sum(x @ x * (y @ y) for x, y in zip(d, a, strict=True))
    found = []
    for i, (delta, inner, out) in enumerate(zip(d, a, z, strict=True)):
        is_last = i == len(weights) - 1
        far = (out.norm() + (v.norm() if is_last else 0)).detach()
        move = limited(delta * (inner @ inner) * (error @ error) / total, far)
        most = v.norm() if is_last else out.new_tensor(len(out)).sqrt()
        found.append((inner, limited(out + move, LARGEST * most)))
    return found, error @ error


def compare(time: int, depth: int, options: ScanOptions, mask: Tensor | None = None) -> None:
    """Reads, losses, final state, and the derivative of a sum over all of them by every input."""
    tokens, gates, state, leaves = inputs(time, depth)
    reads, end, trace = scan_layers(
        *tokens, gates, state, chunk_size=CHUNK, options=options, mask=mask
    )
    ours = [reads, trace.surprise.loss]
    for w, s in zip(end.weights, end.momentum, strict=True):
        ours += [torch.stack([w[b, h], s[b, h]]) for b in range(BATCH) for h in range(HEADS)]
    *theirs, ends = token_by_token(tokens, gates, state, options, mask)
    theirs += ends
    found = []
    for outputs in (ours, theirs):
        total = sum((x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in outputs)
        gradients = torch.autograd.grad(
            total, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        found.append((*outputs, *gradients))
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("towards", ["initial", "zero"])
def test_equal_to_the_loop(depth: int, towards: str) -> None:
    compare(19, depth, ScanOptions(forget_towards=towards))  # type: ignore[arg-type]


def test_equal_without_momentum_and_with_padding() -> None:
    mask = torch.arange(19) < torch.tensor([19, 12])[:, None]
    mask[0, 3:5] = False
    compare(19, 2, ScanOptions(momentum=False), mask)


@pytest.mark.parametrize("chunk", [1, 4, 32])
def test_one_layer_is_the_online_rule_at_any_chunk_size(chunk: int) -> None:
    tokens, gates, _, leaves = inputs(19, depth=1)
    # Values of one length and small steps: no limit is reached.
    tokens[2] = functional.normalize(tokens[2], dim=-1)
    gates = gates._replace(step_size=gates.step_size / 4)
    state = MemoryState.initial([leaves[-1] / 10], BATCH)
    reads, _, _ = scan_layers(*tokens, gates, state, chunk_size=chunk)
    wanted, _, _ = scan_online(*tokens, gates, state)
    torch.testing.assert_close(reads, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("depth", [2, 3])
def test_split_anywhere_is_one_pass(depth: int) -> None:
    tokens, gates, state, _ = inputs(40, depth)
    reads, whole, _ = scan_layers(*tokens, gates, state, chunk_size=CHUNK)
    parts = []
    for begin, end in ((0, 1), (1, 18), (18, 24), (24, 40)):
        piece, cut = [t[:, begin:end] for t in tokens], Gates(*(g[:, begin:end] for g in gates))
        out, state, _ = scan_layers(*piece, cut, state, chunk_size=CHUNK)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, dim=1), reads, atol=1e-12, rtol=1e-12)
    for name, tensor in state.named_tensors().items():
        torch.testing.assert_close(tensor, whole.named_tensors()[name], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("chunk", [2, 16, 256])
def test_the_loss_stays_below_nine_times_the_value(depth: int, chunk: int) -> None:
    """Keys near each other, random values, random gates of the largest legal steps.

    The loss of a chunk is taken at its start, so only later chunks show what was learned.
    """
    torch.manual_seed(0)
    time, dim = 4 * max(chunk, 64), 8
    keys = functional.normalize(torch.eye(dim)[0] + 0.1 * torch.randn(1, time, 1, dim), dim=-1)
    values = 4 * functional.normalize(torch.randn(1, time, 1, dim), dim=-1)
    eta = torch.rand(1, time, 1)
    gates = Gates(torch.zeros_like(eta), eta, largest_rate(eta) / 2)
    widths = [dim, *[16] * (depth - 1), dim]
    layers = [torch.randn(1, n, m) for m, n in zip(widths, widths[1:], strict=False)]
    state = MemoryState.initial(layers, 1)
    with torch.no_grad():
        reads, state, trace = scan_layers(keys, keys, values, gates, state, chunk_size=chunk)
    assert trace.surprise.loss.max() <= (1 + LARGEST) ** 2 * 16 * (1 + 1e-5)
    assert trace.surprise.loss[:, -64:].mean() < 3 * 16
    assert all(w.isfinite().all() for w in state.weights)
    assert reads.isfinite().all()


def test_outer_gradients_do_not_grow_with_length() -> None:
    norms = []
    for time in (64, 1024):
        torch.manual_seed(0)
        keys = functional.normalize(torch.randn(1, time, 1, 16), dim=-1)
        values = functional.normalize(torch.randn(1, time, 1, 16), dim=-1)
        eta = torch.full((1, time, 1), 0.5)
        gates = Gates(torch.full_like(eta, 1e-3), eta, 0.2 * largest_rate(eta))
        layers = [
            torch.randn(1, 32, 16) / 4,
            torch.randn(1, 32, 32) / 3,
            torch.randn(1, 16, 32) / 3,
        ]
        leaves = [w.requires_grad_() for w in layers]
        state = MemoryState.initial(leaves, 1)
        options = ScanOptions(forget_towards="initial")
        reads = scan_layers(keys, keys, values, gates, state, chunk_size=32, options=options)[0]
        grads = torch.autograd.grad(reads[:, -32:].square().mean(), leaves)
        norms.append(sum(float(g.square().sum()) for g in grads) ** 0.5)
    assert norms[1] < 3 * norms[0]


def test_it_refuses_what_it_does_not_know() -> None:
    tokens, gates, state, _ = inputs(4, depth=2)
    with pytest.raises(ValueError, match="loss"):
        scan_layers(
            *tokens, gates, state, chunk_size=4, options=replace(ScanOptions(), loss="huber")
        )
