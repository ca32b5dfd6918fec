"""One chunk of the scan, backward: the derivative of `scan.chunk`, function by function.

Forward keeps vectors per token (`Kept`), from which the rest is restored without a matmul.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.options import ScanOptions
from titans.ops.scan.chunk import (
    Gradients,
    Read,
    ReadRows,
    fixed_weight,
    halves,
    has_momentum,
    loss_slope,
    scaled,
    silu,
    tracks_of,
    with_ones,
)
from titans.ops.scan.mixing import Coefficients


class Kept(NamedTuple):
    """What a chunk keeps for its backward: vectors per token, so that no matmul is repeated."""

    pre: list[Tensor]
    back: list[Tensor]
    residue: Tensor
    read_pre: list[Tensor]
    similar: list[Tensor]
    mixed: Coefficients


def restore_gradients(
    keys: Tensor, kept: Kept, biased: tuple[bool, ...], options: ScanOptions
) -> Gradients:
    """`take_gradients` again, from what was kept of it."""
    active = [silu(z) for z in kept.pre]
    inputs = [keys, *(a.value for a in active)]
    deltas = [back * a.slope for back, a in zip(kept.back, active, strict=True)]
    return Gradients(
        [with_ones(x, bias) for x, bias in zip(inputs, biased, strict=True)],
        kept.pre,
        kept.back,
        [*deltas, loss_slope(kept.residue, options)],
        kept.residue,
        [a.gate for a in active],
        [a.slope for a in active],
    )


def restore_read(queries: Tensor, kept: Kept, biased: tuple[bool, ...]) -> "Read":
    """`read_chunk` again, from what was kept of it (without the last layer's output)."""
    active = [silu(z) for z in kept.read_pre]
    inputs = [queries, *(a.value for a in active)]
    inputs = [with_ones(x, bias) for x, bias in zip(inputs, biased, strict=True)]
    return Read(inputs, kept.similar, kept.read_pre, [a.slope for a in active])


class ReadGrads(NamedTuple):
    """The derivative of a read."""

    queries: Tensor
    inputs: list[Tensor]
    deltas: list[Tensor]
    packed: list[Tensor]
    base: list[Tensor] | None
    rows: ReadRows


def read_chunk_backward(
    grad: Tensor,
    read: Read,
    gradients: Gradients,
    rows: ReadRows,
    packed: list[Tensor],
    base: list[Tensor] | None,
    biased: tuple[bool, ...],
    written: tuple[bool, ...],
) -> ReadGrads:
    """Carry the derivative by the outputs back through `read_chunk`."""
    depth = len(packed)
    d_inputs, d_deltas, d_packed, d_base = [], [], [], []
    d_beta = d_u = d_writes = None
    tracks = tracks_of(packed, gradients, rows.beta, rows.u)
    for layer in range(depth - 1, -1, -1):
        r, a, similar = read.inputs[layer], gradients.inputs[layer], read.similar[layer]
        if not written[layer]:
            d_weight = torch.bmm(grad.mT, r)
            d_packed.insert(0, _like_packed(d_weight, packed[layer]))
            if base is not None:
                d_base.insert(0, d_weight)
            d_inputs.insert(0, torch.zeros_like(a))
            d_deltas.insert(0, torch.zeros_like(gradients.deltas[layer]))
            d_r = torch.bmm(grad, fixed_weight(packed, base, layer, r))
            d_r = d_r[..., : r.shape[-1] - biased[layer]]
            grad = d_r * read.slopes[layer - 1] if layer else d_r
            continue
        d_deltas.insert(0, torch.bmm((similar * rows.writes).mT, grad).neg_())
        d_mixed = torch.bmm(grad, gradients.deltas[layer].mT).neg_()
        d_similar = d_mixed * rows.writes
        d_writes = (
            d_mixed.mul_(similar) if d_writes is None else d_writes.addcmul_(d_mixed, similar)
        )
        d_packed.insert(0, torch.bmm(grad.mT, scaled(r, tracks)))
        d_scaled = torch.bmm(grad, packed[layer])
        layer_beta, layer_u = _products(d_scaled, r)
        d_beta = layer_beta if d_beta is None else d_beta + layer_beta
        d_u = layer_u if d_u is None else d_u + layer_u
        d_r = _unscaled(d_scaled, tracks).baddbmm_(d_similar, a)
        if base is not None:
            d_base.insert(0, torch.bmm(grad.mT, r))
            d_r = d_r.baddbmm_(grad, base[layer])
        d_inputs.insert(0, torch.bmm(d_similar.mT, r))
        if biased[layer]:
            d_r = d_r[..., :-1]
        grad = d_r * read.slopes[layer - 1] if layer else d_r
    assert d_beta is not None and d_u is not None and d_writes is not None
    return ReadGrads(
        grad, d_inputs, d_deltas, d_packed, d_base or None, ReadRows(d_beta, d_u, d_writes)
    )


class CarryGrads(NamedTuple):
    """The derivative of a carry, by what `Coefficients` hold at the last token, and by theta."""

    inputs: list[Tensor]
    deltas: list[Tensor]
    packed: list[Tensor]
    write: Tensor
    push: Tensor
    beta: Tensor
    u: Tensor
    carry: Tensor


def carry_memory_backward(
    grads: list[Tensor],
    packed: list[Tensor],
    gradients: Gradients,
    mixed: Coefficients,
    theta: Tensor,
    written: tuple[bool, ...],
) -> CarryGrads:
    """Carry the derivative by the next chunk's start back through `carry_memory`."""
    write, push = mixed.mix[:, -1] * theta, mixed.momentum[:, -1] * theta
    beta, u, carry = (g[:, -1, None, None] for g in (mixed.beta, mixed.u, mixed.carry))
    d_inputs, d_deltas, d_packed = [], [], []
    d_beta, d_u, d_carry = (theta.new_zeros(theta.shape[0]) for _ in range(3))
    d_write, d_push = torch.zeros_like(theta), torch.zeros_like(theta)
    tracks, with_momentum = (
        tracks_of(packed, gradients, write, push),
        has_momentum(packed, gradients),
    )
    layers = zip(grads, packed, gradients.inputs, gradients.deltas, written, strict=True)
    for grad, both, a, delta, is_written in layers:
        if not is_written:
            d_inputs.append(torch.zeros_like(a))
            d_deltas.append(torch.zeros_like(delta))
            d_packed.append(grad.clone())
            continue
        d_deltas.append(torch.bmm(scaled(a, tracks), grad.mT).neg_())
        d_scaled = torch.bmm(delta, grad)
        d_inputs.append(_unscaled(d_scaled, tracks).neg_())
        by_write, by_push = _products(d_scaled, a)
        d_write -= by_write
        d_push -= by_push
        if not with_momentum:
            d_beta += (grad * both).sum((-2, -1))
            d_packed.append(grad * beta)
            continue
        momentum, d_weight = both.chunk(2, dim=-1)[1], grad.chunk(2, dim=-1)[0]
        by_beta, by_carry = (grad * both).sum(-2).chunk(2, dim=-1)
        d_beta += by_beta.sum(-1)
        d_carry += by_carry.sum(-1)
        d_u += (d_weight * momentum).sum((-2, -1))
        d_both = grad * halves(beta, carry, both)
        d_both.chunk(2, dim=-1)[1].addcmul_(d_weight, u)
        d_packed.append(d_both)
    return CarryGrads(d_inputs, d_deltas, d_packed, d_write, d_push, d_beta, d_u, d_carry)


def _products(d_scaled: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative of `scaled` by either factor, `[n b]` each; 0 if there is only one."""
    by_factor = (d_scaled.unflatten(-1, (-1, x.shape[-1])) * x.unsqueeze(-2)).sum(-1).unbind(-1)
    first = by_factor[0]
    return first, by_factor[1] if len(by_factor) > 1 else torch.zeros_like(first)


def _unscaled(d_scaled: Tensor, tracks: Tensor) -> Tensor:
    """The derivative of `scaled` by x."""
    if tracks.shape[-2] == 1:
        return d_scaled * tracks[..., 0]
    left, right = d_scaled.chunk(2, dim=-1)
    return torch.addcmul(left * tracks[..., 0, :], right, tracks[..., 1, :])


def _like_packed(d_weight: Tensor, packed: Tensor) -> Tensor:
    """The derivative by a weight and the momentum beside it, which the layer does not use."""
    missing = packed.shape[-1] - d_weight.shape[-1]
    return torch.nn.functional.pad(d_weight, (0, missing))


class GradientGrads(NamedTuple):
    """The derivative of `take_gradients`."""

    keys: Tensor
    values: Tensor
    start: list[Tensor] | None


def take_gradients_backward(
    d_inputs: list[Tensor],
    d_deltas: list[Tensor],
    d_loss: Tensor | None,
    gradients: Gradients,
    start: list[Tensor],
    biased: tuple[bool, ...],
    options: ScanOptions,
) -> GradientGrads:
    """Carry the derivative back through the keys' forward and backward pass: the second order."""
    depth = len(start)
    keep_start = options.gradient == "full"
    d_start: list[Tensor] = []
    d_pre: list[Tensor] = []
    widths = [w.shape[-1] - b for w, b in zip(start, biased, strict=True)]
    # The backward pass of the memory, from the first layer up: delta_l hangs on delta_{l+1}.
    for layer in range(depth - 1):
        grad = d_deltas[layer]
        upper = start[layer + 1][..., : widths[layer + 1]]
        d_back = grad * gradients.slopes[layer]
        bend = _silu_bend(gradients.pre[layer], gradients.gates[layer])
        d_pre.append(bend.mul_(grad).mul_(gradients.back[layer]))
        d_deltas[layer + 1] = torch.baddbmm(d_deltas[layer + 1], d_back, upper.mT)
        if keep_start:
            d_start.append(torch.bmm(gradients.deltas[layer + 1].mT, d_back))
    curvature = loss_curvature(gradients.residue, options)
    d_out = d_deltas[-1] * curvature
    if d_loss is not None:
        d_out = d_out + d_loss[..., None] * gradients.deltas[-1]
    # The forward pass of the memory, from the last layer down.
    grad, weights = d_out, []
    for layer in range(depth - 1, -1, -1):
        if keep_start:
            weights.insert(0, torch.bmm(grad.mT, gradients.inputs[layer]))
        d_a = torch.baddbmm(d_inputs[layer], grad, start[layer])[..., : widths[layer]]
        grad = d_pre[layer - 1].addcmul_(d_a, gradients.slopes[layer - 1]) if layer else d_a
    if keep_start:
        for layer in range(depth - 1):
            weights[layer + 1][..., : widths[layer + 1]] += d_start[layer]
    d_keys = grad + d_out if options.residual else grad
    return GradientGrads(d_keys, -d_out, weights if keep_start else None)


def _silu_bend(z: Tensor, gate: Tensor) -> Tensor:
    """silu''(z) = s (1 - s) (2 + z (1 - 2 s)), with s the sigmoid."""
    rest = 1 - gate
    return (rest - gate).mul_(z).add_(2).mul_(gate).mul_(rest)


def loss_curvature(residue: Tensor, options: ScanOptions) -> Tensor | float:
    """The second derivative of the inner loss by the memory's output."""
    if options.loss == "huber":
        return 2 * (residue.abs() <= options.huber_delta).to(residue.dtype)
    if options.loss == "lp":
        power, size = options.lp_power, residue.abs()
        bent = power * (power - 1) * size.pow(power - 2)
        return torch.where(size > 0, bent, torch.zeros_like(bent))
    return 2.0
