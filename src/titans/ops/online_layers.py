"""A deep memory that no gates can drive away: the online rule in every layer.

Backpropagation at the chunk's start says only where the output of each layer should go; the layer
is then a matrix that learns `its input -> that target` token by token (`ops.online`, bounded form).
Writes of a chunk see each other, and every layer has a matrix's bound.

    a_0 = k,  z_l = W_l a_{l-1},  a_l = silu(z_l)                            at the chunk's start
    e = v - limit(z_L, 2 |v|),  d_L = e,  d_l = silu'(z_l) * (W_{l+1}^T d_{l+1})
    target_l = limit(z_l + limit(m_l, |z_l|), 2 sqrt(width_l)),  m_l = d_l |a_{l-1}|^2 |e|^2 / G

with G = sum_l |d_l|^2 |a_{l-1}|^2 and limit(x, r) = x shortened to r. For the last layer the limits
are |z_L| + |v| and 2 |v|. All m_l together follow the gradient and undo, to first order, the error
of their token; 2 theta is the share of it that is written. With one layer and no limit reached the
target is v at any chunk size: the online rule itself.

Outer gradients leave out the derivative of the Jacobian (Gauss-Newton: W and silu' in d are
constants), so their norm stays flat over thousands of tokens.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from titans.ops.checks import check_scan
from titans.ops.nonfinite import contained
from titans.ops.online import check_online, make_rates, scan_rows
from titans.ops.operator import as_operator
from titans.ops.options import ScanOptions
from titans.ops.scan import ChunkRun
from titans.ops.scan.layout import from_rows, to_rows
from titans.ops.scan.plan import align_rows
from titans.ops.state import Gates, MemoryState, Surprise, Trace
from titans.ops.writes import Decision, make_trace, may_act

SHORTEST = 0.1
"""A layer's input counts as at least so long, so that what is written for it is bounded."""
SMALLEST = 1e-12
"""Divisors are kept above this."""
LARGEST = 2.0
"""Answers and targets are limited to this many lengths of a value, or of a hidden layer."""


@as_operator
@contained
def scan_layers(
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
    """Write `keys -> values` into every layer and read after each token; see `scan_memory`.

    The loss is that of the limited answer, so it is at most `(1 + LARGEST)^2 |v|^2`.
    """
    options = options or ScanOptions()
    check_scan(queries, keys, values, gates, state, chunk_size, mask, write_mask, options)
    check_online(options)
    if any(w.ndim == 3 for w in state.weights):
        raise ValueError("scan_layers knows no biases; use a memory without them")
    with torch.autocast(device_type=keys.device.type, enabled=False):
        tokens = [t.to(state.dtype) for t in (queries, keys, values, *gates)]
        active = may_act(tokens[5], options, write_mask=write_mask)
        active = None if active is None else active.to(state.dtype)
        run = _LayerRun(chunk_size, options)
        rows = align_rows(mask, keys.shape[1], state.position, chunk_size)
        if rows is None:
            outputs, state, trace = run.uniform(tokens, active, state)
        else:
            outputs, state, trace = run.ragged(tokens, active, state, rows)
    return outputs.to(values.dtype), state, trace


class _LayerRun(ChunkRun):
    """The chunks of one call, one after the other."""

    def _scan(
        self,
        tokens: list[Tensor],
        active: Tensor | None,
        state: MemoryState,
        pieces: tuple[int, ...],
        resumed: bool,
    ) -> tuple[Tensor, MemoryState, Trace, tuple[Tensor, ...]]:
        """Run pieces of aligned rows; also give the weights at the start of the last one."""
        batch = state.batch
        acting = None if active is None else to_rows(active)
        arguments = [*map(to_rows, tokens)] + ([] if acting is None else [acting])
        base = [w.flatten(0, 1) for w in state.initial_weights]
        if self.options.forget_towards == "zero":
            base = [torch.zeros_like(w) for w in base]
        weights = [w.flatten(0, 1) for w in state.weights]
        backlog = [s.flatten(0, 1) for s in state.momentum]
        start = [w.flatten(0, 1) for w in state.chunk_weights] if resumed else weights
        reads, losses, norms = [], [], []
        for number, piece in enumerate(zip(*(t.split(pieces, 1) for t in arguments), strict=True)):
            start = weights if number else start
            writes = _targets(piece[1], piece[2], start)
            losses.append(writes.loss)
            norms.append(writes.gradient_norm)
            read, weights, backlog = self._write(piece, writes, base, weights, backlog)
            reads.append(read)

        def shaped(stacked: list[Tensor]) -> tuple[Tensor, ...]:
            return tuple(w.unflatten(0, (batch, -1)) for w in stacked)

        state = state.replace(weights=shaped(weights), momentum=shaped(backlog))
        loss, norm, output = (from_rows(torch.cat(t, dim=1), batch) for t in (losses, norms, reads))
        trace = make_trace(Surprise(loss, norm), Decision(active, active, active))
        return output, state, trace, shaped(start)

    def _write(
        self,
        piece: tuple[Tensor, ...],
        writes: "_Writes",
        base: list[Tensor],
        weights: list[Tensor],
        backlog: list[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Write a piece of a chunk into every layer, and read it, layer by layer."""
        read, _, _, alpha, eta, theta = piece[:6]
        active = piece[6] if len(piece) > 6 else None
        momentum = self.options.momentum
        rates = make_rates(alpha, eta if momentum else None, 2 * theta, active, "bounded")
        new, kept = [], []
        for layer, (w, s, w0) in enumerate(zip(weights, backlog, base, strict=True)):
            read = functional.silu(read) if layer else read
            size = writes.inputs[layer].norm(dim=-1, keepdim=True).clamp_min(SHORTEST)
            key, value = writes.inputs[layer] / size, writes.targets[layer] / size
            begin = torch.cat((w - w0, s), dim=1) if momentum else w - w0
            out, _, end = scan_rows(
                read,
                key,
                value - key @ w0.mT,
                rates,
                begin,
                read_before=self.options.read == "before",
                block=key.shape[1],
            )
            read = out + read @ w0.mT
            moved, *rest = end.split(w.shape[1], dim=1)
            new.append(moved + w0)
            kept.append(rest[0] if rest else s)
        return read, new, kept


class _Writes(NamedTuple):
    """What every layer is to learn from the tokens of a chunk."""

    inputs: list[Tensor]
    targets: list[Tensor]
    loss: Tensor
    gradient_norm: Tensor


def _targets(key: Tensor, value: Tensor, weights: list[Tensor]) -> _Writes:
    """The module's formulas, at the weights of the chunk's start."""
    inputs, outputs = [key], []
    for layer, w in enumerate(weights):
        if layer:
            inputs.append(functional.silu(outputs[-1]))
        outputs.append(inputs[-1] @ w.mT)
    length = _size(value)
    error = value - _limited(outputs[-1], LARGEST * length)
    deltas = [error]
    for w, z in zip(weights[:0:-1], outputs[-2::-1], strict=True):
        deltas.insert(0, (deltas[0] @ w.detach()) * _silu_slope(z.detach()))
    squares = [a.square().sum(-1, keepdim=True) for a in inputs]
    total = sum(d.square().sum(-1, keepdim=True) * a for d, a in zip(deltas, squares, strict=True))
    assert isinstance(total, Tensor)
    loss = error.square().sum(-1, keepdim=True)
    share = loss / total.clamp_min(SMALLEST)
    targets = []
    for layer, (d, a, z) in enumerate(zip(deltas, squares, outputs, strict=True)):
        is_last = layer == len(weights) - 1
        furthest = (_size(z) + length if is_last else _size(z)).detach()
        move = _limited(d * a * share, furthest)
        bound = LARGEST * (length if is_last else z.shape[-1] ** 0.5)
        targets.append(_limited(z + move, bound))
    return _Writes(inputs, targets, loss[..., 0], 2 * total[..., 0].detach().sqrt())


def _size(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _limited(x: Tensor, length: Tensor | float) -> Tensor:
    """`x`, shortened to `length` where it is longer."""
    return x * (length / _size(x).clamp_min(SMALLEST)).clamp_max(1.0)


def _silu_slope(z: Tensor) -> Tensor:
    gate = torch.sigmoid(z)
    return gate * (1 + z * (1 - gate))
