"""The exact online rule of a single matrix without momentum, in whole blocks of tokens.

    e_t = v_t - M_{t-1} k_t
    M_t = (1 - alpha_t) M_{t-1} + 2 theta_t e_t k_t^T

This is `scan_memory` with chunk size 1, one layer and eta = 0 (tests/ops/test_delta.py), and what
the delta rule and its gated form are (`titans.layers.memory_config`). In a block that starts at M,
with A[t, s] the product of 1 - alpha behind s up to t, and beta_t the product up to t,

    e_t + sum_{s<t} A[t-1, s] 2 theta_s (k_s . k_t) e_s = v_t - beta_{t-1} M k_t

so all errors of a block solve one unit lower-triangular system (the WY form of DeltaNet).
"""

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
"""Tokens per triangular system. Changes the speed, not the result."""


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
        blocks = _blocks((q, k, v), 1 - alpha * active, 2 * theta * active)
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


def _per_row(mask: Tensor, rows: Tensor) -> Tensor:
    """`[batch time]` -> one number per token and head, `[batch*heads time]`."""
    return mask.repeat_interleave(len(rows) // len(mask), dim=0).to(rows.dtype)


def _blocks(
    tokens: tuple[Tensor, Tensor, Tensor], keep: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`[n blocks size ...]`, filled up with tokens that change nothing."""
    time = keep.shape[1]
    size = min(BLOCK, time)
    missing = -time % size
    q, k, v = (functional.pad(t, (0, 0, 0, missing)).unflatten(1, (-1, size)) for t in tokens)
    keep = functional.pad(keep, (0, missing), value=1.0).unflatten(1, (-1, size))
    rate = functional.pad(rate, (0, missing)).unflatten(1, (-1, size))
    return q, k, v, keep, rate


def _scan(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor, rate: Tensor, matrix: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Reads and errors of all tokens, and the matrix behind the last one."""
    size = keep.shape[-1]
    left = differentiable_products(keep.flatten(0, 1)).unflatten(0, keep.shape[:2])
    beta = left[..., 0] * keep[..., :1]
    before = functional.pad(left[..., :-1, :], (0, 0, 1, 0))
    beta_before = functional.pad(beta[..., :-1], (1, 0), value=1.0)
    system = (before * (k @ k.mT) * rate[..., None, :]).tril(-1)
    wanted = torch.cat((v, beta_before[..., None] * k), dim=-1)
    eye = torch.eye(size, dtype=k.dtype, device=k.device)
    solved = torch.linalg.solve_triangular(system + eye, wanted, upper=False, unitriangular=True)
    from_values, from_start = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    mix = left * (q @ k.mT) * rate[..., None, :]
    written = (left[..., -1, :] * rate)[..., None] * k
    started = beta[..., None] * q
    reads, errors = [], []
    for block in range(keep.shape[1]):
        error = from_values[:, block] - from_start[:, block] @ matrix.mT
        reads.append(started[:, block] @ matrix.mT + mix[:, block] @ error)
        errors.append(error)
        matrix = beta[:, block, -1, None, None] * matrix + error.mT @ written[:, block]
    return torch.cat(reads, dim=1), torch.cat(errors, dim=1), matrix
