"""The specification of everything beyond the paper's recurrence: masks and `ScanOptions`.

Built on `ops.reference`, equation by equation; without masks and options it is the same function.
It shares no code with `ops.scan`, which is tested against it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from titans.ops.options import ScanOptions
from titans.ops.reference import (
    Tensors,
    answer,
    choose,
    move,
    norm_of,
    per_weight,
    push,
    squared_error,
    surprise,
)
from titans.ops.state import Gates, MemoryState, Surprise, Trace


def scan_memory(
    queries: Float[Tensor, "batch time heads key_dim"],
    keys: Float[Tensor, "batch time heads key_dim"],
    values: Float[Tensor, "batch time heads value_dim"],
    gates: Gates,
    state: MemoryState,
    *,
    chunk_size: int,
    mask: Bool[Tensor, "batch time"] | None = None,
    write_mask: Bool[Tensor, "batch time"] | None = None,
    options: ScanOptions | None = None,
) -> tuple[Float[Tensor, "batch time heads value_dim"], MemoryState, Trace]:
    """`ops.scan_memory`, which describes the arguments, token by token."""
    everywhere = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
    mask = everywhere if mask is None else mask
    write_mask = everywhere if write_mask is None else write_mask
    scan = _Scan(chunk_size, options or ScanOptions())
    outputs: list[Tensor] = []
    traces: list[Tensors] = []
    for t in range(keys.shape[1]):
        token = _Token(*(x[:, t] for x in (queries, keys, values, *gates, mask, write_mask)))
        output, state, trace = scan.absorb(token, state)
        outputs.append(output)
        traces.append(trace)
    loss, norm, *rest = (torch.stack(same, dim=1) for same in zip(*traces, strict=True))
    return torch.stack(outputs, dim=1), state, Trace(Surprise(loss, norm), *rest)


class _Token(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor
    eta: Tensor
    theta: Tensor
    is_real: Tensor
    may_write: Tensor


class _Scan:
    """One token of every row, with options."""

    def __init__(self, chunk_size: int, options: ScanOptions) -> None:
        self.chunk_size, self.options = chunk_size, options

    def absorb(self, token: _Token, state: MemoryState) -> tuple[Tensor, MemoryState, Tensors]:
        """The read, the state after the token, and the fields of its trace."""
        options = self.options
        if not options.momentum:
            token = token._replace(eta=torch.zeros_like(token.eta))
        # A real token on a chunk border opens a new chunk.
        opens = token.is_real & (state.position % self.chunk_size == 0)
        start = choose(opens, state.weights, state.chunk_weights)
        at = tuple(w.detach() for w in start) if options.gradient == "truncated" else start
        loss, gradient = surprise(token.key, token.value, at, self.network, self.inner_loss)
        zeros = tuple(map(torch.zeros_like, gradient))
        gradient = self.written_layers(gradient, zeros)
        norm = norm_of(gradient)
        active, written = self.decide(token, loss.detach(), norm)
        factor = self.factor(token, written, norm, gradient, start, state)
        token = token._replace(theta=token.theta * factor)
        weights, momentum = self.write(token, active, gradient, state)

        read_from = weights if options.read == "after" else state.weights
        output = self.network(token.query, read_from)
        closes = token.is_real & ((state.position + 1) % self.chunk_size == 0)
        after = MemoryState(
            weights=weights,
            momentum=momentum,
            chunk_weights=choose(closes, weights, start),
            initial_weights=state.initial_weights,
            position=state.position + token.is_real.long(),
        )
        trace = (loss, norm, active, written, factor)
        nothing = tuple(map(torch.zeros_like, (output, *trace)))
        output, *trace = choose(token.is_real, (output, *trace), nothing)
        return output, after, tuple(trace)

    def network(self, x: Tensor, weights: Tensors) -> Tensor:
        """M(x), or M(x) + x."""
        return answer(x, weights) + x if self.options.residual else answer(x, weights)

    def inner_loss(self, error: Tensor) -> Tensor:
        """l(M; k, v), summed over features."""
        size, delta = error.abs(), self.options.huber_delta
        if self.options.loss == "huber":
            return torch.where(size <= delta, error.square(), 2 * delta * size - delta**2).sum(-1)
        if self.options.loss == "lp":
            return size.pow(self.options.lp_power).sum(-1)
        return squared_error(error)

    def written_layers(self, new: Tensors, old: Tensors) -> Tensors:
        """The new tensors of layers that are written, the old ones of all others."""
        is_weight = [t.ndim == 4 for t in old]
        layers = self.options.written_layers(sum(is_weight))
        # A bias belongs to the weight before it.
        numbers = [sum(is_weight[: place + 1]) - 1 for place in range(len(old))]
        return tuple(n if layers[i] else o for i, n, o in zip(numbers, new, old, strict=True))

    def decide(self, token: _Token, loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens act at all, and which of these add their gradient."""
        options = self.options
        active = (token.is_real & token.may_write)[:, None].expand_as(token.theta)
        if options.write_threshold is not None:
            active = active & (token.theta >= options.write_threshold)
        written = active
        if options.surprise_threshold is not None:
            measure = loss if options.surprise_measure == "loss" else norm
            written = active & (measure > options.surprise_threshold)
        return (written if options.skip_unsurprising else active), written

    def factor(
        self,
        token: _Token,
        written: Tensor,
        norm: Tensor,
        gradient: Tensors,
        start: Tensors,
        state: MemoryState,
    ) -> Tensor:
        """What theta is multiplied by."""
        factor = written.to(norm.dtype)
        if self.options.max_grad_norm is not None:
            tiny = torch.finfo(norm.dtype).tiny
            factor = factor * (self.options.max_grad_norm / norm.clamp_min(tiny)).clamp_max(1.0)
        if self.options.step_limit is not None:
            token = token._replace(theta=token.theta * factor)
            factor = factor * self.stabiliser(token, gradient, start, state)
        return factor

    @torch.no_grad()
    def stabiliser(
        self, token: _Token, gradient: Tensors, start: Tensors, state: MemoryState
    ) -> Tensor:
        """The factor on theta that keeps a chunk of stale gradients from overshooting.

        To first order, a write with step theta undoes `theta * gain` of its own error, and momentum
        repeats it, 1 / (1 - eta) times in the end. The chunk so far moves that error along the
        gradient by `<gradient, M_hat - M_c>`, where M_hat is where the memory would end without
        this write: all momentum added that is still to come, as if eta stayed as it is. The token
        writes the limited step times the share of the error that is left.
        """
        assert self.options.step_limit is not None
        eta, theta = token.eta, token.theta
        output = self.network(token.key, start) - token.value

        def loss(error: Tensor) -> Tensor:
            return self.inner_loss(error).sum()

        slope: Tensor = torch.func.grad(loss)(output)
        size = slope.square().sum(-1).clamp_min(torch.finfo(slope.dtype).tiny)
        gain = 2 * norm_of(gradient).square() / size
        largest = self.options.step_limit * (1 - eta)
        limit = (largest / (theta * gain).clamp_min(torch.finfo(theta.dtype).tiny)).clamp(max=1.0)
        # eta (1 + eta + eta^2 + ...); momentum is followed for a hundred tokens.
        in_the_end = eta * (1 + eta / (1 - eta).clamp_min(0.01))
        to_come = tuple(per_weight(in_the_end, s) * s for s in state.momentum)
        ends = self.forget(state, to_come, token.alpha)
        layers = zip(gradient, ends, start, strict=True)
        moved = sum((g * (end - w_c)).flatten(2).sum(-1) for g, end, w_c in layers)
        return limit * (1 + 2 * moved / size)

    def forget(self, state: MemoryState, momentum: Tensors, alpha: Tensor) -> Tensors:
        """Eq. 13 towards zero, or towards the initial weights."""
        if self.options.forget_towards == "zero":
            return move(state.weights, momentum, alpha)
        pairs = list(zip(state.weights, state.initial_weights, strict=True))
        moved = move(tuple(w - w0 for w, w0 in pairs), momentum, alpha)
        return tuple(m + w0 for m, (_, w0) in zip(moved, pairs, strict=True))

    def write(
        self, token: _Token, active: Tensor, gradient: Tensors, state: MemoryState
    ) -> tuple[Tensors, Tensors]:
        """M_t and S_t; nothing changes where a token is a no-op or a layer is not written."""
        momentum = push(state.momentum, gradient, token.eta, token.theta)
        weights = self.forget(state, momentum, token.alpha)
        weights = choose(active, weights, state.weights)
        momentum = choose(active, momentum, state.momentum)
        if not self.options.momentum:
            momentum = state.momentum
        return (
            self.written_layers(weights, state.weights),
            self.written_layers(momentum, state.momentum),
        )
