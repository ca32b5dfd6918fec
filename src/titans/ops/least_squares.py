"""Least squares as a memory: writes that know which directions of the keys were written before.

The matrix that fits all pairs seen best, in the sense of

    sum_t theta_t |v_t - M k_t|^2 + |M - M_0|^2

kept token by token (recursive least squares). It needs the keys' covariance: similar keys then do
not disturb each other. With P the uncertainty of each direction, one at the start,

    M' = (1 - alpha_t) M_{t-1},      P' = (1 - alpha_t)^2 P_{t-1} + (1 - (1 - alpha_t)^2) I
    e_t = v_t - M' k_t,              g_t = theta_t P' k_t / (1 + theta_t k_t^T P' k_t)
    M_t = M' + e_t g_t^T,            P_t = P' - g_t (P' k_t)^T

theta is the weight of an observation. Forgetting brings M back to its start and P back to one, so P
never exceeds one and neither runs away (dividing P by 1 - alpha, as is usual, has no bound): this
is the Kalman filter of a matrix that drifts around its start. The state is M and Q = 1 - P, which
is zero at the start and takes the place of the momentum. M' and P' are 0 and 1 at alpha = 1.

In a block that starts at M and Q, observations have the covariance

    T = 1 + sqrt(theta_t theta_s) (A[t, s] k_t . k_s - beta_t beta_s k_t^T Q k_s)

with A and beta the running products of 1 - alpha. Its Cholesky factor gives every token what the
tokens before it say (docs/decisions/0008-least-squares.md). T is at least one, so nothing is
ill-conditioned, and no gate is divided by.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from titans.ops.checks import check_scan
from titans.ops.nonfinite import contained
from titans.ops.online import check_online
from titans.ops.operator import as_operator
from titans.ops.options import ScanOptions
from titans.ops.scan.layout import from_rows, to_rows
from titans.ops.scan.mixing import differentiable_products
from titans.ops.state import Gates, MemoryState, Surprise, Trace
from titans.ops.writes import Decision, make_trace, may_act

BLOCK = 32
"""Tokens per factorisation. Changes the speed, not the result."""
LEAST_FORGETTING = 1e-6
"""A token that acts forgets at least so much: more than what rounding can take from P."""


@as_operator
@contained
def scan_least_squares(
    queries: Float[Tensor, "batch time heads key_dim"],
    keys: Float[Tensor, "batch time heads key_dim"],
    values: Float[Tensor, "batch time heads value_dim"],
    gates: Gates,
    state: MemoryState,
    *,
    mask: Bool[Tensor, "batch time"] | None = None,
    write_mask: Bool[Tensor, "batch time"] | None = None,
    options: ScanOptions | None = None,
    block: int = BLOCK,
) -> tuple[Float[Tensor, "batch time heads value_dim"], MemoryState, Trace]:
    """Write `keys -> values` one by one and read after each; arguments as in `scan_memory`.

    The momentum decay is not read. Where the state keeps momentum it has Q here, `initial_known`.
    """
    options = options or ScanOptions()
    check_scan(queries, keys, values, gates, state, 1, mask, write_mask, options)
    check_online(options)
    batch, time, _, key_dim = keys.shape
    if len(state.weights) != 1 or state.momentum[0].shape[-2:] != (key_dim, key_dim):
        raise ValueError(
            "scan_least_squares needs one matrix and Q of [key_dim, key_dim] in place of the "
            f"momentum, got {[tuple(t.shape) for t in (*state.weights, *state.momentum)]}; "
            "use initial_known"
        )
    with torch.autocast(device_type=keys.device.type, enabled=False):
        tokens = (queries, keys, values, gates.forget_gate, gates.step_size)
        q, k, v, alpha, theta = (to_rows(t.to(state.dtype)) for t in tokens)
        acting = may_act(gates.step_size, options, mask=mask, write_mask=write_mask)
        active = torch.ones_like(theta) if acting is None else to_rows(acting).to(theta.dtype)
        keep = 1 - alpha.clamp_min(LEAST_FORGETTING) * active
        matrix, known = state.weights[0].flatten(0, 1), state.momentum[0].flatten(0, 1)
        base = state.initial_weights[0].flatten(0, 1)
        if options.forget_towards == "zero":
            base = torch.zeros_like(base)
        reads, errors = [], []
        now = _Fit(matrix - base, known)
        pieces = (q, k, v - k @ base.mT, keep, theta * active)
        for piece in zip(*(t.split(block, dim=1) for t in pieces), strict=True):
            read, error, now = _block(piece, now, options.read == "before")
            reads.append(read)
            errors.append(error)
        out, error = torch.cat(reads, dim=1) + q @ base.mT, torch.cat(errors, dim=1)
        if mask is not None:
            real = mask.repeat_interleave(state.num_heads, dim=0)[..., None]
            out, error = out * real, error * real
        loss = error.square().sum(-1)
        norm = 2 * (loss.sqrt() * k.norm(dim=-1)).detach()
    weights = ((now.matrix + base).unflatten(0, (batch, -1)),)
    state = state.replace(
        weights=weights,
        chunk_weights=weights,
        momentum=(now.known.unflatten(0, (batch, -1)),),
        position=state.position + (time if mask is None else mask.sum(1)),
    )
    trace = make_trace(
        Surprise(from_rows(loss, batch), from_rows(norm, batch)), Decision(acting, acting, acting)
    )
    return from_rows(out, batch).to(values.dtype), state, trace


def initial_known(state: MemoryState) -> MemoryState:
    """A state that knows no direction of its keys yet: Q = 0."""
    weight = state.weights[0]
    return state.replace(momentum=(weight.new_zeros(*weight.shape[:2], *[weight.shape[-1]] * 2),))


class _Fit(NamedTuple):
    """What a block starts from."""

    matrix: Tensor
    """M less what forgetting returns to. `[n V K]`"""
    known: Tensor
    """Q. `[n K K]`"""


def _block(
    tokens: tuple[Tensor, ...], start: _Fit, read_before: bool
) -> tuple[Tensor, Tensor, _Fit]:
    """Reads and errors of tokens (q, k, v, 1 - alpha, theta), and what the next block starts from.

    Names: ops/README.md.
    """
    q, k, v, keep, theta = tokens
    left = differentiable_products(keep)
    beta = left[..., 0] * keep[:, :1]
    met = beta[..., None] * k
    known = met @ start.known
    # The square root has no derivative at zero; a token without weight has no say anyway.
    weighs = theta > 0
    root = torch.where(weighs, theta, 1.0).sqrt() * weighs
    # Covariance of what tokens ask with what the tokens before them saw.
    shared = (left * (k @ k.mT) - met @ known.mT).tril()
    lower = root[..., None] * shared * root[:, None]
    eye = torch.eye(k.shape[1], dtype=k.dtype, device=k.device)
    factor = torch.linalg.cholesky_ex(eye + lower + lower.tril(-1).mT).L
    whiten = torch.linalg.solve_triangular(factor, eye, upper=False) * root[:, None]
    expected = v - met @ start.matrix.mT
    news = whiten @ expected
    errors = expected - (shared @ whiten.mT).tril(-1) @ news

    read_left, read_beta, diagonal = left, beta, 0
    if read_before:
        read_left = functional.pad(left[:, :-1], (0, 0, 1, 0))
        read_beta, diagonal = functional.pad(beta[:, :-1], (1, 0), value=1.0), -1
    asked = read_beta[..., None] * q
    heard = ((read_left * (q @ k.mT) - asked @ known.mT) @ whiten.mT).tril(diagonal)
    reads = asked @ start.matrix.mT + heard @ news

    last = beta[:, -1, None, None]
    gains = whiten @ (left[:, -1, :, None] * k - last * known)
    end = _Fit(last * start.matrix + news.mT @ gains, last**2 * start.known + gains.mT @ gains)
    return reads, errors, end
