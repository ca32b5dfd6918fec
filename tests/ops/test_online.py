"""The online rule in blocks against a loop over tokens, and against the general scan."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from titans.ops import Gates, MemoryState, ScanOptions, scan_memory
from titans.ops.online import largest_rate, scan_online

BATCH, HEADS, KEY, VALUE = 3, 2, 6, 5
MOMENTUM = {"none": False, "paper": True, "bounded": True}


def inputs(time: int, seed: int = 0) -> tuple[list[Tensor], Gates, MemoryState, list[Tensor]]:
    """Tokens, gates that differ from token to token, a state in mid-stream, and all leaves."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    tokens = [draw(BATCH, time, HEADS, KEY) for _ in range(2)]
    tokens.append(draw(BATCH, time, HEADS, VALUE))
    raw = [draw(BATCH, time, HEADS) for _ in range(3)]
    alpha, eta, theta = (r.sigmoid() for r in raw)
    layer, now, momentum = draw(HEADS, VALUE, KEY), *(draw(BATCH, HEADS, VALUE, KEY) for _ in "ab")
    state = MemoryState.initial([layer], BATCH).replace(weights=(now,), momentum=(momentum,))
    unit = [tokens[0], functional.normalize(tokens[1], dim=-1), tokens[2]]
    return unit, Gates(alpha, eta, theta / 4), state, [*tokens, *raw, layer, now, momentum]


def token_by_token(tokens, gates, state, *, form, options, mask=None, write_mask=None):
    """The module's first formulas, as they are written."""
    matrix, backlog, base = state.weights[0], state.momentum[0], state.initial_weights[0]
    rest = base if options.forget_towards == "initial" else torch.zeros_like(base)
    reads, losses = [], []
    for t in range(tokens[0].shape[1]):
        q, k, v = (x[:, t] for x in tokens)
        alpha, eta, theta = (g[:, t][..., None, None] for g in gates)
        if not options.momentum:
            eta = torch.zeros_like(eta)
        forgotten = rest + (1 - alpha) * (matrix - rest)
        at = forgotten if form == "bounded" else matrix
        error = v - torch.einsum("bhoi,bhi->bho", at, k)
        write = 2 * theta * torch.einsum("bho,bhi->bhoi", error, k)
        if form == "bounded":
            surprise = (1 - alpha) * backlog + write if options.momentum else write
            new, kept = forgotten + (1 - eta) * surprise, eta * surprise
        else:
            kept = eta * backlog + write
            new = forgotten + kept
        active = torch.ones(BATCH, HEADS, dtype=torch.bool)
        real = torch.ones(BATCH, dtype=torch.bool) if mask is None else mask[:, t]
        active = active & real[:, None]
        if write_mask is not None:
            active = active & write_mask[:, t, None]
        if options.write_threshold is not None:
            active = active & (theta[..., 0, 0] >= options.write_threshold)
        before = matrix
        matrix = torch.where(active[..., None, None], new, matrix)
        if options.momentum:
            backlog = torch.where(active[..., None, None], kept, backlog)
        read_from = before if options.read == "before" else matrix
        reads.append(torch.einsum("bhoi,bhi->bho", read_from, q) * real[:, None, None])
        idle = matrix.new_zeros(())
        at_rest = (v - torch.einsum("bhoi,bhi->bho", before, k)).square().sum(-1)
        loss = torch.where(active, error.square().sum(-1), at_rest)
        losses.append(torch.where(real[:, None], loss, idle))
    return torch.stack(reads, 1), matrix, backlog, torch.stack(losses, 1)


def in_blocks(tokens, gates, state, **arguments):
    reads, state, trace = scan_online(*tokens, gates, state, **arguments)
    return reads, state.weights[0], state.momentum[0], trace.surprise.loss


def compare(time: int, form: str, options: ScanOptions, block: int = 16, **masks: Tensor) -> None:
    """Reads, state, surprise, and the derivative of a sum over all of them by every input."""
    found = []
    for scan, more in ((in_blocks, {"block": block}), (token_by_token, {})):
        tokens, gates, state, leaves = inputs(time)
        out = scan(tokens, gates, state, form=form, options=options, **masks, **more)
        total = sum((o * torch.linspace(-1, 1, o.numel()).view_as(o)).sum() for o in out)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        found.append((*out, *gradients))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-10)


def options(name: str, **changes: object) -> tuple[str, ScanOptions]:
    form = "paper" if name == "paper" else "bounded"
    return form, replace(ScanOptions(momentum=MOMENTUM[name]), **changes)


@pytest.mark.parametrize("name", MOMENTUM)
@pytest.mark.parametrize("towards", ["zero", "initial"])
@pytest.mark.parametrize("time", [1, 16, 37])
def test_equal_to_the_loop(name: str, towards: str, time: int) -> None:
    compare(time, *options(name, forget_towards=towards))


@pytest.mark.parametrize("block", [1, 2, 8, 64])
def test_block_size_changes_nothing(block: int) -> None:
    compare(37, *options("bounded"), block=block)


@pytest.mark.parametrize("name", MOMENTUM)
def test_equal_with_padding_and_tokens_that_do_not_write(name: str) -> None:
    time = 37
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(time) < torch.tensor([37, 30, 5])[:, None]
    mask[1, :4] = False
    write_mask = torch.rand(BATCH, time, generator=generator) < 0.7
    compare(time, *options(name, write_threshold=0.08), mask=mask, write_mask=write_mask)


@pytest.mark.parametrize("name", MOMENTUM)
def test_reads_before_the_write(name: str) -> None:
    compare(37, *options(name, read="before"))


@pytest.mark.parametrize("towards", ["zero", "initial"])
def test_the_paper_form_is_the_scan_with_chunks_of_one_token(towards: str) -> None:
    tokens, gates, state, _ = inputs(40)
    options = ScanOptions(forget_towards=towards)  # type: ignore[arg-type]
    got = scan_online(*tokens, gates, state, form="paper", options=options)
    wanted = scan_memory(*tokens, gates, state, chunk_size=1, options=options)
    torch.testing.assert_close(got[0], wanted[0], atol=1e-10, rtol=1e-10)
    for name, tensor in got[1].named_tensors().items():
        torch.testing.assert_close(tensor, wanted[1].named_tensors()[name], atol=1e-10, rtol=1e-10)
    for mine, theirs in zip(got[2].surprise, wanted[2].surprise, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


def test_both_forms_agree_for_a_constant_eta_without_forgetting() -> None:
    tokens, gates, state, _ = inputs(40)
    state = state.replace(momentum=(torch.zeros_like(state.momentum[0]),))
    eta, never = torch.full_like(gates.momentum_decay, 0.8), torch.zeros_like(gates.forget_gate)
    steps = (gates.step_size, gates.step_size * (1 - 0.8))
    bounded, paper = (
        scan_online(*tokens, Gates(never, eta, step), state, form=form)[0]
        for form, step in zip(("bounded", "paper"), steps, strict=True)
    )
    torch.testing.assert_close(bounded, paper, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", MOMENTUM)
def test_legal_extremes_of_the_gates(name: str) -> None:
    form, chosen = options(name)
    tokens, gates, state, _ = inputs(24)
    for field in gates._fields:
        for value in (0.0, 1.0):
            extreme = gates._replace(**{field: torch.full_like(gates.forget_gate, value)})
            got = in_blocks(tokens, extreme, state, form=form, options=chosen)
            wanted = token_by_token(tokens, extreme, state, form=form, options=chosen)
            for mine, theirs in zip(got, wanted, strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", MOMENTUM)
def test_split_anywhere_is_one_pass(name: str) -> None:
    form, chosen = options(name)
    tokens, gates, state, _ = inputs(40)
    reads, whole, _ = scan_online(*tokens, gates, state, form=form, options=chosen)
    parts = []
    for begin, end in ((0, 1), (1, 18), (18, 33), (33, 40)):
        piece = [t[:, begin:end] for t in tokens]
        cut = Gates(*(g[:, begin:end] for g in gates))
        out, state, _ = scan_online(*piece, cut, state, form=form, options=chosen)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, dim=1), reads, atol=1e-12, rtol=1e-12)
    for name_, tensor in state.named_tensors().items():
        torch.testing.assert_close(tensor, whole.named_tensors()[name_], atol=1e-12, rtol=1e-12)


def hostile(kind: str, time: int, dim: int) -> tuple[Tensor, Tensor]:
    """Keys of unit length and values of length one, made to drive a memory away."""
    axes, turn = torch.eye(dim), torch.arange(time)
    sign = (1 - 2.0 * (turn % 2))[:, None]
    noise = torch.randn(time, dim)
    if kind == "repeated":
        return axes[:1].expand(time, dim), axes[:1].expand(time, dim)
    if kind == "near, opposite values":
        return functional.normalize(
            axes[0] + 0.05 * (turn % 2)[:, None] * axes[1], dim=-1
        ), sign * axes[2]
    if kind == "sign flips":
        return sign * axes[0], axes[:1].expand(time, dim)
    if kind == "near, random values":
        return functional.normalize(axes[0] + 0.1 * noise, dim=-1), functional.normalize(
            noise, dim=-1
        )
    angle = (turn + 1.0).rsqrt().cumsum(0)[:, None]  # a slow turn with one value
    return angle.cos() * axes[0] + angle.sin() * axes[1], axes[:1].expand(time, dim)


KINDS = ("repeated", "near, opposite values", "sign flips", "near, random values", "slow turn")


def hostile_eta(kind: str, time: int) -> Tensor:
    if kind == "switching":
        return torch.where(torch.arange(time) % 8 < 4, 0.0, 0.99)
    return torch.rand(time) if kind == "random" else torch.full((time,), float(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eta", ["0", "0.5", "0.9", "random", "switching"])
@pytest.mark.parametrize(("share", "growth"), [(1.0, 4 / 3), (1.5, 8.0)])
def test_no_keys_and_gates_make_it_run_away(
    kind: str, eta: str, share: float, growth: float
) -> None:
    """`|M + S|^2 + 4 |S|^2` grows by at most `4/3 b |v|^2`: the bound of `largest_rate`. With 1.5
    times that rate, as the layer has it, by `8 b |v|^2`."""
    torch.manual_seed(0)
    time, dim = 512, 8
    keys, values = (t.double()[None, :, None] for t in hostile(kind, time, dim))
    decay = hostile_eta(eta, time).double()[None, :, None]
    rate = share * largest_rate(decay)
    gates = Gates(torch.zeros_like(decay), decay, rate / 2)
    state = MemoryState.initial([torch.zeros(1, dim, dim, dtype=torch.float64)], 1)
    size = 0.0
    for begin in range(0, time, 16):
        piece = slice(begin, begin + 16)
        token = [x[:, piece] for x in (keys, keys, values)]
        _, state, _ = scan_online(*token, Gates(*(g[:, piece] for g in gates)), state)
        matrix, backlog = state.weights[0], state.momentum[0]
        grown = float((matrix + backlog).square().sum() + 4 * backlog.square().sum())
        assert grown <= size + growth * float(rate[:, piece].sum()) * (1 + 1e-9) + 1e-12
        size = grown


def test_the_paper_form_can_run_away() -> None:
    """The reason for the other one: steps of theta (1 - eta) at eta = 0.9 and keys that turn."""
    time, dim = 4096, 8
    keys, values = (t[None, :, None] for t in hostile("slow turn", time, dim))
    eta = torch.full((1, time, 1), 0.9)
    gates = Gates(torch.zeros_like(eta), eta, 0.25 * (1 - eta))
    state = MemoryState.initial([torch.zeros(1, dim, dim)], 1)
    paper = scan_online(keys, keys, values, gates, state, form="paper")[2].surprise.loss
    assert not float(paper.max()) < 1e6
    bounded = gates._replace(step_size=largest_rate(eta) / 2)
    assert scan_online(keys, keys, values, bounded, state)[2].surprise.loss.max() < 4 * (1 + time)


def test_it_refuses_what_it_does_not_know() -> None:
    tokens, gates, state, _ = inputs(4)
    with pytest.raises(ValueError, match="step_limit"):
        scan_online(*tokens, gates, state, options=ScanOptions(step_limit=1.0))
    deep = MemoryState.initial([torch.zeros(2, 7, 6), torch.zeros(2, 5, 7)], BATCH)
    with pytest.raises(ValueError, match="one matrix"):
        scan_online(*(t.float() for t in tokens), gates, deep)
