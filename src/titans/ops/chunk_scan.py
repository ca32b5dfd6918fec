"""The loop over chunks as one autograd function with a hand-written backward.

Forward keeps only the memory at chunk borders; backward goes through the chunks in reverse,
recomputes each from its border, and applies the closed-form derivative of `ops.chunk_math`.
So memory grows by one set of weights per border, not by the activations of every token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from titans.ops import chunk_math as cm
from titans.ops.options import ScanOptions
from titans.ops.write_control import apply_verdict, apply_verdict_backward, judge_writes

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
    load: Tensor
    loss: Tensor | None
    grad_norm: Tensor | None


def chunk_start(packed: list[Tensor], base: list[Tensor] | None) -> list[Tensor]:
    """The weights where a fresh chunk takes its gradients."""
    weights = [both[..., : both.shape[-1] // 2] for both in packed]
    return weights if base is None else [w + b for w, b in zip(weights, base, strict=True)]


def chunk_forward(
    tokens: Tokens,
    load: Tensor,
    packed: list[Tensor],
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    plan: Plan,
) -> ChunkResult:
    """Write and read one chunk."""
    biased, options = list(plan.biased), plan.options
    if start is None:
        start = chunk_start(packed, base)
    recall = cm.recall_keys(tokens.keys, tokens.values, start, biased, options)
    verdict = judge_writes(recall, tokens.active, options, plan.want_surprise)
    gates, load = apply_verdict(tokens.alpha, tokens.eta, tokens.theta, load, verdict, options)
    mixed = cm.coefficients(gates)
    rows = cm.read_rows(mixed, gates.theta, options)
    read = cm.read_memory(tokens.queries, recall, rows, packed, base, biased)
    outputs = read.pre[-1] + tokens.queries if options.residual else read.pre[-1]
    after = cm.carry_state(packed, recall, mixed, gates.theta)
    return ChunkResult(outputs, after, load, verdict.loss, verdict.grad_norm)


class ChunkGrads(NamedTuple):
    """The derivative of `chunk_forward`."""

    tokens: Tokens
    load: Tensor
    packed: list[Tensor]
    start: list[Tensor] | None
    base: list[Tensor] | None


def chunk_backward(
    grad_outputs: Tensor,
    grad_loss: Tensor | None,
    grad_packed: list[Tensor],
    grad_load: Tensor,
    grad_start: list[Tensor] | None,
    tokens: Tokens,
    load: Tensor,
    packed: list[Tensor],
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    plan: Plan,
) -> ChunkGrads:
    """Recompute one chunk from its border and carry derivatives back through it."""
    biased, options = list(plan.biased), plan.options
    fresh = start is None
    if start is None:
        start = chunk_start(packed, base)
    recall = cm.recall_keys(tokens.keys, tokens.values, start, biased, options)
    verdict = judge_writes(recall, tokens.active, options, False)
    gates, _ = apply_verdict(tokens.alpha, tokens.eta, tokens.theta, load, verdict, options)
    mixed = cm.coefficients(gates)
    rows = cm.read_rows(mixed, gates.theta, options)
    read = cm.read_memory(tokens.queries, recall, rows, packed, base, biased)

    by_read = cm.read_memory_backward(grad_outputs, read, recall, rows, packed, base, biased)
    by_carry = cm.carry_state_backward(grad_packed, packed, recall, mixed, gates.theta)
    by_recall = cm.recall_keys_backward(
        [a.add_(b) for a, b in zip(by_read.inputs, by_carry.inputs, strict=True)],
        [a.add_(b) for a, b in zip(by_read.deltas, by_carry.deltas, strict=True)],
        grad_loss,
        recall,
        start,
        biased,
        options,
    )
    by_gates = _gates_backward(by_read.rows, by_carry, gates, mixed, options)
    d_alpha, d_eta, d_theta, d_load = apply_verdict_backward(
        (tokens.alpha, tokens.eta, tokens.theta, load),
        (*by_gates, grad_load),
        verdict,
        options,
    )

    d_packed = [a.add_(b) for a, b in zip(by_read.packed, by_carry.packed, strict=True)]
    d_start = _sum_lists(by_recall.start, grad_start)
    d_base = by_read.base
    if fresh and d_start is not None:
        for whole, part in zip(d_packed, d_start, strict=True):
            whole[..., : part.shape[-1]] += part
        if d_base is not None:
            d_base = [a + b for a, b in zip(d_base, d_start, strict=True)]
        d_start = None
    d_queries = by_read.queries + grad_outputs if options.residual else by_read.queries
    return ChunkGrads(
        Tokens(d_queries, by_recall.keys, by_recall.values, d_alpha, d_eta, d_theta, None),
        d_load,
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

    Inputs after the plan: the seven `Tokens`, the load, then per layer the packed weights and
    momentum, the open chunk's start weights (if resumed), the initial weights (if they matter).
    Outputs: outputs, loss, grad_norm, load, then per layer the packed memory after the last
    token and the weights at the start of the last piece.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor | None) -> tuple[Tensor, ...]:  # noqa: D102
        tokens, load, packed, start, base = _unpack(plan, tensors)
        run, _ = _chunk_functions(plan.options)
        outputs, losses, norms = [], [], []
        borders, since_border = [], TOKENS_PER_BORDER
        begin = 0
        last_start = start
        for index, length in enumerate(plan.pieces):
            if since_border >= TOKENS_PER_BORDER or index < 2:
                borders.append((index, begin, packed))
                since_border = 0
            since_border += length
            first = index == 0
            given = start if first and plan.resumed else None
            last_start = given
            fresh_load = load if first else torch.zeros_like(load)
            before = packed
            result = run(tokens.slice(begin, begin + length), fresh_load, packed, given, base, plan)
            packed, load = result.packed, result.load
            outputs.append(result.outputs)
            if plan.want_surprise:
                losses.append(result.loss)
                norms.append(result.grad_norm)
            begin += length
            if index == len(plan.pieces) - 1 and last_start is None:
                last_start = [w.clone() for w in chunk_start(before, base)]
        assert last_start is not None
        if last_start is start:
            last_start = [w.clone() for w in last_start]
        ctx.plan, ctx.borders = plan, borders
        ctx.save_for_backward(*tensors)
        output = torch.cat(outputs, dim=1)
        empty = output.new_zeros(0)
        loss = torch.cat(losses, dim=1) if losses else empty
        norm = torch.cat(norms, dim=1) if norms else empty.clone()
        ctx.mark_non_differentiable(norm)
        ctx.set_materialize_grads(False)
        return output, loss, norm, load, *packed, *last_start

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: D102
        plan: Plan = ctx.plan
        tokens, load, packed, start, base = _unpack(plan, ctx.saved_tensors)
        run, run_backward = _chunk_functions(plan.options)
        d_outputs, d_loss, _, d_load = grads[:4]
        d_packed = _or_zeros(grads[4 : 4 + plan.depth], packed)
        d_last_start = _or_none(grads[4 + plan.depth :], chunk_start(packed, base))
        d_load = torch.zeros_like(load) if d_load is None else d_load
        if d_outputs is None:
            shape = (*tokens.values.shape[:2], tokens.values.shape[-1])
            d_outputs = tokens.values.new_zeros(shape)
        d_tokens = [torch.empty_like(t) for t in tokens[:6]]
        d_base = [torch.zeros_like(b) for b in base] if base is not None else None
        d_start: list[Tensor] | None = None
        final = len(plan.pieces) - 1
        end = tokens.keys.shape[1]
        zero_load = torch.zeros_like(load)
        for number in range(len(ctx.borders) - 1, -1, -1):
            index, begin, memory = ctx.borders[number]
            stop = ctx.borders[number + 1][0] if number + 1 < len(ctx.borders) else final + 1
            # Replay from the border to every chunk of this stretch.
            memories = [memory]
            at = begin
            for piece in range(index, stop - 1):
                part = tokens.slice(at, at + plan.pieces[piece])
                first = piece == 0
                result = run(
                    part,
                    load if first else zero_load,
                    memories[-1],
                    start if first and plan.resumed else None,
                    base,
                    plan,
                )
                memories.append(result.packed)
                at += plan.pieces[piece]
            for piece in range(stop - 1, index - 1, -1):
                begin = end - plan.pieces[piece]
                first = piece == 0
                resumed = first and plan.resumed
                found = run_backward(
                    d_outputs[:, begin:end],
                    d_loss[:, begin:end] if d_loss is not None and plan.want_surprise else None,
                    d_packed,
                    d_load if piece == final else zero_load,
                    d_last_start if piece == final else None,
                    tokens.slice(begin, end),
                    load if first else zero_load,
                    memories[piece - index],
                    start if resumed else None,
                    base,
                    plan,
                )
                for whole, part in zip(d_tokens, found.tokens[:6], strict=True):
                    whole[:, begin:end] = part
                d_packed = found.packed
                if d_base is not None and found.base is not None:
                    d_base = [a.add_(b) for a, b in zip(d_base, found.base, strict=True)]
                if first:
                    d_load_in = found.load
                    d_start = found.start
                end = begin
        out: list[Tensor | None] = [None, *d_tokens, None, d_load_in, *d_packed]
        if plan.resumed:
            out += d_start if d_start is not None else [None] * plan.depth
        if plan.has_base:
            out += d_base if d_base is not None else []
        return tuple(out)


def _unpack(
    plan: Plan, tensors: tuple[Tensor | None, ...]
) -> tuple[Tokens, Tensor, list[Tensor], list[Tensor] | None, list[Tensor] | None]:
    tokens, load, rest = Tokens(*tensors[:7]), tensors[7], list(tensors[8:])  # type: ignore[arg-type]
    depth = plan.depth
    packed = rest[:depth]
    start = rest[depth : 2 * depth] if plan.resumed else None
    base = rest[-depth:] if plan.has_base else None
    return tokens, load, packed, start, base  # type: ignore[return-value]


def _or_zeros(grads: tuple[Tensor | None, ...], like: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, like, strict=True)]


def _or_none(grads: tuple[Tensor | None, ...], like: list[Tensor]) -> list[Tensor] | None:
    return None if all(g is None for g in grads) else _or_zeros(grads, like)
