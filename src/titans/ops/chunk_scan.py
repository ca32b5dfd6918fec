"""The loop over chunks as one autograd function with a hand-written backward.

Forward keeps the memory at chunk borders and a few vectors per token; backward goes through the
chunks in reverse and applies the closed-form derivative of `ops.chunk_math`. So memory grows by
one set of weights per border and never by a matrix per token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from titans.ops import chunk_math as cm
from titans.ops.options import ScanOptions
from titans.ops.write_control import judge_writes, project_on_gradients, stabilise

TOKENS_PER_BORDER = 16
"""Borders are kept at least this many tokens apart; between them, small chunks are replayed."""


class Tokens(NamedTuple):
    """Token-wise inputs, `[n time ...]` with n = batch x heads."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    alpha: Tensor
    eta: Tensor
    theta: Tensor
    active: Tensor | None
    """Zero where a token is a full no-op."""

    def slice(self, begin: int, end: int) -> "Tokens":
        """The tokens `begin` to `end`."""
        return Tokens(*(None if t is None else t[:, begin:end] for t in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Plan:
    """What a scan does, apart from its tensors."""

    pieces: tuple[int, ...]
    """Lengths of the chunks; the first may continue an open one, the last may stay open."""
    biased: tuple[bool, ...]
    """Per layer: does it have a bias?"""
    resumed: bool
    """The first piece continues an open chunk, whose start weights are given."""
    want_surprise: bool
    options: ScanOptions

    @property
    def depth(self) -> int:
        """Layers of the memory."""
        return len(self.biased)

    @property
    def has_base(self) -> bool:
        """Are weights kept as a difference from the initial ones?"""
        return self.options.forget_towards == "initial"


class ChunkResult(NamedTuple):
    """One chunk's output and the memory after it."""

    outputs: Tensor
    packed: list[Tensor]
    active: Tensor | None
    """Which tokens were not no-ops after all; None if none was."""
    scale: Tensor | None
    """The factor on theta that clipping, thresholds and the stabiliser came to."""
    loss: Tensor | None
    grad_norm: Tensor | None
    kept: cm.Kept


def chunk_start(packed: list[Tensor], base: list[Tensor] | None) -> list[Tensor]:
    """The weights where a fresh chunk takes its gradients."""
    weights = [both[..., : both.shape[-1] // 2] for both in packed]
    return weights if base is None else [w + b for w, b in zip(weights, base, strict=True)]


def acting_gates(tokens: Tokens, active: Tensor | None) -> tuple[Tensor, Tensor]:
    """alpha and eta, neutral (0 and 1) where a token is a no-op."""
    if active is None:
        return tokens.alpha, tokens.eta
    return tokens.alpha * active, 1 - (1 - tokens.eta) * active


def chunk_forward(
    tokens: Tokens,
    packed: list[Tensor],
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    plan: Plan,
) -> ChunkResult:
    """Write and read one chunk."""
    biased, options = list(plan.biased), plan.options
    at = chunk_start(packed, base) if start is None else start
    recall = cm.recall_keys(tokens.keys, tokens.values, at, biased, options)
    verdict = judge_writes(recall, tokens.active, options, plan.want_surprise)
    alpha, eta = acting_gates(tokens, verdict.active)
    mixed = cm.coefficients(alpha, eta, verdict.active)
    scale, squared = verdict.scale, verdict.grad_norm_squared
    theta = tokens.theta if scale is None else tokens.theta * scale
    if options.step_limit is not None:
        assert squared is not None
        moved = project_on_gradients(recall, packed, start, base)
        factor = stabilise(tokens.eta, theta, squared, recall, mixed, moved, options)
        scale = factor if scale is None else scale * factor
        theta = theta * factor
    rows = cm.read_rows(mixed, theta, options)
    read = cm.read_memory(tokens.queries, recall, rows, packed, base, biased)
    outputs = read.pre[-1] + tokens.queries if options.residual else read.pre[-1]
    after = cm.carry_state(packed, recall, mixed, theta)
    norm = squared.sqrt() if plan.want_surprise and squared is not None else None
    kept = cm.Kept(recall.pre, recall.back, recall.residue, read.pre[:-1], read.similar)
    return ChunkResult(outputs, after, verdict.active, scale, verdict.loss, norm, kept)


class ChunkGrads(NamedTuple):
    """The derivative of `chunk_forward`."""

    tokens: Tokens
    packed: list[Tensor]
    start: list[Tensor] | None
    base: list[Tensor] | None


class Incoming(NamedTuple):
    """Derivatives by what a chunk gave out."""

    outputs: Tensor
    loss: Tensor | None
    packed: list[Tensor]
    start: list[Tensor] | None
    """By the chunk's start weights, where they left the scan as part of an open chunk."""


def chunk_backward(
    grads: Incoming,
    tokens: Tokens,
    scale: Tensor | None,
    kept: cm.Kept,
    packed: list[Tensor],
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    plan: Plan,
) -> ChunkGrads:
    """Carry derivatives back through one chunk.

    `tokens.active` and `scale` are those that `chunk_forward` arrived at.
    """
    biased, options = list(plan.biased), plan.options
    fresh = start is None
    if start is None:
        start = chunk_start(packed, base)
    recall = cm.restore_recall(tokens.keys, kept, biased, options)
    alpha, eta = acting_gates(tokens, tokens.active)
    theta = tokens.theta if scale is None else tokens.theta * scale
    mixed = cm.coefficients(alpha, eta, tokens.active)
    rows = cm.read_rows(mixed, theta, options)
    read = cm.restore_read(tokens.queries, kept, biased)

    by_read = cm.read_memory_backward(grads.outputs, read, recall, rows, packed, base, biased)
    by_carry = cm.carry_state_backward(grads.packed, packed, recall, mixed, theta)
    by_recall = cm.recall_keys_backward(
        [a.add_(b) for a, b in zip(by_read.inputs, by_carry.inputs, strict=True)],
        [a.add_(b) for a, b in zip(by_read.deltas, by_carry.deltas, strict=True)],
        grads.loss,
        recall,
        start,
        biased,
        options,
    )
    d_alpha, d_eta, d_theta = _gates_backward(
        by_read.rows, by_carry, cm.GateValues(alpha, eta, theta, tokens.active), mixed, options
    )
    if tokens.active is not None:
        d_alpha, d_eta = d_alpha * tokens.active, d_eta * tokens.active
    if scale is not None:
        d_theta = d_theta * scale

    d_packed = [a.add_(b) for a, b in zip(by_read.packed, by_carry.packed, strict=True)]
    d_start = _sum_lists(by_recall.start, grads.start)
    d_base = by_read.base
    if fresh and d_start is not None:
        for whole, part in zip(d_packed, d_start, strict=True):
            whole[..., : part.shape[-1]] += part
        if d_base is not None:
            d_base = [a + b for a, b in zip(d_base, d_start, strict=True)]
        d_start = None
    d_queries = by_read.queries + grads.outputs if options.residual else by_read.queries
    return ChunkGrads(
        Tokens(d_queries, by_recall.keys, by_recall.values, d_alpha, d_eta, d_theta, None),
        d_packed,
        d_start,
        d_base,
    )


def _gates_backward(
    by_rows: cm.ReadRows,
    by_carry: cm.CarryGrads,
    gates: cm.GateValues,
    mixed: cm.Coefficients,
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
    d_alpha, d_eta = cm.coefficients_backward(
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


@lru_cache(maxsize=1)
def _compiled() -> tuple[Callable[..., ChunkResult], Callable[..., ChunkGrads]]:
    return torch.compile(chunk_forward, dynamic=False), torch.compile(chunk_backward, dynamic=False)


def _chunk_functions(
    options: ScanOptions,
) -> tuple[Callable[..., ChunkResult], Callable[..., ChunkGrads]]:
    return _compiled() if options.compiled else (chunk_forward, chunk_backward)


class ChunkScan(torch.autograd.Function):
    """All pieces of a plan, one after the other.

    Inputs after the plan: the seven `Tokens`, then per layer the packed weights and momentum,
    the open chunk's start weights (if resumed), the initial weights (if they matter).
    Outputs: outputs, loss, grad_norm, then per layer the packed memory after the last token and
    the weights at the start of the last piece.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor | None) -> tuple[Tensor, ...]:  # noqa: D102
        tokens, packed, start, base = _unpack(plan, tensors)
        run, _ = _chunk_functions(plan.options)
        results: list[ChunkResult] = []
        borders: list[Border] = []
        begin, since_border = 0, TOKENS_PER_BORDER
        given, before = start, packed
        for index, length in enumerate(plan.pieces):
            if since_border >= TOKENS_PER_BORDER:
                borders.append(Border(index, begin, packed))
                since_border = 0
            since_border += length
            given = start if index == 0 and plan.resumed else None
            before = packed
            result = run(tokens.slice(begin, begin + length), packed, given, base, plan)
            results.append(result._replace(packed=[]))
            packed, begin = result.packed, begin + length
        last_start = chunk_start(before, base) if given is None else given
        ctx.plan, ctx.borders = plan, borders
        ctx.judged = [(r.active, r.scale, r.kept) for r in results]
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        output = torch.cat([r.outputs for r in results], dim=1)
        loss = norm = output.new_zeros(0)
        if plan.want_surprise:
            loss = torch.cat([r.loss for r in results if r.loss is not None], dim=1)
            norm = torch.cat([r.grad_norm for r in results if r.grad_norm is not None], dim=1)
        norm = norm.clone()
        ctx.mark_non_differentiable(norm)
        return output, loss, norm, *packed, *(w.clone() for w in last_start)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # noqa: D102  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        tokens, packed, start, base = _unpack(plan, ctx.saved_tensors)
        run, run_backward = _chunk_functions(plan.options)
        d_outputs, d_loss = grads[:2]
        d_packed = _or_zeros(grads[3 : 3 + plan.depth], packed)
        d_start = _or_none(grads[3 + plan.depth :], chunk_start(packed, base))
        if d_outputs is None:
            d_outputs = torch.zeros_like(tokens.values)
        d_tokens = [torch.empty_like(t) for t in tokens[:6]]  # type: ignore[arg-type]
        d_base = [torch.zeros_like(b) for b in base] if base is not None else None
        end, stop = tokens.keys.shape[1], len(plan.pieces)
        d_first: list[Tensor] | None = None
        for border in reversed(ctx.borders):
            memories = _replay(border, stop, tokens, start, base, plan, run)
            for piece in range(stop - 1, border.piece - 1, -1):
                begin = end - plan.pieces[piece]
                active, scale, kept = ctx.judged[piece]
                by_loss = d_loss[:, begin:end] if d_loss is not None and d_loss.numel() else None
                last = piece == len(plan.pieces) - 1
                found = run_backward(
                    Incoming(d_outputs[:, begin:end], by_loss, d_packed, d_start if last else None),
                    tokens.slice(begin, end)._replace(active=active),
                    scale,
                    kept,
                    memories[piece - border.piece],
                    start if piece == 0 and plan.resumed else None,
                    base,
                    plan,
                )
                for whole, part in zip(d_tokens, found.tokens[:6], strict=True):
                    whole[:, begin:end] = part  # type: ignore[assignment]
                d_packed, d_first, end = found.packed, found.start, begin
                if d_base is not None and found.base is not None:
                    d_base = [a.add_(b) for a, b in zip(d_base, found.base, strict=True)]
            stop = border.piece
        by_start = (d_first or [None] * plan.depth) if plan.resumed else []
        return (None, *d_tokens, None, *d_packed, *by_start, *(d_base or []))


class Border(NamedTuple):
    """The memory as it stood before a piece."""

    piece: int
    begin: int
    packed: list[Tensor]


def _replay(
    border: Border,
    stop: int,
    tokens: Tokens,
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    plan: Plan,
    run: Callable[..., ChunkResult],
) -> list[list[Tensor]]:
    """The memory before each piece from a border up to `stop`."""
    memories, begin = [border.packed], border.begin
    for piece in range(border.piece, stop - 1):
        part = tokens.slice(begin, begin + plan.pieces[piece])
        given = start if piece == 0 and plan.resumed else None
        memories.append(run(part, memories[-1], given, base, plan).packed)
        begin += plan.pieces[piece]
    return memories


def _unpack(
    plan: Plan, tensors: tuple[Tensor | None, ...]
) -> tuple[Tokens, list[Tensor], list[Tensor] | None, list[Tensor] | None]:
    # Detached: `torch.compile` looks at the .grad of what it is given, and warns.
    plain = [None if t is None else t.detach() for t in tensors]
    tokens, rest, depth = Tokens(*plain[:7]), plain[7:], plan.depth  # type: ignore[arg-type]
    packed = rest[:depth]
    start = rest[depth : 2 * depth] if plan.resumed else None
    base = rest[-depth:] if plan.has_base else None
    return tokens, packed, start, base  # type: ignore[return-value]


def _or_zeros(grads: tuple[Tensor | None, ...], like: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, like, strict=True)]


def _or_none(grads: tuple[Tensor | None, ...], like: list[Tensor]) -> list[Tensor] | None:
    return None if all(g is None for g in grads) else _or_zeros(grads, like)
