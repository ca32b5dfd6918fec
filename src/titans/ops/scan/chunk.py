"""One chunk of the scan, forward, in closed form: all matmuls, no autograd.

Inside a chunk of b tokens every gradient is taken at the chunk's start, so each is a product
`delta_i a_i^T`, and the weights after token t are a mix that never has to be formed:

    M_t = beta_t M + u_t S - sum_{i<=t} C[t, i] theta_i delta_i a_i^T

In the order of use: `take_gradients` (eq. 12), `carry_memory` (eq. 13 and 14, to the end of the
chunk), `read_chunk` (eq. 15). `scan.chunk_backward` is their derivative, `scan.group` calls both.

The functions work on one stack of rows (batch x heads, here `n`), tokens as rows `[n b dim]`.
Weight and momentum of a layer lie side by side, `[n out 2*in]`, so that a read, a write and
their derivatives are one matmul each; without momentum there is only the weight, `[n out in]`.
A bias is a weight on a constant input of one. Derivation: ops/README.md.
"""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from titans.ops.derivatives import is_recorded
from titans.ops.options import ScanOptions
from titans.ops.scan.mixing import Coefficients


class Silu(NamedTuple):
    """silu(z) and what its derivatives share: the sigmoid costs most, so it is taken once."""

    value: Tensor
    gate: Tensor
    """sigmoid(z)."""
    slope: Tensor
    """silu'(z) = s + z s (1 - s), with s the sigmoid."""


def silu(z: Tensor) -> Silu:
    """silu(z), its gate and its slope."""
    gate = torch.sigmoid(z)
    value = z * gate
    return Silu(value, gate, torch.addcmul(gate, value, 1 - gate))


class Gradients(NamedTuple):
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
    """sigmoid(z_l), where the gradients is to be differentiated."""
    slopes: list[Tensor]
    """silu'(z_l), where the gradients is to be differentiated."""


def with_ones(x: Tensor, has_bias: bool) -> Tensor:
    """Append the constant input that a bias is the weight of."""
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1) if has_bias else x


def take_gradients(
    keys: Tensor,
    values: Tensor,
    start: list[Tensor],
    biased: tuple[bool, ...],
    options: ScanOptions,
) -> Gradients:
    """Run the memory at `start` on the keys and the error back through it (eq. 12)."""
    depth = len(start)
    if options.gradient == "truncated":
        start = [w.detach() for w in start]
    inputs, pre, active = [with_ones(keys, biased[0])], [], []
    for layer in range(depth - 1):
        pre.append(torch.bmm(inputs[-1], start[layer].mT))
        active.append(silu(pre[-1]))
        inputs.append(with_ones(active[-1].value, biased[layer + 1]))
    residue = torch.bmm(inputs[-1], start[-1].mT) - values
    if options.residual:
        residue = residue + keys
    deltas, back = [loss_slope(residue, options)], []
    for layer in range(depth - 2, -1, -1):
        weight = start[layer + 1]
        width = weight.shape[-1] - biased[layer + 1]
        back.insert(0, torch.bmm(deltas[0], weight[..., :width]))
        deltas.insert(0, back[0] * active[layer].slope)
    return Gradients(inputs, pre, back, deltas, residue, [], [])


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


def written_pairs(gradients: Gradients, options: ScanOptions) -> list[tuple[Tensor, Tensor]]:
    """a and delta of the layers that are written: the gradient of each is `delta a^T`."""
    written = options.written_layers(len(gradients.deltas))
    pairs = zip(gradients.inputs, gradients.deltas, strict=True)
    return [pair for pair, is_written in zip(pairs, written, strict=True) if is_written]


def error_size(gradients: Gradients) -> Tensor:
    """|e_t|, `[n b]`, never zero."""
    size = torch.linalg.vector_norm(gradients.deltas[-1], dim=-1)
    return size.clamp_min(torch.finfo(size.dtype).tiny)


def grad_norm(gradients: Gradients, options: ScanOptions) -> Tensor:
    """|grad l| over all written layers, `[n b]`: each has rank one, so no matrix is formed."""
    norm, gradients = torch.linalg.vector_norm, constant(gradients)
    # In units of the error: the square of a large gradient has no place in float32.
    size, pairs = error_size(gradients), written_pairs(gradients, options)
    lengths = [norm(a, dim=-1) * norm(d / size[..., None], dim=-1) for a, d in pairs]
    return size * norm(torch.stack(lengths), dim=0)


Constants = TypeVar("Constants")


def constant(found: Constants) -> Constants:
    """The tensors in tuples and lists, as constants for the outer gradient."""
    return tree_map_only(Tensor, Tensor.detach, found)


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


def read_chunk(
    queries: Tensor,
    gradients: Gradients,
    rows: ReadRows,
    packed: list[Tensor],
    base: list[Tensor] | None,
    biased: tuple[bool, ...],
    written: tuple[bool, ...],
) -> Read:
    """y_t = M_t(q_t) for all tokens at once (eq. 15)."""
    depth = len(packed)
    inputs, similar, pre = [with_ones(queries, biased[0])], [], []
    tracks = tracks_of(packed, gradients, rows.beta, rows.u)
    for layer in range(depth):
        r = inputs[-1]
        if written[layer]:
            similar.append(torch.bmm(r, gradients.inputs[layer].mT))
            z = torch.bmm(scaled(r, tracks), packed[layer].mT)
            if base is not None:
                z = torch.baddbmm(z, r, base[layer].mT)
            z = torch.baddbmm(z, similar[-1] * rows.writes, gradients.deltas[layer], alpha=-1)
        else:
            similar.append(r.new_empty(*r.shape[:-1], 0))
            z = torch.bmm(r, fixed_weight(packed, base, layer, r).mT)
        pre.append(z)
        if layer < depth - 1:
            inputs.append(with_ones(torch.nn.functional.silu(pre[-1]), biased[layer + 1]))
    return Read(inputs, similar, pre, [])


def fixed_weight(packed: list[Tensor], base: list[Tensor] | None, layer: int, r: Tensor) -> Tensor:
    """The weight of a layer that is not written, `[n out in]`."""
    weight = packed[layer][..., : r.shape[-1]]
    return weight if base is None else weight + base[layer]


def has_momentum(packed: list[Tensor], gradients: Gradients) -> bool:
    """Is there a momentum beside each weight?"""
    return packed[0].shape[-1] > gradients.inputs[0].shape[-1]


def tracks_of(
    packed: list[Tensor], gradients: Gradients, weight: Tensor, momentum: Tensor
) -> Tensor:
    """Per token a factor for the weights and, if there is any, one for the momentum.

    `[n b tracks 1]`, for `scaled`.
    """
    factors = [weight, momentum] if has_momentum(packed, gradients) else [weight]
    return torch.stack(factors, dim=-1)[..., None]


def scaled(x: Tensor, tracks: Tensor) -> Tensor:
    """x times each factor, side by side."""
    return (x.unsqueeze(-2) * tracks).flatten(-2)


def carry_memory(
    packed: list[Tensor],
    gradients: Gradients,
    mixed: Coefficients,
    theta: Tensor,
    written: tuple[bool, ...],
    into: list[Tensor] | None = None,
) -> list[Tensor]:
    """Weights and momentum after the chunk's last token (eq. 13, 14), put `into` there if given.

    They are written in place, except where autograd goes through it.
    """
    write, push = mixed.mix[:, -1] * theta, mixed.momentum[:, -1] * theta
    beta, u, carry = (g[:, -1, None, None] for g in (mixed.beta, mixed.u, mixed.carry))
    after, tracks = [], tracks_of(packed, gradients, write, push)
    with_momentum, recorded = has_momentum(packed, gradients), is_recorded()
    for layer, both in enumerate(packed):
        if not written[layer]:
            after.append(both.clone() if into is None else into[layer].copy_(both))
            continue
        a, delta = gradients.inputs[layer], gradients.deltas[layer]
        left = halves(beta, carry, both) if with_momentum else beta
        if recorded:
            moved = both * left
            if with_momentum:
                pushed = both.chunk(2, dim=-1)[1] * u
                moved = moved + torch.cat((pushed, torch.zeros_like(pushed)), dim=-1)
            after.append(torch.baddbmm(moved, delta.mT, scaled(a, tracks), alpha=-1))
            continue
        moved = both * left if into is None else torch.mul(both, left, out=into[layer])
        if with_momentum:
            weight, momentum = moved.chunk(2, dim=-1)[0], both.chunk(2, dim=-1)[1]
            weight.addcmul_(momentum, u)
        after.append(moved.baddbmm_(delta.mT, scaled(a, tracks), alpha=-1))
    return after


def halves(first: Tensor, second: Tensor, like: Tensor) -> Tensor:
    """A row that multiplies the weights by `first` and the momentum by `second`, `[n 1 2*in]`."""
    width = like.shape[-1] // 2
    return torch.cat([first.expand(-1, 1, width), second.expand(-1, 1, width)], dim=-1)
