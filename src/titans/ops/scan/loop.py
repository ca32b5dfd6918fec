"""The loop over a scan's chunks, as one autograd function with a hand-written backward.

Forward keeps the memory at chunk borders and a few vectors per token; backward goes through the
groups of chunks in reverse. So memory grows by one set of weights per border and never by a matrix
per token.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from titans.ops.derivatives import is_recorded, through
from titans.ops.options import ScanOptions
from titans.ops.scan.chunk_backward import Kept
from titans.ops.scan.group import (
    GroupGrads,
    GroupResult,
    GroupTrace,
    Incoming,
    chunk_start,
    group_backward,
    group_forward,
)
from titans.ops.scan.layout import chunk_part
from titans.ops.scan.plan import SMALL_CHUNK, Plan, Tokens


@lru_cache(maxsize=1)
def _compiled() -> tuple[Callable[..., GroupResult], Callable[..., GroupGrads]]:
    return torch.compile(group_forward, dynamic=False), torch.compile(group_backward, dynamic=False)


def _group_functions(
    options: ScanOptions,
) -> tuple[Callable[..., GroupResult], Callable[..., GroupGrads]]:
    return _compiled() if options.compiled else (group_forward, group_backward)


class Border(NamedTuple):
    """What is kept of a group for its backward."""

    begin: int
    packed: list[Tensor]
    memories: list[Tensor] | None
    """The memory before each chunk, as joined rows; None where it is to be replayed."""
    active: Tensor | None
    factor: Tensor | None
    kept: Kept


class ChunkScan(torch.autograd.Function):
    """All pieces of a plan, one after the other.

    Inputs after the plan: the seven `Tokens`, then per layer the packed weights and momentum,
    the open chunk's start weights (if resumed), the initial weights (if they matter).
    Outputs: outputs, the four of `GroupTrace` (empty if None), then per layer the packed memory
    after the last token and the weights at the start of the last piece.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor | None) -> tuple[Tensor, ...]:  # noqa: D102
        run, _ = _group_functions(plan.options)
        borders: list[Border] = []
        keep = borders.append if any(ctx.needs_input_grad) else None
        found = _run_groups(plan, _detached(tensors), run, keep)
        ctx.plan, ctx.borders = plan, borders
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*found[2:5])
        return found

    @staticmethod
    def backward(  # noqa: D102  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        if is_recorded():
            plain = partial(plain_scan, plan)
            return (None, *through(plain, ctx.saved_tensors, grads))
        tokens, packed, start, base = _unpack(plan, _detached(ctx.saved_tensors))
        run, run_backward = _group_functions(plan.options)
        d_outputs, d_loss = grads[:2]
        d_packed = _or_zeros(grads[5 : 5 + plan.depth], packed)
        d_start = _or_none(grads[5 + plan.depth :], chunk_start(packed, base, plan))
        if d_outputs is None:
            d_outputs = torch.zeros_like(tokens.values)
        d_tokens = [torch.empty_like(t) for t in tokens[:6]]  # type: ignore[arg-type]
        d_base = [torch.zeros_like(b) for b in base] if base is not None else None
        end = tokens.keys.shape[1]
        for group, border in zip(reversed(plan.groups), reversed(ctx.borders), strict=True):
            part = tokens.slice(border.begin, end)
            given = start if group.start == 0 and plan.resumed else None
            memories = border.memories
            if memories is None:
                memories = run(part, len(group), border.packed, given, base, plan).memories
            by_loss = None if d_loss is None else d_loss[:, border.begin : end]
            found = run_backward(
                Incoming(d_outputs[:, border.begin : end], by_loss, d_packed, d_start),
                part._replace(active=border.active),
                border.factor,
                border.kept,
                memories,
                len(group),
                given,
                base,
                plan,
            )
            for whole, piece in zip(d_tokens, found.tokens[:6], strict=True):
                whole[:, border.begin : end] = piece  # type: ignore[assignment]
            d_packed, d_start, end = found.packed, found.start, border.begin
            if d_base is not None and found.base is not None:
                d_base = [a.add_(b) for a, b in zip(d_base, found.base, strict=True)]
        by_start = (d_start or [None] * plan.depth) if plan.resumed else []
        return (None, *d_tokens, None, *d_packed, *by_start, *(d_base or []))


def plain_scan(plan: Plan, *tensors: Tensor | None) -> tuple[Tensor, ...]:
    """`ChunkScan` in plain operations, for derivatives of any order and any kind."""
    return _run_groups(plan, tensors, group_forward, None)


def _run_groups(
    plan: Plan,
    tensors: tuple[Tensor | None, ...],
    run: Callable[..., GroupResult],
    keep: Callable[[Border], None] | None,
) -> tuple[Tensor, ...]:
    """All groups, one after the other; `keep` is given what the backward needs of each."""
    tokens, packed, start, base = _unpack(plan, tensors)
    outputs: list[Tensor] = []
    traces: list[GroupTrace] = []
    begin, given, last = 0, start, packed
    for group in plan.groups:
        length = plan.pieces[group.start]
        end = begin + length * len(group)
        given = start if group.start == 0 and plan.resumed else None
        found = run(tokens.slice(begin, end), len(group), packed, given, base, plan)
        if keep is not None:
            memories = found.memories if length >= SMALL_CHUNK else None
            keep(Border(begin, packed, memories, found.active, found.factor, found.kept))
        last = [chunk_part(m, len(group) - 1, len(group)) for m in found.memories]
        packed, begin = found.packed, end
        outputs.append(found.outputs)
        traces.append(found.trace)
    last_start = chunk_start(last, base, plan) if given is None else given
    output = torch.cat(outputs, dim=1)
    trace = [
        output.new_zeros(0) if same[0] is None else torch.cat(same, dim=1)
        for same in zip(*traces, strict=True)
    ]
    return output, *trace, *packed, *(w.clone() for w in last_start)


def _detached(tensors: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    # `torch.compile` looks at the .grad of what it is given, and warns.
    return tuple(None if t is None else t.detach() for t in tensors)


def _unpack(
    plan: Plan, plain: tuple[Tensor | None, ...]
) -> tuple[Tokens, list[Tensor], list[Tensor] | None, list[Tensor] | None]:
    tokens, rest, depth = Tokens(*plain[:7]), list(plain[7:]), plan.depth  # type: ignore[arg-type]
    packed = rest[:depth]
    start = rest[depth : 2 * depth] if plan.resumed else None
    base = rest[-depth:] if plan.has_base else None
    return tokens, packed, start, base  # type: ignore[return-value]


def _or_zeros(grads: tuple[Tensor | None, ...], like: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, like, strict=True)]


def _or_none(grads: tuple[Tensor | None, ...], like: list[Tensor]) -> list[Tensor] | None:
    return None if all(g is None for g in grads) else _or_zeros(grads, like)
