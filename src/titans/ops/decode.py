"""One token at a time: the update of the memory formed explicitly, for decoding.

Equal to `ops.scan_memory` on a sequence of one (tests/ops/test_decode.py), and faster there.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from titans.ops import chunk_math as cm
from titans.ops import mixing
from titans.ops.checks import check_scan
from titans.ops.eager import eager
from titans.ops.layout import bias_pattern, pack, stack, unstack
from titans.ops.options import ScanOptions
from titans.ops.read import apply_layers
from titans.ops.state import Gates, MemoryState, Surprise
from titans.ops.write_control import Verdict, judge_writes, project_on_gradients, stabilise


@eager
def step(
    query: Float[Tensor, "batch heads key_dim"],
    key: Float[Tensor, "batch heads key_dim"],
    value: Float[Tensor, "batch heads value_dim"],
    gates: Gates,
    state: MemoryState,
    *,
    chunk_size: int,
    mask: Bool[Tensor, " batch"] | None = None,
    write_mask: Bool[Tensor, " batch"] | None = None,
    options: ScanOptions | None = None,
    return_surprise: bool = False,
) -> (
    tuple[Float[Tensor, "batch heads value_dim"], MemoryState]
    | tuple[Float[Tensor, "batch heads value_dim"], MemoryState, Surprise]
):
    """Absorb one token of every row and read the memory with its query.

    The arguments are those of `scan_memory` without the time axis (gates `[batch, heads]`).
    """
    options = options or ScanOptions()
    timed = [t[:, None] for t in (query, key, value)]
    timed_gates = Gates(*(g[:, None] for g in gates))
    timed_mask = None if mask is None else mask[:, None]
    timed_writes = None if write_mask is None else write_mask[:, None]
    check_scan(
        timed[0],
        timed[1],
        timed[2],
        timed_gates,
        state,
        chunk_size,
        timed_mask,
        timed_writes,
        options,
    )
    with torch.autocast(device_type=key.device.type, enabled=False):
        inputs = [t.to(state.dtype).flatten(0, 1) for t in (query, key, value, *gates)]
        if not options.momentum:
            inputs[4] = torch.zeros_like(inputs[4])
        output, surprise, state = _absorb(inputs, state, chunk_size, mask, write_mask, options)
    output = output.to(value.dtype)
    return (output, state, surprise) if return_surprise else (output, state)


def _absorb(
    inputs: list[Tensor],
    state: MemoryState,
    chunk_size: int,
    mask: Tensor | None,
    write_mask: Tensor | None,
    options: ScanOptions,
) -> tuple[Tensor, Surprise, MemoryState]:
    query, key, value, alpha, eta, theta = inputs
    batch, heads = state.batch, state.num_heads
    biased = bias_pattern(state.weights)
    opens = state.position % chunk_size == 0
    chunk_weights = _choose(opens, state.weights, state.chunk_weights)
    start = stack(chunk_weights)
    if options.gradient == "truncated":
        start = [w.detach() for w in start]
    recall = cm.recall_keys(key[:, None], value[:, None], start, list(biased), options)
    active = _active(theta, mask, write_mask, heads, options)
    alpha, eta, theta = (g[:, None] for g in (alpha, eta, theta))
    with torch.no_grad():
        verdict = judge_writes(recall, active, options, want_surprise=True)
        scale = _factor((alpha, eta, theta), verdict, recall, start, state, options)
    acting = verdict.active
    if acting is not None:
        alpha, eta = alpha * acting, 1 - (1 - eta) * acting
    theta = theta if scale is None else theta * scale

    weights, momentum = _write(state, recall, (alpha, eta, theta), acting, options)
    read_from = weights if options.read == "after" else stack(state.weights)
    output = apply_layers(query[:, None], read_from, biased)[:, 0]
    output = (output + query if options.residual else output).unflatten(0, (batch, heads))
    loss = cm.loss_value(recall.residue, options).view(batch, heads)
    assert verdict.grad_norm_squared is not None
    norm = verdict.grad_norm_squared.sqrt().view(batch, heads)

    new_weights = unstack(weights, biased, batch)
    closes = (state.position + 1) % chunk_size == 0
    after = state.replace(
        weights=new_weights,
        momentum=unstack(momentum, biased, batch),
        chunk_weights=_choose(closes, new_weights, chunk_weights),
        position=state.position + 1,
    )
    if mask is not None and not bool(mask.all()):
        output = torch.where(mask[:, None, None], output, 0.0)
        loss, norm = (torch.where(mask[:, None], x, 0.0) for x in (loss, norm))
        after = _keep_rows(mask, after, state)
    return output, Surprise(loss, norm), after


def _factor(
    gates: tuple[Tensor, Tensor, Tensor],
    verdict: Verdict,
    recall: cm.Recall,
    start: list[Tensor],
    state: MemoryState,
    options: ScanOptions,
) -> Tensor | None:
    """All factors on theta together."""
    scale = verdict.scale
    if options.step_limit is None:
        return scale
    alpha, eta, theta = gates
    base = stack(state.initial_weights) if options.forget_towards == "initial" else None
    assert verdict.grad_norm_squared is not None
    mixed = mixing.coefficients(alpha, eta, None)
    packed = pack(state, base, options.momentum)
    moved = project_on_gradients(recall, packed, start, base, options)
    theta = theta if scale is None else theta * scale
    factor = stabilise(eta, theta, verdict.grad_norm_squared, recall, mixed, moved, options)
    return factor if scale is None else scale * factor


def _write(
    state: MemoryState,
    recall: cm.Recall,
    gates: tuple[Tensor, Tensor, Tensor],
    active: Tensor | None,
    options: ScanOptions,
) -> tuple[list[Tensor], list[Tensor]]:
    """Eq. 13 and 14 on explicit matrices."""
    alpha, eta, theta = (g[..., None] for g in gates)
    pairs = zip(
        stack(state.weights),
        stack(state.momentum),
        stack(state.initial_weights),
        recall.deltas,
        recall.inputs,
        options.written_layers(len(recall.deltas)),
        strict=True,
    )
    weights, momentum = [], []
    for w, s, w0, delta, a, is_written in pairs:
        if not is_written:
            weights.append(w)
            momentum.append(s)
            continue
        pushed = torch.baddbmm(s * eta, (delta * theta).mT, a, alpha=-1)
        moved = torch.addcmul(w, w if options.forget_towards == "zero" else w - w0, alpha, value=-1)
        added = pushed if active is None else pushed * active[..., None]
        weights.append(moved + added)
        momentum.append(pushed if options.momentum else s)
    return weights, momentum


def _active(
    theta: Tensor,
    mask: Tensor | None,
    write_mask: Tensor | None,
    heads: int,
    options: ScanOptions,
) -> Tensor | None:
    active = None
    for rows in (mask, write_mask):
        if rows is not None:
            rows = rows.repeat_interleave(heads)
            active = rows if active is None else active & rows
    if options.write_threshold is not None:
        strong = theta >= options.write_threshold
        active = strong if active is None else active & strong
    return None if active is None else active.to(theta.dtype)[:, None]


def _choose(rows: Tensor, yes: tuple[Tensor, ...], no: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Weights row by row, without a copy when all rows agree."""
    if bool(rows.all()):
        return yes
    if not bool(rows.any()):
        return no
    return tuple(
        torch.where(rows.view(-1, *[1] * (y.ndim - 1)), y, n) for y, n in zip(yes, no, strict=True)
    )


def _keep_rows(mask: Tensor, new: MemoryState, old: MemoryState) -> MemoryState:
    """The new state where `mask`, the old one elsewhere."""
    fresh, stale = new.named_tensors(), old.named_tensors()
    return MemoryState.from_named_tensors(
        {
            name: torch.where(mask.view(-1, *[1] * (t.ndim - 1)), t, stale[name])
            for name, t in fresh.items()
        }
    )
