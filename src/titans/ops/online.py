"""The online rule of one matrix, exactly, in blocks of tokens: block size changes only the speed.

Every token corrects the error that the memory makes at that token, not at a chunk's start:

    e_t = v_t - M k_t
    R_t = r_t S_{t-1} + b_t e_t k_t^T                       surprise
    M_t = (1 - alpha_t) M_{t-1} + p_t R_t,  S_t = h_t R_t   memory, and what momentum keeps

in one of two forms, with b_t = 2 theta_t:

    paper     M = M_{t-1}                  r = eta,        p = 1,        h = 1     eq. 12 to 14
    bounded   M = (1 - alpha_t) M_{t-1}    r = 1 - alpha,  p = 1 - eta,  h = eta

`paper` is `scan_memory` with one layer and chunks of one token. `bounded` keeps S as a backlog:
surprise that is not yet written. A token forgets first, then writes the share 1 - eta of backlog
and new surprise, so eta decides when a write arrives and never how much of it. For a constant eta
and no forgetting both are one rule, with theta (1 - eta) in `paper` for theta in `bounded`. No
gates and keys can make `bounded` run away, if keys have at most unit length and b_t is at most
`largest_rate(eta_t)` (docs/decisions/0006-online-rule.md).

In a block, M_t = beta_t M + u_t S + sum_{s<=t} C[t, s] b_s e_s k_s^T with coefficients of the gates
only (`mixing`), so the errors of a block solve one unit lower-triangular system.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from titans.ops.checks import check_scan
from titans.ops.derivatives import by_hand, is_recorded, through
from titans.ops.nonfinite import contained
from titans.ops.operator import as_operator
from titans.ops.options import ScanOptions
from titans.ops.scan.layout import from_rows, to_rows
from titans.ops.scan.mixing import differentiable_products
from titans.ops.state import Gates, MemoryState, Surprise, Trace
from titans.ops.writes import Decision, make_trace, may_act

OnlineForm = Literal["paper", "bounded"]
BLOCK = 32
"""Tokens per triangular system. Changes the speed, not the result."""


def largest_rate(eta: Tensor) -> Tensor:
    """The largest b_t = 2 theta_t with which the bounded form is safe: one without momentum.

    With it, `|M + S|^2 + 4 |S|^2` grows by at most `4/3 b_t |v_t|^2` per token, whatever the gates.
    """
    square = eta.square()
    return (1 - square) / (1 + 4 * square)


@as_operator
@contained
def scan_online(
    queries: Float[Tensor, "batch time heads key_dim"],
    keys: Float[Tensor, "batch time heads key_dim"],
    values: Float[Tensor, "batch time heads value_dim"],
    gates: Gates,
    state: MemoryState,
    *,
    form: OnlineForm = "bounded",
    mask: Bool[Tensor, "batch time"] | None = None,
    write_mask: Bool[Tensor, "batch time"] | None = None,
    options: ScanOptions | None = None,
    block: int = BLOCK,
) -> tuple[Float[Tensor, "batch time heads value_dim"], MemoryState, Trace]:
    """Write `keys -> values` one by one and read after each; arguments as in `scan_memory`.

    Of the options it knows momentum, forgetting, the write threshold and the order of reading.
    """
    options = options or ScanOptions()
    check_scan(queries, keys, values, gates, state, 1, mask, write_mask, options)
    if len(state.weights) != 1:
        raise ValueError(f"scan_online needs a memory of one matrix, got {len(state.weights)}")
    check_online(options)
    batch, time = keys.shape[:2]
    with torch.autocast(device_type=keys.device.type, enabled=False):
        rows = [to_rows(t.to(state.dtype)) for t in (queries, keys, values, *gates)]
        q, k, v, alpha, eta, theta = rows
        acting = may_act(gates.step_size, options, mask=mask, write_mask=write_mask)
        active = None if acting is None else to_rows(acting).to(state.dtype)
        rates = make_rates(alpha, eta if options.momentum else None, 2 * theta, active, form)
        matrix, backlog = state.weights[0].flatten(0, 1), state.momentum[0].flatten(0, 1)
        base = state.initial_weights[0].flatten(0, 1)
        if options.forget_towards == "initial":
            matrix, v = matrix - base, v - k @ base.mT
        start = torch.cat((matrix, backlog), dim=1) if options.momentum else matrix
        reads, errors, end = scan_rows(q, k, v, rates, start, options.read == "before", block)
        matrix, *kept = end.split(v.shape[-1], dim=1)
        if options.forget_towards == "initial":
            matrix, reads = matrix + base, reads + q @ base.mT
        if mask is not None:
            real = mask.repeat_interleave(state.num_heads, dim=0)[..., None]
            reads, errors = reads * real, errors * real
        loss = errors.square().sum(-1)
        norm = 2 * (loss.sqrt() * k.norm(dim=-1)).detach()
    weights = (matrix.unflatten(0, (batch, -1)),)
    position = state.position + (time if mask is None else mask.sum(1))
    state = state.replace(weights=weights, chunk_weights=weights, position=position)
    if kept:
        state = state.replace(momentum=(kept[0].unflatten(0, (batch, -1)),))
    surprise = Surprise(from_rows(loss, batch), from_rows(norm, batch))
    trace = make_trace(surprise, Decision(acting, acting, acting))
    return from_rows(reads, batch).to(values.dtype), state, trace


def check_online(options: ScanOptions) -> None:
    """Refuse options of a chunk's gradients, which the online rule does not have."""
    plain = ScanOptions()
    unknown = ("loss", "residual", "max_grad_norm", "surprise_threshold", "step_limit", "gradient")
    for name in unknown:
        given, known = getattr(options, name), getattr(plain, name)
        if given != known:
            raise ValueError(
                f"the online rule does not know {name}={given!r}; use {known!r}, or scan_memory"
            )


class _Momentum(NamedTuple):
    """Per token `[n ...]`: the factors r, p and h of the module's first formulas."""

    resume: Tensor
    share: Tensor
    hold: Tensor


class Rates(NamedTuple):
    """All that the gates decide, per token; one that does not write changes nothing."""

    keep: Tensor
    """1 - alpha."""
    rate: Tensor
    """b."""
    seen: Tensor | None
    """What is left of the memory when the error is taken; None: all."""
    momentum: _Momentum | None

    def map(self, cut: Any) -> "Rates":
        """Apply `cut(tensor, what leaves a memory as it is)` to every tensor."""
        momentum = self.momentum
        if momentum is not None:
            momentum = _Momentum(
                cut(momentum.resume, 1.0), cut(momentum.share, 0.0), cut(momentum.hold, 1.0)
            )
        seen = None if self.seen is None else cut(self.seen, 1.0)
        return Rates(cut(self.keep, 1.0), cut(self.rate, 0.0), seen, momentum)


def make_rates(
    alpha: Tensor, eta: Tensor | None, rate: Tensor, active: Tensor | None, form: OnlineForm
) -> Rates:
    """The factors of a form; `eta` is None without momentum, `active` zero for a no-op."""
    keep = 1 - alpha
    momentum = None
    if eta is not None and form == "paper":
        one = torch.ones_like(eta)
        momentum = _Momentum(eta, one, one)
    elif eta is not None:
        momentum = _Momentum(keep, 1 - eta, eta)
    rates = Rates(keep, rate, keep if form == "bounded" else None, momentum)
    if active is None:
        return rates
    return rates.map(lambda t, neutral: neutral + active * (t - neutral))


class _Mixed(NamedTuple):
    """How the gates of a block mix its start and its writes; per matrix of the state (M, or M and
    S) in lists."""

    mix: Tensor
    """C[t, s]: what is left in M_t of what token s wrote."""
    from_start: Tensor
    """beta_t, and with momentum u_t: what is left in M_t of M and of S. `[n blocks size 1 or 2]`"""
    last: Tensor
    """What is left at the block's end of what token s wrote. `[n blocks size 1 or 2]`"""
    carry: Tensor
    """beta_b; with momentum also u_b, and what is left of S in S_b. `[n blocks 1 or 3]`."""


def _mixed(rates: Rates) -> _Mixed:
    decay = _products(rates.keep)
    beta = decay[..., 0] * rates.keep[..., :1]
    if rates.momentum is None:
        return _Mixed(decay, beta[..., None], decay[..., -1, :, None], beta[..., -1:])
    resume, share, hold = rates.momentum
    factor = resume * functional.pad(hold[..., :-1], (1, 0), value=1.0)
    kept = _products(factor)
    mix = (decay * share[..., None, :]) @ kept
    first = factor[..., :1]
    u = mix[..., 0] * first
    last = hold[..., -1:] * kept[..., -1, :]
    carry = torch.stack((beta[..., -1], u[..., -1], last[..., 0] * first[..., 0]), dim=-1)
    from_start, last = (torch.stack(t, dim=-1) for t in ((beta, u), (mix[..., -1, :], last)))
    return _Mixed(mix, from_start, last, carry)


def scan_rows(
    q: Tensor, k: Tensor, v: Tensor, rates: Rates, start: Tensor, read_before: bool, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Reads and errors of all tokens, and the state after the last; `start` is M, or M over S."""
    time = k.shape[1]
    if time == 1:
        return _one_token(q, k, v, rates, start, read_before)
    size = min(block, time)
    missing = -time % size

    def cut(t: Tensor, value: float = 0.0) -> Tensor:
        if missing:
            padding = (0, missing) if t.ndim == 2 else (0, 0, 0, missing)
            t = functional.pad(t, padding, value=value)
        return t.unflatten(1, (-1, size))

    rates, v = rates.map(cut), cut(v)
    asked = torch.cat((cut(k), cut(q)), dim=2)
    mixed = _mixed(rates)
    # What the memory before token t holds; the block's start is all of M and nothing of S.
    before = functional.pad(mixed.mix[..., :-1, :], (0, 0, 1, 0))
    first = torch.zeros_like(mixed.from_start[:, :, :1])
    first[..., 0] = 1
    starts = torch.cat((first, mixed.from_start[:, :, :-1]), dim=2)
    read_mix, read_starts = (before, starts) if read_before else (mixed.mix, mixed.from_start)
    if rates.seen is not None:
        before = before * rates.seen[..., None]
        starts = starts * rates.seen[..., None]
    # Keys and queries against keys: what writes of the block do to its errors and its reads.
    met = (asked @ asked[:, :, :size].mT) * rates.rate[..., None, :]
    system = (before * met[:, :, :size]).tril(-1)
    eye = torch.eye(size, dtype=k.dtype, device=k.device)
    solve = torch.linalg.solve_triangular(system + eye, eye, upper=False, unitriangular=True)
    chain = _Chain.apply if by_hand() else _chain
    reads, errors, end = chain(  # type: ignore[misc]
        asked,
        v,
        solve,
        read_mix * met[:, :, size:],
        torch.cat((starts, read_starts), dim=2),
        mixed.last * rates.rate[..., None],
        mixed.carry,
        start,
    )
    return reads.flatten(1, 2)[:, :time], errors.flatten(1, 2)[:, :time], end


def _one_token(
    q: Tensor, k: Tensor, v: Tensor, rates: Rates, start: Tensor, read_before: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`scan_rows` of a single token, as decoding has it: the module's first formulas."""
    keep, rate = rates.keep[..., None], rates.rate[..., None]
    matrix, *backlog = start.split(v.shape[-1], dim=1)
    seen = matrix if rates.seen is None else matrix * rates.seen[..., None]
    errors = v - k @ seen.mT
    surprise = (errors * rate).mT @ k
    if rates.momentum is None:
        end = moved = torch.addcmul(surprise, matrix, keep)
    else:
        resume, share, hold = (factor[..., None] for factor in rates.momentum)
        surprise = torch.addcmul(surprise, backlog[0], resume)
        moved = torch.addcmul(surprise * share, matrix, keep)
        end = torch.cat((moved, surprise * hold), dim=1)
    reads = q @ (matrix if read_before else moved).mT
    return reads, errors, end


def _products(factors: Tensor) -> Tensor:
    """Running products per block."""
    return differentiable_products(factors.flatten(0, 1)).unflatten(0, factors.shape[:2])


class _Chain(torch.autograd.Function):
    """The part that runs from block to block, with P the state: M, or M over S, `[n (1|2)V K]`.

        found  = asked P^T                 what the block's start answers to its keys and queries
        errors = solve (v - left * found of keys)
        reads  = left * found of queries + reading errors
        P      = P carried on + (last * errors)^T keys

    where `left *` sums over M and S. Everything else of the scan is one batch of all blocks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        asked: Tensor,
        v: Tensor,
        solve: Tensor,
        reading: Tensor,
        left: Tensor,
        last: Tensor,
        carry: Tensor,
        state: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        count, size = v.shape[1:3]
        found = asked.new_empty(*asked.shape[:3], state.shape[1])
        states = state.new_empty(len(v), count + 1, *state.shape[1:])
        states[:, 0] = state
        reads, errors = torch.empty_like(v), torch.empty_like(v)
        for i in range(count):
            here = torch.bmm(asked[:, i], states[:, i].mT)
            found[:, i] = here
            known = _weighted(left[:, i], here)
            error = torch.bmm(solve[:, i], v[:, i] - known[:, :size])
            reads[:, i] = known[:, size:].baddbmm_(reading[:, i], error)
            errors[:, i] = error
            written = _spread(last[:, i], error)
            after = _carried(states[:, i], carry[:, i])
            states[:, i + 1] = after.baddbmm_(written.mT, asked[:, i, :size])
        given = (asked, v, solve, reading, left, last, carry, state)
        ctx.save_for_backward(*given, states, found, errors)
        return reads, errors, states[:, -1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        d_reads, d_errors, d_state = grads
        *given, states, found, errors = ctx.saved_tensors
        if is_recorded():
            return through(_chain, given, grads)  # type: ignore[return-value]
        asked, v, solve, reading, left, last, carry, _ = given
        count, size = v.shape[1:3]
        d_errors = torch.matmul(reading.mT, d_reads).add_(d_errors)
        d_known = torch.cat((torch.empty_like(v), d_reads), dim=2)
        d_found = _spread(left, d_known)
        d_states, d_written = torch.empty_like(states), torch.empty_like(found[:, :, :size])
        d_states[:, -1] = d_state
        for i in reversed(range(count)):
            d_after = d_states[:, i + 1]
            d_write = torch.bmm(asked[:, i, :size], d_after.mT)
            d_written[:, i] = d_write
            d_errors[:, i] += _weighted(last[:, i], d_write)
            d_keys = torch.bmm(solve[:, i].mT, d_errors[:, i]).neg_()
            d_known[:, i, :size] = d_keys
            d_found[:, i, :size] = _spread(left[:, i, :size], d_keys)
            d_before = _carried_back(d_after, carry[:, i])
            d_states[:, i] = d_before.baddbmm_(d_found[:, i].mT, asked[:, i])
        wanted = v - _weighted(left[:, :, :size], found[:, :, :size])
        d_asked = torch.matmul(d_found, states[:, :-1])
        d_asked[:, :, :size] += torch.matmul(_spread(last, errors), d_states[:, 1:])
        return (
            d_asked,
            -d_known[:, :, :size],
            torch.matmul(d_errors, wanted.mT),
            torch.matmul(d_reads, errors.mT),
            _by_part(d_known, found),
            _by_part(errors, d_written),
            _d_carry(states[:, :-1], d_states[:, 1:], carry.shape[-1]),
            d_states[:, 0],
        )


def _chain(
    asked: Tensor,
    v: Tensor,
    solve: Tensor,
    reading: Tensor,
    left: Tensor,
    last: Tensor,
    carry: Tensor,
    state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_Chain` in plain operations."""
    size, reads, errors = v.shape[2], [], []
    for i in range(v.shape[1]):
        known = _weighted(left[:, i], asked[:, i] @ state.mT)
        error = solve[:, i] @ (v[:, i] - known[:, :size])
        errors.append(error)
        reads.append(known[:, size:] + reading[:, i] @ error)
        written = _spread(last[:, i], error)
        state = _carried(state, carry[:, i]) + written.mT @ asked[:, i, :size]
    return torch.stack(reads, dim=1), torch.stack(errors, dim=1), state


def _weighted(weights: Tensor, parts: Tensor) -> Tensor:
    """Sum over M and S of weight times part: `[... 1 or 2]`, `[... (1|2)V]` -> `[... V]`."""
    if weights.shape[-1] == 1:
        return parts * weights
    first, second = parts.chunk(2, dim=-1)
    return torch.addcmul(first * weights[..., :1], second, weights[..., 1:])


def _spread(weights: Tensor, x: Tensor) -> Tensor:
    """The reverse: `x` times each weight, side by side."""
    if weights.shape[-1] == 1:
        return x * weights
    return (weights[..., None] * x[..., None, :]).flatten(-2)


def _by_part(x: Tensor, parts: Tensor) -> Tensor:
    """The derivative of `_weighted` by its weights."""
    return torch.linalg.vecdot(parts.unflatten(-1, (-1, x.shape[-1])), x[..., None, :])


def _carried(state: Tensor, carry: Tensor) -> Tensor:
    """beta M; with momentum beta M + u S over what is left of S."""
    beta, *more = (part[:, None, None] for part in carry.unbind(-1))
    if not more:
        return state * beta
    matrix, backlog = state.chunk(2, dim=1)
    return torch.cat((torch.addcmul(matrix * beta, backlog, more[0]), backlog * more[1]), dim=1)


def _carried_back(grad: Tensor, carry: Tensor) -> Tensor:
    """The derivative of `_carried` by the state."""
    beta, *more = (part[:, None, None] for part in carry.unbind(-1))
    if not more:
        return grad * beta
    d_matrix, d_backlog = grad.chunk(2, dim=1)
    d_start = torch.addcmul(d_matrix * more[0], d_backlog, more[1])
    return torch.cat((d_matrix * beta, d_start), dim=1)


def _d_carry(state: Tensor, grad: Tensor, count: int) -> Tensor:
    """The derivative of `_carried` by its factors, `[n blocks 1 or 3]`."""
    if count == 1:
        return (state * grad).sum((-1, -2))[..., None]
    matrix, backlog = state.chunk(2, dim=-2)
    d_matrix, d_backlog = grad.chunk(2, dim=-2)
    pairs = ((matrix, d_matrix), (backlog, d_matrix), (backlog, d_backlog))
    return torch.stack([(a * b).sum((-1, -2)) for a, b in pairs], dim=-1)
