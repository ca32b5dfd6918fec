"""One chunk of the memory scan and its derivative, in closed form: all matmuls, no autograd.

Inside a chunk of b tokens every gradient is taken at the chunk's start, so each is a product
`delta_i a_i^T`, and the weights after token t are a mix that never has to be formed:

    M_t = beta_t M + u_t S - sum_{i<=t} C[t, i] theta_i delta_i a_i^T

The functions work on one stack of rows (batch x heads, here `n`), tokens as rows `[n b dim]`.
Weight and momentum of a layer lie side by side, `[n out 2*in]`, so that a read, a write and
their derivatives are one matmul each; without momentum the weight stands alone, `[n out in]`.
A bias is a weight on a constant input of one.
Derivation: ops/README.md. Called by `ops.chunk_scan`, which owns the loop over chunks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.mixing import Coefficients
from titans.ops.options import ScanOptions


class Silu(NamedTuple):
    """silu(z) and what its derivatives share: the sigmoid is the dear part, so it is taken once."""

    value: Tensor
    gate: Tensor
    """sigmoid(z)."""
    slope: Tensor
    """silu'(z) = s + z s (1 - s), with s the sigmoid."""


def _silu(z: Tensor) -> Silu:
    gate = torch.sigmoid(z)
    value = z * gate
    return Silu(value, gate, torch.addcmul(gate, value, 1 - gate))


class Recall(NamedTuple):
    """What the memory makes of a chunk's keys at the chunk's start, layer by layer."""

    inputs: list[Tensor]
    """a_{l-1}: what each layer sees, with a column of ones where it has a bias."""
    pre: list[Tensor]
    """z_l: each layer's output before its activation (all but the last)."""
    back: list[Tensor]
    """W_{l+1}^T delta_{l+1}: what reaches each activation on the way back (all but the last)."""
    deltas: list[Tensor]
    """delta_l = dl/dz_l."""
    residue: Tensor
    """M(k) - v."""
    gates: list[Tensor]
    """sigmoid(z_l), where the recall is to be differentiated."""
    slopes: list[Tensor]
    """silu'(z_l), where the recall is to be differentiated."""


def with_ones(x: Tensor, has_bias: bool) -> Tensor:
    """Append the constant input that a bias is the weight of."""
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1) if has_bias else x


def recall_keys(
    keys: Tensor, values: Tensor, start: list[Tensor], biased: list[bool], options: ScanOptions
) -> Recall:
    """Run the memory at `start` on the keys and the error back through it (eq. 12)."""
    depth = len(start)
    inputs, pre, active = [with_ones(keys, biased[0])], [], []
    for layer in range(depth - 1):
        pre.append(torch.bmm(inputs[-1], start[layer].mT))
        active.append(_silu(pre[-1]))
        inputs.append(with_ones(active[-1].value, biased[layer + 1]))
    residue = torch.bmm(inputs[-1], start[-1].mT).sub_(values)
    if options.residual:
        residue += keys
    deltas, back = [loss_slope(residue, options)], []
    for layer in range(depth - 2, -1, -1):
        weight = start[layer + 1]
        width = weight.shape[-1] - biased[layer + 1]
        back.insert(0, torch.bmm(deltas[0], weight[..., :width]))
        deltas.insert(0, back[0] * active[layer].slope)
    return Recall(inputs, pre, back, deltas, residue, [], [])


class Kept(NamedTuple):
    """What a chunk keeps for its backward: vectors per token, so that no matmul is repeated."""

    pre: list[Tensor]
    back: list[Tensor]
    residue: Tensor
    read_pre: list[Tensor]
    similar: list[Tensor]
    mixed: Coefficients


def restore_recall(keys: Tensor, kept: Kept, biased: list[bool], options: ScanOptions) -> Recall:
    """`recall_keys` again, from what was kept of it."""
    active = [_silu(z) for z in kept.pre]
    inputs = [keys, *(a.value for a in active)]
    deltas = [back * a.slope for back, a in zip(kept.back, active, strict=True)]
    return Recall(
        [with_ones(x, bias) for x, bias in zip(inputs, biased, strict=True)],
        kept.pre,
        kept.back,
        [*deltas, loss_slope(kept.residue, options)],
        kept.residue,
        [a.gate for a in active],
        [a.slope for a in active],
    )


def restore_read(queries: Tensor, kept: Kept, biased: list[bool]) -> "Read":
    """`read_memory` again, from what was kept of it (without the last layer's output)."""
    active = [_silu(z) for z in kept.read_pre]
    inputs = [queries, *(a.value for a in active)]
    inputs = [with_ones(x, bias) for x, bias in zip(inputs, biased, strict=True)]
    return Read(inputs, kept.similar, kept.read_pre, [a.slope for a in active])


def loss_value(residue: Tensor, options: ScanOptions) -> Tensor:
    """The inner loss of each token, `[n b]`."""
    if options.loss == "huber":
        size, delta = residue.abs(), options.huber_delta
        return torch.where(size <= delta, size * size, 2 * delta * size - delta**2).sum(-1)
    if options.loss == "lp":
        return residue.abs().pow(options.lp_power).sum(-1)
    return residue.square().sum(-1)


def loss_slope(residue: Tensor, options: ScanOptions) -> Tensor:
    """The derivative of the inner loss by the memory's output."""
    if options.loss == "huber":
        return 2 * residue.clamp(-options.huber_delta, options.huber_delta)
    if options.loss == "lp":
        power = options.lp_power
        return power * residue.abs().pow(power - 1) * residue.sign()
    return 2 * residue


def loss_curvature(residue: Tensor, options: ScanOptions) -> Tensor | float:
    """The second derivative of the inner loss by the memory's output."""
    if options.loss == "huber":
        return 2 * (residue.abs() <= options.huber_delta).to(residue.dtype)
    if options.loss == "lp":
        power, size = options.lp_power, residue.abs()
        bent = power * (power - 1) * size.pow(power - 2)
        return torch.where(size > 0, bent, torch.zeros_like(bent))
    return 2.0


def written_pairs(recall: Recall, options: ScanOptions) -> list[tuple[Tensor, Tensor]]:
    """a and delta of the layers that are written: the gradient of each is `delta a^T`."""
    written = options.written_layers(len(recall.deltas))
    pairs = zip(recall.inputs, recall.deltas, strict=True)
    return [pair for pair, is_written in zip(pairs, written, strict=True) if is_written]


def grad_norm_squared(recall: Recall, options: ScanOptions) -> Tensor:
    """|grad l|^2 over all written layers, `[n b]`: each has rank one, so no matrix is formed."""
    pairs = written_pairs(recall, options)
    return sum(a.square().sum(-1) * d.square().sum(-1) for a, d in pairs)  # type: ignore[return-value]


class ReadRows(NamedTuple):
    """The rows of beta, u and C * theta that a read uses."""

    beta: Tensor
    u: Tensor
    writes: Tensor


def read_rows(mixed: Coefficients, theta: Tensor, options: ScanOptions) -> ReadRows:
    """After the write: row t. Before it: row t - 1, and the start weights for the first token."""
    writes = mixed.mix * theta[:, None, :]
    if options.read == "after":
        return ReadRows(mixed.beta, mixed.u, writes)
    pad = torch.nn.functional.pad
    return ReadRows(
        pad(mixed.beta[:, :-1], (1, 0), value=1.0),
        pad(mixed.u[:, :-1], (1, 0)),
        pad(writes[:, :-1], (0, 0, 1, 0)),
    )


class Read(NamedTuple):
    """A read, layer by layer, with what its derivative needs."""

    inputs: list[Tensor]
    """r_{l-1}."""
    similar: list[Tensor]
    """r_{l-1} . a_{l-1}: how much each query resembles each write."""
    pre: list[Tensor]
    """z^q_l."""
    slopes: list[Tensor]
    """silu'(z^q_l), where the read is to be differentiated."""


def read_memory(
    queries: Tensor,
    recall: Recall,
    rows: ReadRows,
    packed: list[Tensor],
    base: list[Tensor] | None,
    biased: list[bool],
    written: tuple[bool, ...],
) -> Read:
    """y_t = M_t(q_t) for all tokens at once (eq. 15)."""
    depth = len(packed)
    inputs, similar, pre = [with_ones(queries, biased[0])], [], []
    tracks = _tracks(packed, recall, rows.beta, rows.u)
    for layer in range(depth):
        r = inputs[-1]
        if written[layer]:
            similar.append(torch.bmm(r, recall.inputs[layer].mT))
            z = torch.bmm(_scaled(r, tracks), packed[layer].mT)
            if base is not None:
                z = torch.baddbmm(z, r, base[layer].mT)
            z = torch.baddbmm(z, similar[-1] * rows.writes, recall.deltas[layer], alpha=-1)
        else:
            similar.append(r.new_empty(*r.shape[:-1], 0))
            z = torch.bmm(r, _fixed_weight(packed, base, layer, r).mT)
        pre.append(z)
        if layer < depth - 1:
            inputs.append(with_ones(torch.nn.functional.silu(pre[-1]), biased[layer + 1]))
    return Read(inputs, similar, pre, [])


def _fixed_weight(packed: list[Tensor], base: list[Tensor] | None, layer: int, r: Tensor) -> Tensor:
    """The weight of a layer that is not written, `[n out in]`."""
    weight = packed[layer][..., : r.shape[-1]]
    return weight if base is None else weight + base[layer]


def _has_momentum(packed: list[Tensor], recall: Recall) -> bool:
    return packed[0].shape[-1] > recall.inputs[0].shape[-1]


def _tracks(packed: list[Tensor], recall: Recall, weight: Tensor, momentum: Tensor) -> Tensor:
    """Per token a factor for the weights and, where there is any, one for the momentum,
    `[n b tracks 1]`, for `_scaled`."""
    factors = [weight, momentum] if _has_momentum(packed, recall) else [weight]
    return torch.stack(factors, dim=-1)[..., None]


def _scaled(x: Tensor, tracks: Tensor) -> Tensor:
    """x times each factor, side by side."""
    return (x.unsqueeze(-2) * tracks).flatten(-2)


def carry_state(
    packed: list[Tensor],
    recall: Recall,
    mixed: Coefficients,
    theta: Tensor,
    written: tuple[bool, ...],
    into: list[Tensor] | None = None,
) -> list[Tensor]:
    """Weights and momentum after the chunk's last token (eq. 13, 14), put `into` there if given."""
    write, push = mixed.mix[:, -1] * theta, mixed.momentum[:, -1] * theta
    beta, u, carry = (g[:, -1, None, None] for g in (mixed.beta, mixed.u, mixed.carry))
    after, tracks = [], _tracks(packed, recall, write, push)
    has_momentum = _has_momentum(packed, recall)
    for layer, both in enumerate(packed):
        if not written[layer]:
            after.append(both.clone() if into is None else into[layer].copy_(both))
            continue
        a, delta = recall.inputs[layer], recall.deltas[layer]
        left = _halves(beta, carry, both) if has_momentum else beta
        moved = both * left if into is None else torch.mul(both, left, out=into[layer])
        if has_momentum:
            weight, momentum = moved.chunk(2, dim=-1)[0], both.chunk(2, dim=-1)[1]
            weight.addcmul_(momentum, u)
        after.append(moved.baddbmm_(delta.mT, _scaled(a, tracks), alpha=-1))
    return after


def _halves(first: Tensor, second: Tensor, like: Tensor) -> Tensor:
    """A row that multiplies the weights by `first` and the momentum by `second`, `[n 1 2*in]`."""
    width = like.shape[-1] // 2
    return torch.cat([first.expand(-1, 1, width), second.expand(-1, 1, width)], dim=-1)


class ReadGrads(NamedTuple):
    """The derivative of a read."""

    queries: Tensor
    inputs: list[Tensor]
    deltas: list[Tensor]
    packed: list[Tensor]
    base: list[Tensor] | None
    rows: ReadRows


def read_memory_backward(
    grad: Tensor,
    read: Read,
    recall: Recall,
    rows: ReadRows,
    packed: list[Tensor],
    base: list[Tensor] | None,
    biased: list[bool],
    written: tuple[bool, ...],
) -> ReadGrads:
    """Carry the derivative by the outputs back through `read_memory`."""
    depth = len(packed)
    d_inputs, d_deltas, d_packed, d_base = [], [], [], []
    d_beta = d_u = d_writes = None
    tracks = _tracks(packed, recall, rows.beta, rows.u)
    for layer in range(depth - 1, -1, -1):
        r, a, similar = read.inputs[layer], recall.inputs[layer], read.similar[layer]
        if not written[layer]:
            d_weight = torch.bmm(grad.mT, r)
            d_packed.insert(0, _like_packed(d_weight, packed[layer]))
            if base is not None:
                d_base.insert(0, d_weight)
            d_inputs.insert(0, torch.zeros_like(a))
            d_deltas.insert(0, torch.zeros_like(recall.deltas[layer]))
            d_r = torch.bmm(grad, _fixed_weight(packed, base, layer, r))
            d_r = d_r[..., : r.shape[-1] - biased[layer]]
            grad = d_r * read.slopes[layer - 1] if layer else d_r
            continue
        d_deltas.insert(0, torch.bmm((similar * rows.writes).mT, grad).neg_())
        d_mixed = torch.bmm(grad, recall.deltas[layer].mT).neg_()
        d_similar = d_mixed * rows.writes
        d_writes = (
            d_mixed.mul_(similar) if d_writes is None else d_writes.addcmul_(d_mixed, similar)
        )
        d_packed.insert(0, torch.bmm(grad.mT, _scaled(r, tracks)))
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


def carry_state_backward(
    grads: list[Tensor],
    packed: list[Tensor],
    recall: Recall,
    mixed: Coefficients,
    theta: Tensor,
    written: tuple[bool, ...],
) -> CarryGrads:
    """Carry the derivative by the next chunk's start back through `carry_state`."""
    write, push = mixed.mix[:, -1] * theta, mixed.momentum[:, -1] * theta
    beta, u, carry = (g[:, -1, None, None] for g in (mixed.beta, mixed.u, mixed.carry))
    d_inputs, d_deltas, d_packed = [], [], []
    d_beta, d_u, d_carry = (theta.new_zeros(theta.shape[0]) for _ in range(3))
    d_write, d_push = torch.zeros_like(theta), torch.zeros_like(theta)
    tracks, has_momentum = _tracks(packed, recall, write, push), _has_momentum(packed, recall)
    layers = zip(grads, packed, recall.inputs, recall.deltas, written, strict=True)
    for grad, both, a, delta, is_written in layers:
        if not is_written:
            d_inputs.append(torch.zeros_like(a))
            d_deltas.append(torch.zeros_like(delta))
            d_packed.append(grad.clone())
            continue
        d_deltas.append(torch.bmm(_scaled(a, tracks), grad.mT).neg_())
        d_scaled = torch.bmm(delta, grad)
        d_inputs.append(_unscaled(d_scaled, tracks).neg_())
        by_write, by_push = _products(d_scaled, a)
        d_write -= by_write
        d_push -= by_push
        if not has_momentum:
            d_beta += (grad * both).sum((-2, -1))
            d_packed.append(grad * beta)
            continue
        momentum, d_weight = both.chunk(2, dim=-1)[1], grad.chunk(2, dim=-1)[0]
        by_beta, by_carry = (grad * both).sum(-2).chunk(2, dim=-1)
        d_beta += by_beta.sum(-1)
        d_carry += by_carry.sum(-1)
        d_u += (d_weight * momentum).sum((-2, -1))
        d_both = grad * _halves(beta, carry, both)
        d_both.chunk(2, dim=-1)[1].addcmul_(d_weight, u)
        d_packed.append(d_both)
    return CarryGrads(d_inputs, d_deltas, d_packed, d_write, d_push, d_beta, d_u, d_carry)


def _products(d_scaled: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative of `_scaled` by either factor, `[n b]` each; 0 where there is one alone."""
    by_factor = (d_scaled.unflatten(-1, (-1, x.shape[-1])) * x.unsqueeze(-2)).sum(-1).unbind(-1)
    first = by_factor[0]
    return first, by_factor[1] if len(by_factor) > 1 else torch.zeros_like(first)


def _unscaled(d_scaled: Tensor, tracks: Tensor) -> Tensor:
    """The derivative of `_scaled` by x."""
    if tracks.shape[-2] == 1:
        return d_scaled * tracks[..., 0]
    left, right = d_scaled.chunk(2, dim=-1)
    return torch.addcmul(left * tracks[..., 0, :], right, tracks[..., 1, :])


def _like_packed(d_weight: Tensor, packed: Tensor) -> Tensor:
    """The derivative by a weight and the momentum beside it, which the layer does not use."""
    missing = packed.shape[-1] - d_weight.shape[-1]
    return torch.nn.functional.pad(d_weight, (0, missing))


class RecallGrads(NamedTuple):
    """The derivative of `recall_keys`."""

    keys: Tensor
    values: Tensor
    start: list[Tensor] | None


def recall_keys_backward(
    d_inputs: list[Tensor],
    d_deltas: list[Tensor],
    d_loss: Tensor | None,
    recall: Recall,
    start: list[Tensor],
    biased: list[bool],
    options: ScanOptions,
) -> RecallGrads:
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
        d_back = grad * recall.slopes[layer]
        bend = _silu_bend(recall.pre[layer], recall.gates[layer])
        d_pre.append(bend.mul_(grad).mul_(recall.back[layer]))
        d_deltas[layer + 1] = torch.baddbmm(d_deltas[layer + 1], d_back, upper.mT)
        if keep_start:
            d_start.append(torch.bmm(recall.deltas[layer + 1].mT, d_back))
    curvature = loss_curvature(recall.residue, options)
    d_out = d_deltas[-1] * curvature
    if d_loss is not None:
        d_out = d_out + d_loss[..., None] * recall.deltas[-1]
    # The forward pass of the memory, from the last layer down.
    grad, weights = d_out, []
    for layer in range(depth - 1, -1, -1):
        if keep_start:
            weights.insert(0, torch.bmm(grad.mT, recall.inputs[layer]))
        d_a = torch.baddbmm(d_inputs[layer], grad, start[layer])[..., : widths[layer]]
        grad = d_pre[layer - 1].addcmul_(d_a, recall.slopes[layer - 1]) if layer else d_a
    if keep_start:
        for layer in range(depth - 1):
            weights[layer + 1][..., : widths[layer + 1]] += d_start[layer]
    d_keys = grad + d_out if options.residual else grad
    return RecallGrads(d_keys, -d_out, weights if keep_start else None)


def _silu_bend(z: Tensor, gate: Tensor) -> Tensor:
    """silu''(z) = s (1 - s) (2 + z (1 - 2 s)), with s the sigmoid."""
    rest = 1 - gate
    return (rest - gate).mul_(z).add_(2).mul_(gate).mul_(rest)
