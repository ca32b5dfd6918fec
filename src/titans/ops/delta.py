"""The exact online rule of a single matrix without momentum, in whole blocks of tokens.

    e_t = v_t - M_{t-1} k_t
    M_t = (1 - alpha_t) M_{t-1} + 2 theta_t e_t k_t^T

This is `scan_memory` with chunk size 1, one layer and eta = 0 (tests/ops/test_delta.py), and what
the delta rule and its gated form are (`titans.layers.memory_config`). In a block that starts at M,
with A[t, s] the product of 1 - alpha behind s up to t, and beta_t the product up to t,

    e_t + sum_{s<t} A[t-1, s] 2 theta_s (k_s . k_t) e_s = v_t - beta_{t-1} M k_t

so all errors of a block solve one unit lower-triangular system (the WY form of DeltaNet).

With a forget gate per channel of the key, `[batch time heads key_dim]`, this is Kimi Delta
Attention (arXiv 2510.26692), which takes the error after forgetting:

    e_t = v_t - M_{t-1} diag(1 - alpha_t) k_t
    M_t = M_{t-1} diag(1 - alpha_t) + 2 theta_t e_t k_t^T

A[t, s] then is a vector, inside the product of k_s and k_t (`_met_by_channel`).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from titans.ops.nonfinite import contained
from titans.ops.operator import as_operator
from titans.ops.options import ScanOptions
from titans.ops.scan.layout import from_rows, to_rows
from titans.ops.scan.mixing import differentiable_products
from titans.ops.state import Gates, MemoryState, Surprise, Trace
from titans.ops.writes import Decision, make_trace, may_act

BLOCK = 32
"""Tokens per triangular system, a power of two. Changes the speed, not the result."""
SMALLEST_DECAY = 1e-6
"""1 - alpha is kept above this where it divides."""


@as_operator
@contained
def scan_delta(
    queries: Float[Tensor, "batch time heads key_dim"],
    keys: Float[Tensor, "batch time heads key_dim"],
    values: Float[Tensor, "batch time heads value_dim"],
    gates: Gates,
    state: MemoryState,
    *,
    mask: Bool[Tensor, "batch time"] | None = None,
    write_mask: Bool[Tensor, "batch time"] | None = None,
    write_threshold: float | None = None,
) -> tuple[Float[Tensor, "batch time heads value_dim"], MemoryState, Trace]:
    """Write `keys -> values` one by one and read after each; arguments as in `scan_memory`.

    The momentum decay is taken for zero, so the state's momentum is never read, and stays.
    """
    if len(state.weights) != 1:
        raise ValueError(f"scan_delta needs a memory of one matrix, got {len(state.weights)}")
    batch, time = keys.shape[:2]
    dtype, result_dtype = state.dtype, values.dtype
    with torch.autocast(device_type=keys.device.type, enabled=False):
        q, k, v, alpha, theta = (
            to_rows(t.to(dtype))
            for t in (queries, keys, values, gates.forget_gate, gates.step_size)
        )
        real = torch.ones_like(theta) if mask is None else _per_row(mask, k)
        options = ScanOptions(write_threshold=write_threshold)
        acts = may_act(gates.step_size.to(dtype), options, mask=mask, write_mask=write_mask)
        active = torch.ones_like(theta) if acts is None else to_rows(acts).to(dtype)
        forgotten = alpha * (active if alpha.ndim == active.ndim else active[..., None])
        blocks = _blocks((q, k, v), 1 - forgotten, 2 * theta * active)
        reads, errors, matrix = _scan(*blocks, state.weights[0].flatten(0, 1))
        reads, errors = reads[:, :time] * real[..., None], errors[:, :time] * real[..., None]
        loss = errors.square().sum(-1)
        norm = 2 * (loss.sqrt() * k.norm(dim=-1)).detach()
    weights = (matrix.unflatten(0, (batch, -1)),)
    count = time if mask is None else mask.sum(1)
    state = state.replace(weights=weights, chunk_weights=weights, position=state.position + count)
    surprise = Surprise(from_rows(loss, batch), from_rows(norm, batch))
    trace = make_trace(surprise, Decision(acts, acts, acts))
    return from_rows(reads, batch).to(result_dtype), state, trace


def as_gated_delta(
    tokens: tuple[Tensor, Tensor, Tensor], gates: Gates
) -> tuple[tuple[Tensor, Tensor, Tensor], Gates]:
    """Tokens and gates with which our rule is Gated DeltaNet's.

    It takes the error at the decayed memory, ours before the decay. With 2 theta = beta (1 - alpha)
    and v / (1 - alpha) in place of v, both are the same.
    """
    queries, keys, values = tokens
    decay = (1 - gates.forget_gate).clamp_min(SMALLEST_DECAY)
    gates = gates._replace(step_size=gates.step_size * decay)
    return (queries, keys, values / decay[..., None].to(values.dtype)), gates


def _per_row(mask: Tensor, rows: Tensor) -> Tensor:
    """`[batch time]` -> one number per token and head, `[batch*heads time]`."""
    return mask.repeat_interleave(len(rows) // len(mask), dim=0).to(rows.dtype)


def _blocks(
    tokens: tuple[Tensor, Tensor, Tensor], keep: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`[n blocks size ...]`, filled up with tokens that change nothing."""
    time = rate.shape[1]
    size = min(BLOCK, time)
    if keep.ndim > rate.ndim:
        size = 1 << (size - 1).bit_length()
    missing = -time % size

    def cut(t: Tensor, value: float = 0.0) -> Tensor:
        padding = (0, missing) if t.ndim == 2 else (0, 0, 0, missing)
        return functional.pad(t, padding, value=value).unflatten(1, (-1, size))

    q, k, v = map(cut, tokens)
    return q, k, v, cut(keep, 1.0), cut(rate)


class _Met(NamedTuple):
    """What forgetting leaves of the writes of a block, and of its start."""

    keys: Tensor
    """A (k_t . k_s) for the errors, t > s. `[n blocks size size]`"""
    queries: Tensor
    """A[t, s] (q_t . k_s) for the reads, t >= s."""
    keys_at_start: Tensor
    """Keys as the block's start meets them when their errors are taken. `[n blocks size K]`"""
    to_here: Tensor
    """What is left of the start after each token. `[n blocks size 1 or K]`"""
    to_end: Tensor
    """What is left of each write at the block's end. `[n blocks size 1 or K]`"""


def _met(q: Tensor, k: Tensor, keep: Tensor) -> _Met:
    """With one forget gate per token: errors before forgetting."""
    left = differentiable_products(keep.flatten(0, 1)).unflatten(0, keep.shape[:2])
    beta = left[..., 0] * keep[..., :1]
    before = functional.pad(left[..., :-1, :], (0, 0, 1, 0))
    beta_before = functional.pad(beta[..., :-1], (1, 0), value=1.0)
    return _Met(
        before * (k @ k.mT),
        left * (q @ k.mT),
        beta_before[..., None] * k,
        beta[..., None],
        left[..., -1, :, None],
    )


def _met_by_channel(q: Tensor, k: Tensor, keep: Tensor) -> _Met:
    """With one forget gate per channel: errors after forgetting.

    `sum_c k_t[c] A[t, s][c] k_s[c]` is no matmul, but for a border between s and t it is: A is the
    product up to the border times that from it on. So neighbouring runs of tokens meet at their
    border, run by run of 1, 2, 4, ... tokens: products of gates only, no logarithm, no division.
    """
    size = k.shape[2]
    asked = torch.stack((k, q), dim=2)  # [n blocks 2 size K]
    to_here, to_end = keep[..., None, :], torch.ones_like(keep)[..., None, :]
    met = (asked * k[:, :, None]).sum(-1)[..., None, None]  # [n blocks 2 runs length length]
    length = 1
    while length < size:
        parts = (asked * to_here.flatten(2, 3)[:, :, None], k * to_end.flatten(2, 3))
        later = parts[0].unflatten(3, (-1, 2, length))[..., 1, :, :]
        earlier = parts[1].unflatten(2, (-1, 2, length))[:, :, None, :, 0]
        across = later @ earlier.mT
        first, second = met[..., ::2, :, :], met[..., 1::2, :, :]
        above = torch.cat((first, torch.zeros_like(across)), dim=-1)
        met = torch.cat((above, torch.cat((across, second), dim=-1)), dim=-2)
        whole = to_here[..., -1:, :]
        to_end = torch.cat((to_end[:, :, ::2] * whole[:, :, 1::2], to_end[:, :, 1::2]), dim=3)
        to_here = torch.cat((to_here[:, :, ::2], to_here[:, :, 1::2] * whole[:, :, ::2]), dim=3)
        length *= 2
    to_here, to_end = to_here.flatten(2, 3), to_end.flatten(2, 3)
    keys, queries = met[..., 0, :, :].unbind(2)
    return _Met(keys, queries, to_here * k, to_here, to_end)


def _scan(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor, rate: Tensor, matrix: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Reads and errors of all tokens, and the matrix behind the last one."""
    met = _met(q, k, keep) if keep.ndim == rate.ndim else _met_by_channel(q, k, keep)
    system = (met.keys * rate[..., None, :]).tril(-1)
    wanted = torch.cat((v, met.keys_at_start), dim=-1)
    eye = torch.eye(rate.shape[-1], dtype=k.dtype, device=k.device)
    solved = torch.linalg.solve_triangular(system + eye, wanted, upper=False, unitriangular=True)
    from_values, from_start = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    mix = met.queries * rate[..., None, :]
    written = (met.to_end * rate[..., None]) * k
    started = met.to_here * q
    reads, errors = [], []
    for block in range(rate.shape[1]):
        error = from_values[:, block] - from_start[:, block] @ matrix.mT
        reads.append(started[:, block] @ matrix.mT + mix[:, block] @ error)
        errors.append(error)
        matrix = met.to_here[:, block, -1:] * matrix + error.mT @ written[:, block]
    return torch.cat(reads, dim=1), torch.cat(errors, dim=1), matrix
