"""A few chunks of one length: written one after the other, read and differentiated together.

Small chunks have small matmuls; what does not depend on the order is done for a group at once.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.derivatives import is_recorded
from titans.ops.options import ScanOptions
from titans.ops.scan import mixing
from titans.ops.scan.chunk import (
    Gradients,
    ReadRows,
    carry_memory,
    constant,
    grad_norm,
    loss_value,
    read_chunk,
    read_rows,
    take_gradients,
)
from titans.ops.scan.chunk_backward import (
    CarryGrads,
    GradientGrads,
    Kept,
    ReadGrads,
    carry_memory_backward,
    read_chunk_backward,
    restore_gradients,
    restore_read,
    take_gradients_backward,
)
from titans.ops.scan.layout import (
    chunk_part,
    cut_rows,
    join_chunks,
    join_lists,
    join_or_none,
    join_tuples,
    part_of_tuple,
    repeat_rows,
    uncut_rows,
)
from titans.ops.scan.plan import Plan, Tokens
from titans.ops.scan.stabiliser import project_on_gradients, stabilise
from titans.ops.writes import acting_gates, decide, needs_loss, needs_norm, product


class GroupResult(NamedTuple):
    """The outputs of a few chunks and the memory after them."""

    outputs: Tensor
    packed: list[Tensor]
    memories: list[Tensor]
    """The memory before each chunk, per layer, as joined rows."""
    active: Tensor | None
    """Zero at full no-ops, as joined rows; None if there are none."""
    factor: Tensor | None
    """What theta was multiplied by, as joined rows; None: one everywhere."""
    trace: "GroupTrace"
    kept: Kept


class GroupTrace(NamedTuple):
    """What a group did with its tokens, `[n time]`."""

    loss: Tensor
    grad_norm: Tensor
    written: Tensor | None
    """Given only if surprise decides it."""
    factor: Tensor | None


def chunk_start(packed: list[Tensor], base: list[Tensor] | None, plan: Plan) -> list[Tensor]:
    """The weights where a fresh chunk takes its gradients."""
    weights = [both.chunk(plan.tracks, dim=-1)[0] for both in packed]
    return weights if base is None else [w + b for w, b in zip(weights, base, strict=True)]


class Written(NamedTuple):
    """One chunk after its writes, before its reads."""

    gradients: Gradients
    mixed: mixing.Coefficients
    theta: Tensor
    active: Tensor | None
    written: Tensor | None
    factor: Tensor | None
    grad_norm: Tensor | None


def write_chunk(
    tokens: Tokens,
    packed: list[Tensor],
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    plan: Plan,
    mixed: mixing.Coefficients | None,
    into: list[Tensor] | None,
) -> tuple[Written, list[Tensor]]:
    """Write one chunk; also give the memory after it, which is put `into` there if given.

    `mixed` is None where it hangs on what the tokens meet, and is made here.
    """
    biased, options = plan.biased, plan.options
    at = chunk_start(packed, base, plan) if start is None else start
    gradients = take_gradients(tokens.keys, tokens.values, at, biased, options)
    loss = loss_value(gradients.residue.detach(), options) if needs_loss(options) else None
    norm = grad_norm(gradients, options) if needs_norm(options) else None
    active, is_written, factor = decide(tokens.active, loss, norm, options)
    if mixed is None:
        mixed = mixing.coefficients(*acting_gates(tokens.alpha, tokens.eta, active), active)
    theta = tokens.theta if factor is None else tokens.theta * factor
    if options.step_limit is not None:
        met = constant((gradients, packed, start, base))
        moved = project_on_gradients(*met, options)
        now = constant((tokens.eta, theta, met[0], mixed))
        stable = stabilise(*now, moved, options)
        factor, theta = product(factor, stable), theta * stable
    after = carry_memory(packed, gradients, mixed, theta, plan.written, into)
    return Written(gradients, mixed, theta, active, is_written, factor, norm), after


def group_forward(
    tokens: Tokens,
    count: int,
    packed: list[Tensor],
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    plan: Plan,
) -> GroupResult:
    """Write `count` chunks of one length, one after the other, and read them all at once."""
    length = tokens.keys.shape[1] // count
    written = []
    mixed = _known_coefficients(tokens, count, plan.options)
    memories = _Memories(packed, count)
    for number in range(count):
        part = tokens.slice(number * length, (number + 1) * length)
        given = None if mixed is None else part_of_tuple(mixed, number, count)
        found, packed = write_chunk(part, packed, start, base, plan, given, memories.place())
        memories.add(packed)
        written.append(found)
    before = memories.joined()
    gradients = join_tuples([w.gradients for w in written])
    mixed = join_tuples([w.mixed for w in written]) if mixed is None else mixed
    theta = join_chunks([w.theta for w in written])
    queries = cut_rows(tokens.queries, count)
    rows = read_rows(mixed, theta, plan.options)
    read = read_chunk(
        queries, gradients, rows, before, repeat_rows(base, count), plan.biased, plan.written
    )
    outputs = read.pre[-1] + queries if plan.options.residual else read.pre[-1]
    kept = Kept(
        gradients.pre, gradients.back, gradients.residue, read.pre[:-1], read.similar, mixed
    )
    active = join_or_none([w.active for w in written])
    factor = join_or_none([w.factor for w in written])
    trace = _group_trace(gradients, written, factor, count, plan.options)
    return GroupResult(uncut_rows(outputs, count), packed, before, active, factor, trace, kept)


def _group_trace(
    gradients: Gradients,
    written: list[Written],
    factor: Tensor | None,
    count: int,
    options: ScanOptions,
) -> GroupTrace:
    norm = join_or_none([w.grad_norm for w in written])
    if norm is None:
        norm = grad_norm(gradients, options)
    by_surprise = None
    if options.surprise_threshold is not None:
        by_surprise = join_or_none([w.written for w in written])
    return GroupTrace(
        uncut_rows(loss_value(gradients.residue, options), count),
        uncut_rows(norm, count),
        None if by_surprise is None else uncut_rows(by_surprise, count),
        None if factor is None else uncut_rows(factor, count),
    )


class _Memories:
    """The memory before each chunk of a group, laid out as joined rows from the start.

    They are the largest tensors of a scan: to join them afterwards would copy them all.
    """

    def __init__(self, packed: list[Tensor], count: int) -> None:
        self.found, self.count = [packed], count
        self.rows: list[Tensor] | None = None
        # Compiled code plans its own memory; autograd's own derivative needs each as it was.
        if count > 1 and not torch.compiler.is_compiling() and not is_recorded():
            self.rows = [p.new_empty(count * p.shape[0], *p.shape[1:]) for p in packed]
            for row, p in zip(self.rows, packed, strict=True):
                chunk_part(row, 0, count).copy_(p)

    def place(self) -> list[Tensor] | None:
        """Where the memory after the next chunk belongs; None: anywhere."""
        number = len(self.found)
        if self.rows is None or number == self.count:
            return None
        return [chunk_part(row, number, self.count) for row in self.rows]

    def add(self, packed: list[Tensor]) -> None:
        """The memory after a chunk."""
        self.found.append(packed)

    def joined(self) -> list[Tensor]:
        """The memory before each chunk."""
        return join_lists(self.found[: self.count]) if self.rows is None else self.rows


def _known_coefficients(
    tokens: Tokens, count: int, options: ScanOptions
) -> mixing.Coefficients | None:
    """The coefficients of all chunks of a group, unless surprise decides which tokens act."""
    if options.surprise_threshold is not None and options.skip_unsurprising:
        return None
    gates = acting_gates(tokens.alpha, tokens.eta, tokens.active)
    alpha, eta, active = (
        None if gate is None else cut_rows(gate, count) for gate in (*gates, tokens.active)
    )
    assert alpha is not None and eta is not None
    return mixing.coefficients(alpha, eta, active)


class GroupGrads(NamedTuple):
    """The derivative of `group_forward`."""

    tokens: Tokens
    packed: list[Tensor]
    start: list[Tensor] | None
    base: list[Tensor] | None


class Incoming(NamedTuple):
    """Derivatives by what a group gave out."""

    outputs: Tensor
    loss: Tensor | None
    packed: list[Tensor]
    start: list[Tensor] | None
    """By the last chunk's start weights, where they left the scan as part of an open chunk."""


def group_backward(
    grads: Incoming,
    tokens: Tokens,
    factor: Tensor | None,
    kept: Kept,
    memories: list[Tensor],
    count: int,
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    plan: Plan,
) -> GroupGrads:
    """Carry derivatives back through a group: its reads at once, its writes from last to first.

    `tokens.active` and `factor` are those that `group_forward` arrived at, as joined rows.
    """
    biased, options = plan.biased, plan.options
    cut = Tokens(*(None if t is None else cut_rows(t, count) for t in tokens[:6]), tokens.active)  # type: ignore[arg-type]
    gradients = restore_gradients(cut.keys, kept, biased, options)
    alpha, eta = acting_gates(cut.alpha, cut.eta, cut.active)
    theta = cut.theta if factor is None else cut.theta * factor
    mixed = kept.mixed
    rows = read_rows(mixed, theta, options)
    read = restore_read(cut.queries, kept, biased)
    d_outputs = cut_rows(grads.outputs, count)
    by_read = read_chunk_backward(
        d_outputs, read, gradients, rows, memories, repeat_rows(base, count), biased, plan.written
    )
    d_base = None
    if by_read.base is not None:
        d_base = [b.unflatten(0, (count, -1)).sum(0) for b in by_read.base]

    writes = _WritesBackward(by_read, gradients, mixed, theta, base, plan, count)
    d_packed, d_start = grads.packed, grads.start
    for number in range(count - 1, -1, -1):
        loss = None
        if grads.loss is not None:
            loss = chunk_part(cut_rows(grads.loss, count), number, count)
        before = [chunk_part(m, number, count) for m in memories]
        d_packed, d_start = writes.chunk(number, before, start, d_packed, d_start, loss)
        if start is None and d_start is not None:
            _add_start(d_packed, d_base, d_start)
            d_start = None
    d_keys, d_values, by_carry = writes.joined()
    d_alpha, d_eta, d_theta = _gates_backward(
        by_read.rows, by_carry, mixing.GateValues(alpha, eta, theta, cut.active), mixed, options
    )
    if cut.active is not None:
        d_alpha, d_eta = d_alpha * cut.active, d_eta * cut.active
    if factor is not None:
        d_theta = d_theta * factor
    d_queries = by_read.queries + d_outputs if options.residual else by_read.queries
    found = [uncut_rows(d, count) for d in (d_queries, d_keys, d_values, d_alpha, d_eta, d_theta)]
    return GroupGrads(Tokens(*found, None), d_packed, d_start, d_base)  # pyright: ignore[reportCallIssue]


class _WritesBackward:
    """The writes of a group, differentiated chunk by chunk, last first."""

    def __init__(
        self,
        by_read: ReadGrads,
        gradients: Gradients,
        mixed: mixing.Coefficients,
        theta: Tensor,
        base: list[Tensor] | None,
        plan: Plan,
        count: int,
    ) -> None:
        self.by_read, self.gradients, self.mixed, self.theta = by_read, gradients, mixed, theta
        self.base, self.plan, self.count = base, plan, count
        self.found: list[tuple[GradientGrads, CarryGrads]] = []

    def chunk(
        self,
        number: int,
        packed: list[Tensor],
        start: list[Tensor] | None,
        d_packed: list[Tensor],
        d_start: list[Tensor] | None,
        d_loss: Tensor | None,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """Derivatives by the memory before a chunk, and by its start weights."""
        count = self.count
        gradients = part_of_tuple(self.gradients, number, count)
        mixed = part_of_tuple(self.mixed, number, count)
        theta = chunk_part(self.theta, number, count)
        written = self.plan.written
        by_carry = carry_memory_backward(d_packed, packed, gradients, mixed, theta, written)
        read_inputs, read_deltas, read_packed = (
            [chunk_part(x, number, count) for x in group]
            for group in (self.by_read.inputs, self.by_read.deltas, self.by_read.packed)
        )
        by_recall = take_gradients_backward(
            [a.add_(b) for a, b in zip(by_carry.inputs, read_inputs, strict=True)],
            [a.add_(b) for a, b in zip(by_carry.deltas, read_deltas, strict=True)],
            d_loss,
            gradients,
            chunk_start(packed, self.base, self.plan) if start is None else start,
            self.plan.biased,
            self.plan.options,
        )
        self.found.append((by_recall, by_carry))
        before = [a.add_(b) for a, b in zip(by_carry.packed, read_packed, strict=True)]
        return before, _sum_lists(by_recall.start, d_start)

    def joined(self) -> tuple[Tensor, Tensor, CarryGrads]:
        """Derivatives by keys and values, and by the gates at chunk ends, as joined rows."""
        recalls, carries = zip(*reversed(self.found), strict=True)
        numbers = [join_chunks([c[field] for c in carries]) for field in range(3, 8)]
        return (
            join_chunks([r.keys for r in recalls]),
            join_chunks([r.values for r in recalls]),
            CarryGrads([], [], [], *numbers),
        )


def _add_start(d_packed: list[Tensor], d_base: list[Tensor] | None, d_start: list[Tensor]) -> None:
    """A fresh chunk starts at the memory before it (and, where kept apart, the initial weights)."""
    for whole, part in zip(d_packed, d_start, strict=True):
        whole[..., : part.shape[-1]] += part
    if d_base is not None:
        for whole, part in zip(d_base, d_start, strict=True):
            whole += part


def _gates_backward(
    by_rows: ReadRows,
    by_carry: CarryGrads,
    gates: mixing.GateValues,
    mixed: mixing.Coefficients,
    options: ScanOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gather the derivatives by the mixing coefficients into those by alpha, eta and theta."""
    d_beta, d_u, d_writes = by_rows
    if options.read == "before":
        pad = torch.nn.functional.pad
        d_beta, d_u = pad(d_beta[:, 1:], (0, 1)), pad(d_u[:, 1:], (0, 1))
        d_writes = pad(d_writes[:, 1:], (0, 0, 0, 1))
    d_writes[:, -1] += by_carry.write
    d_beta[:, -1] += by_carry.beta
    d_u[:, -1] += by_carry.u
    d_theta = (d_writes * mixed.mix).sum(1) + by_carry.push * mixed.momentum[:, -1]
    d_alpha, d_eta = mixing.coefficients_backward(
        gates,
        mixed,
        d_writes * gates.theta[:, None, :],
        by_carry.push * gates.theta,
        d_beta,
        d_u,
        by_carry.carry,
    )
    return d_alpha, d_eta, d_theta


def _sum_lists(first: list[Tensor] | None, second: list[Tensor] | None) -> list[Tensor] | None:
    if first is None or second is None:
        return second if first is None else first
    return [a + b for a, b in zip(first, second, strict=True)]
