"""Least squares in blocks against a loop over tokens, and against the solution of all pairs."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from titans.ops import Gates, MemoryState, ScanOptions
from titans.ops.least_squares import LEAST_FORGETTING, initial_known, scan_least_squares

BATCH, HEADS, KEY, VALUE = 3, 2, 6, 5


def inputs(time: int, seed: int = 0) -> tuple[list[Tensor], Gates, MemoryState, list[Tensor]]:
    """Tokens, gates that differ from token to token, a state in mid-stream, and all leaves."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    tokens = [draw(BATCH, time, HEADS, KEY) for _ in range(2)]
    tokens.append(draw(BATCH, time, HEADS, VALUE))
    alpha, theta = (draw(BATCH, time, HEADS) for _ in "ab")
    layer, now = draw(HEADS, VALUE, KEY), draw(BATCH, HEADS, VALUE, KEY)
    half = draw(BATCH, HEADS, KEY, KEY)
    known = half @ half.mT / (1 + half.square().sum((-1, -2), keepdim=True))
    state = MemoryState.initial([layer], BATCH).replace(weights=(now,), momentum=(known,))
    gates = Gates((alpha - 3).sigmoid(), torch.zeros_like(alpha), 4 * theta.sigmoid())
    return tokens, gates, state, [*tokens, alpha, theta, layer, now, half]


def token_by_token(tokens, gates, state, *, options, mask=None, write_mask=None):
    """The module's first formulas, as they are written."""
    base = state.initial_weights[0]
    rest = base if options.forget_towards == "initial" else torch.zeros_like(base)
    eye = torch.eye(KEY, dtype=torch.float64)
    matrix, uncertain = state.weights[0], eye - state.momentum[0]
    reads, losses = [], []
    for t in range(tokens[0].shape[1]):
        q, k, v = (x[:, t, :, :, None] for x in tokens)
        alpha, _, theta = (g[:, t, :, None, None] for g in gates)
        keep = 1 - alpha.clamp_min(LEAST_FORGETTING)
        drifted = rest + keep * (matrix - rest)
        wider = keep**2 * uncertain + (1 - keep**2) * eye
        error = v - drifted @ k
        gain = theta * wider @ k / (1 + theta * k.mT @ wider @ k)
        real = torch.ones(BATCH, dtype=torch.bool) if mask is None else mask[:, t]
        active = real[:, None] if write_mask is None else (real & write_mask[:, t])[:, None]
        if options.write_threshold is not None:
            active = active & (theta[..., 0, 0] >= options.write_threshold)
        active = active[..., None, None]
        before = matrix
        matrix = torch.where(active, drifted + error @ gain.mT, matrix)
        uncertain = torch.where(active, wider - gain @ (wider @ k).mT, uncertain)
        read_from = before if options.read == "before" else matrix
        reads.append((read_from @ q)[..., 0] * real[:, None, None])
        error = torch.where(active, error, v - before @ k)
        losses.append(error.square().sum((-1, -2)) * real[:, None])
    return torch.stack(reads, 1), matrix, eye - uncertain, torch.stack(losses, 1)


def in_blocks(tokens, gates, state, **arguments):
    reads, state, trace = scan_least_squares(*tokens, gates, state, **arguments)
    return reads, state.weights[0], state.momentum[0], trace.surprise.loss


def compare(time: int, options: ScanOptions, block: int = 16, **masks: Tensor) -> None:
    """Reads, state, surprise, and the derivative of a sum over all of them by every input."""
    found = []
    for scan, more in ((in_blocks, {"block": block}), (token_by_token, {})):
        tokens, gates, state, leaves = inputs(time)
        out = scan(tokens, gates, state, options=options, **masks, **more)
        total = sum((o * torch.linspace(-1, 1, o.numel()).view_as(o)).sum() for o in out)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        found.append((*out, *gradients))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("towards", ["zero", "initial"])
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("time", [1, 16, 37])
def test_equal_to_the_loop(towards: str, read: str, time: int) -> None:
    compare(time, replace(ScanOptions(), forget_towards=towards, read=read))


@pytest.mark.parametrize("block", [1, 2, 8, 64])
def test_block_size_changes_nothing(block: int) -> None:
    compare(37, ScanOptions(), block=block)


def test_equal_with_padding_and_tokens_that_do_not_write() -> None:
    time = 37
    mask = torch.arange(time) < torch.tensor([37, 30, 5])[:, None]
    mask[1, :4] = False
    write_mask = torch.rand(BATCH, time, generator=torch.Generator().manual_seed(1)) < 0.7
    compare(time, ScanOptions(write_threshold=1.0), mask=mask, write_mask=write_mask)


@pytest.mark.parametrize("gate", ["forget_gate", "step_size"])
@pytest.mark.parametrize("value", [0.0, 1.0, 1e4])
def test_legal_extremes_of_the_gates(gate: str, value: float) -> None:
    tokens, gates, state, _ = inputs(24)
    if gate == "forget_gate" and value > 1:
        value = 1 - 1e-12
    extreme = gates._replace(**{gate: torch.full_like(gates.step_size, value)})
    got = in_blocks(tokens, extreme, state, options=ScanOptions())
    wanted = token_by_token(tokens, extreme, state, options=ScanOptions())
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-8, rtol=1e-8)
    leaves = [*tokens, gates.forget_gate, gates.step_size]
    found = torch.autograd.grad(got[0].sum(), leaves, allow_unused=True, materialize_grads=True)
    assert all(bool(g.isfinite().all()) for g in found)


def test_split_anywhere_is_one_pass() -> None:
    tokens, gates, state, _ = inputs(40)
    reads, whole, _ = scan_least_squares(*tokens, gates, state)
    parts = []
    for begin, end in ((0, 1), (1, 18), (18, 33), (33, 40)):
        piece = [t[:, begin:end] for t in tokens]
        out, state, _ = scan_least_squares(*piece, Gates(*(g[:, begin:end] for g in gates)), state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, dim=1), reads, atol=1e-11, rtol=1e-11)
    for name, tensor in state.named_tensors().items():
        torch.testing.assert_close(tensor, whole.named_tensors()[name], atol=1e-11, rtol=1e-11)


def test_without_forgetting_it_is_the_best_fit_of_all_pairs() -> None:
    tokens, gates, state, _ = inputs(40)
    state = initial_known(state.replace(weights=state.initial_weights))
    never = gates._replace(forget_gate=torch.zeros_like(gates.forget_gate))
    options = ScanOptions(forget_towards="initial")
    _, end, _ = scan_least_squares(*tokens, never, state, options=options)
    _, k, v = (t.transpose(1, 2) for t in tokens)
    weight = gates.step_size.transpose(1, 2)[..., None]
    base = state.initial_weights[0]
    system = torch.eye(KEY, dtype=torch.float64) + k.mT @ (weight * k)
    wanted = base + torch.linalg.solve(system, (weight * k).mT @ (v - k @ base.mT)).mT
    # Not exactly: a token forgets a millionth at least.
    torch.testing.assert_close(end.weights[0], wanted, atol=1e-3, rtol=1e-3)


def hostile(kind: str, time: int, dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values of length one (or keys of zero), made to drive a memory away."""
    axes, turn = torch.eye(dim), torch.arange(time)
    sign = (1 - 2.0 * (turn % 2))[:, None]
    if kind == "repeated":
        return axes[:1].expand(time, dim), axes[:1].expand(time, dim)
    if kind == "zero":
        return torch.zeros(time, dim), axes[:1].expand(time, dim)
    if kind == "sign flips":
        return sign * axes[0], axes[:1].expand(time, dim)
    if kind == "near, opposite values":
        keys = axes[0] + 1e-3 * (turn % 2)[:, None] * axes[1]
        return functional.normalize(keys, dim=-1), sign * axes[2]
    return functional.normalize(axes[0] + 0.1 * torch.randn(time, dim), dim=-1), sign * axes[2]


@pytest.mark.parametrize(
    "kind", ["repeated", "zero", "sign flips", "near, opposite values", "near, random"]
)
@pytest.mark.parametrize("theta", [1.0, 100.0])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 0.5])
def test_no_keys_and_gates_make_it_run_away(kind: str, theta: float, alpha: float) -> None:
    """In single precision, token after token: P stays between zero and one, and answers within
    `|q| sqrt(sum theta |v|^2) / 2`, the bound of the fit without forgetting."""
    torch.manual_seed(0)
    time, dim = 4096, 8
    keys, values = (t[None, :, None] for t in hostile(kind, time, dim))
    ones = torch.ones(1, time, 1)
    gates = Gates(alpha * ones, 0 * ones, theta * ones)
    state = initial_known(MemoryState.initial([torch.zeros(1, dim, dim)], 1))
    state = state.to(dtype=torch.float32)
    for begin in range(0, time, 512):
        piece = slice(begin, begin + 512)
        token = [x[:, piece] for x in (keys, keys, values)]
        part = Gates(*(g[:, piece] for g in gates))
        _, state, trace = scan_least_squares(*token, part, state)
        uncertain = 1 - torch.linalg.eigvalsh(state.momentum[0])
        assert uncertain.min() > -1e-5 and uncertain.max() < 1 + 1e-5
        size = torch.linalg.matrix_norm(state.weights[0], 2).max()
        assert size <= (theta * (begin + 512)) ** 0.5 / 2
        assert trace.surprise.loss.isfinite().all()
    if kind == "repeated" and not alpha:
        assert trace.surprise.loss.max() < 1e-4


def test_similar_keys_do_not_disturb_each_other() -> None:
    """What it is for: 20 keys that share half of their square, in 24 dimensions."""
    torch.manual_seed(0)
    dim, pairs = 24, 20
    keys = functional.normalize(torch.randn(pairs, dim), dim=-1)
    keys = functional.normalize(keys + functional.normalize(torch.randn(dim), dim=-1), dim=-1)
    values = functional.normalize(torch.randn(pairs, dim), dim=-1)
    token = [t[None, :, None] for t in (keys, keys, values)]
    ones = torch.ones(1, pairs, 1)
    state = initial_known(MemoryState.initial([torch.zeros(1, dim, dim)], 1))
    end = scan_least_squares(*token, Gates(0 * ones, 0 * ones, 100 * ones), state)[1]
    missed = (keys @ end.weights[0][0, 0].T - values).square().sum(-1)
    assert missed.max() < 0.05


def test_it_refuses_what_it_does_not_know() -> None:
    tokens, gates, state, _ = inputs(4)
    with pytest.raises(ValueError, match="step_limit"):
        scan_least_squares(*tokens, gates, state, options=ScanOptions(step_limit=1.0))
    with pytest.raises(ValueError, match="initial_known"):
        fresh = MemoryState.initial([torch.zeros(2, 5, 6, dtype=torch.float64)], BATCH)
        scan_least_squares(*tokens, gates, fresh)
