"""One token at a time: the update of the memory formed explicitly, for decoding.

Equal to `ops.scan_memory` on a sequence of one (tests/ops/test_step.py), and faster there.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from titans.ops.checks import check_scan
from titans.ops.derivatives import is_transformed
from titans.ops.nonfinite import not_finite
from titans.ops.operator import as_operator
from titans.ops.options import ScanOptions
from titans.ops.read import apply_layers
from titans.ops.scan import mixing, scan_memory
from titans.ops.scan.chunk import Gradients, grad_norm, loss_value, take_gradients
from titans.ops.scan.layout import bias_pattern, pack, stack, unstack
from titans.ops.scan.stabiliser import project_on_gradients, stabilise
from titans.ops.state import Gates, MemoryState, Surprise, Trace
from titans.ops.tree import where_rows
from titans.ops.writes import Decision, acting_gates, decide, make_trace, may_act, product


@as_operator
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
) -> tuple[Float[Tensor, "batch heads value_dim"], MemoryState, Trace]:
    """Absorb one token of every row and read the memory with its query.

    Arguments and results are those of `scan_memory` without the time axis (gates and trace are
    `[batch, heads]`).
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
    if is_transformed():
        found = scan_memory(
            timed[0],
            timed[1],
            timed[2],
            timed_gates,
            state,
            chunk_size=chunk_size,
            mask=timed_mask,
            write_mask=timed_writes,
            options=options,
        )
        return found[0][:, 0], found[1], found[2].map(lambda t: t[:, 0])
    with torch.autocast(device_type=key.device.type, enabled=False):
        inputs = [t.to(state.dtype).flatten(0, 1) for t in (query, key, value, *gates)]
        if not options.momentum:
            inputs[4] = torch.zeros_like(inputs[4])
        if options.skip_nonfinite:
            bad = torch.stack([not_finite(t, 1) for t in inputs]).any(0)
            kept = ~bad.view(state.batch, -1).any(1)
            mask = kept if mask is None else mask & kept
        if write_mask is not None:
            # Zero times the numbers of what is not written would be NaN if they are.
            writes = write_mask.repeat_interleave(state.num_heads)[:, None]
            inputs[1:3] = [torch.where(writes | t.isfinite(), t, 0.0) for t in inputs[1:3]]
        active = may_act(gates.step_size.to(state.dtype), options, mask=mask, write_mask=write_mask)
        active = None if active is None else active.to(state.dtype)
        output, trace, after = _absorb(inputs, active, state, chunk_size, options)
        if mask is not None and not bool(mask.all()):
            output = torch.where(mask[:, None, None], output, 0.0)
            trace = trace.map(lambda t: torch.where(mask[:, None], t, torch.zeros_like(t)))
            after = where_rows(mask, after, state)
    return output.to(value.dtype), after, trace


def _absorb(
    inputs: list[Tensor],
    active: Tensor | None,
    state: MemoryState,
    chunk_size: int,
    options: ScanOptions,
) -> tuple[Tensor, Trace, MemoryState]:
    query, key, value, alpha, eta, theta = inputs
    batch, heads = state.batch, state.num_heads
    biased = bias_pattern(state.weights)
    opens = state.position % chunk_size == 0
    chunk_weights = _choose(opens, state.weights, state.chunk_weights)
    start = stack(chunk_weights)
    gradients = take_gradients(key[:, None], value[:, None], start, biased, options)
    loss = loss_value(gradients.residue, options)
    gates = (alpha[:, None], eta[:, None], theta[:, None])
    with torch.no_grad():
        norm = grad_norm(gradients, options)
        flat = None if active is None else active.flatten()[:, None]
        decision = decide(flat, loss.detach(), norm, options)
        if options.step_limit is not None:
            decision = _stabilised(decision, gates, gradients, start, state, options)
    acting = acting_gates(gates[0], gates[1], decision.active)
    theta = gates[2] if decision.factor is None else gates[2] * decision.factor

    weights, momentum = _write(state, gradients, (*acting, theta), decision.active, options)
    read_from = weights if options.read == "after" else stack(state.weights)
    output = apply_layers(query[:, None], read_from, biased)[:, 0]
    output = (output + query if options.residual else output).unflatten(0, (batch, heads))

    new_weights = unstack(weights, biased, batch)
    closes = (state.position + 1) % chunk_size == 0
    after = state.replace(
        weights=new_weights,
        momentum=unstack(momentum, biased, batch),
        chunk_weights=_choose(closes, new_weights, chunk_weights),
        position=state.position + 1,
    )
    surprise = Surprise(loss, norm)
    trace = make_trace(surprise, decision).map(lambda t: t.view(batch, heads))
    return output, trace, after


def _stabilised(
    decision: Decision,
    gates: tuple[Tensor, Tensor, Tensor],
    gradients: Gradients,
    start: list[Tensor],
    state: MemoryState,
    options: ScanOptions,
) -> Decision:
    """The decision with the stabiliser's factor, which treats the token as a chunk of one."""
    alpha, eta, theta = gates
    base = stack(state.initial_weights) if options.forget_towards == "initial" else None
    mixed = mixing.coefficients(alpha, eta, None)
    packed = pack(state, base, options.momentum)
    moved = project_on_gradients(gradients, packed, start, base, options)
    theta = theta if decision.factor is None else theta * decision.factor
    stable = stabilise(eta, theta, gradients, mixed, moved, options)
    return decision._replace(factor=product(decision.factor, stable))


def _write(
    state: MemoryState,
    gradients: Gradients,
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
        gradients.deltas,
        gradients.inputs,
        options.written_layers(len(gradients.deltas)),
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


def _choose(rows: Tensor, yes: tuple[Tensor, ...], no: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Weights row by row, without a copy when all rows agree."""
    if bool(rows.all()):
        return yes
    if not bool(rows.any()):
        return no
    return where_rows(rows, yes, no)
