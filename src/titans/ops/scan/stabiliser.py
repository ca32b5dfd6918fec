"""The stabiliser in a chunk's closed form: all factors on theta from one triangular system.

`ops.reference_options` defines it token by token; ops/README.md derives this form. Here every
product is of vectors brought to unit length first, so that nothing overflows before its result does
(values of 1e16, layers that multiply them).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.options import ScanOptions
from titans.ops.scan.chunk import Gradients, error_size, written_pairs
from titans.ops.scan.mixing import Coefficients
from titans.ops.writes import momentum_to_come, stable_step


class Moved(NamedTuple):
    """First-order change of each token's loss when the weights move, `<grad l_t, ...> / |e_t|`,
    `[n b]`; e is the loss's slope by the memory's output."""

    by_weights: Tensor
    """... by the (difference of the) weights that beta multiplies."""
    by_momentum: Tensor
    """... by the momentum that u multiplies."""
    offset: Tensor
    """... by what no gate multiplies, less the chunk's start."""


def project_on_gradients(
    gradients: Gradients,
    packed: list[Tensor],
    start: list[Tensor] | None,
    base: list[Tensor] | None,
    options: ScanOptions,
) -> Moved:
    """Inner products of every token's gradient with the memory, without forming a gradient.

    `start` is the start of an open chunk, or None for a fresh one, which starts where it is.
    """
    by_weights, by_momentum, offset = [], [], []
    written = options.written_layers(len(packed))
    size = error_size(gradients)[..., None]
    for layer, both in enumerate(packed):
        if not written[layer]:
            continue
        a, delta = gradients.inputs[layer], gradients.deltas[layer] / size
        weight, *momentum = both.chunk(2 if options.momentum else 1, dim=-1)
        by_weights.append((torch.bmm(a, weight.mT) * delta).sum(-1))
        for half in momentum:
            by_momentum.append((torch.bmm(a, half.mT) * delta).sum(-1))
        if start is None:
            offset.append(-by_weights[-1])
        else:
            rest = -start[layer] if base is None else base[layer] - start[layer]
            offset.append((torch.bmm(a, rest.mT) * delta).sum(-1))
    by_momentum = by_momentum or [torch.zeros_like(by_weights[0])]
    return Moved(*(sum(parts[1:], parts[0]) for parts in (by_weights, by_momentum, offset)))


def stabilise(
    eta: Tensor,
    theta: Tensor,
    gradients: Gradients,
    mixed: Coefficients,
    moved: Moved,
    options: ScanOptions,
) -> Tensor:
    """The stabiliser's factor on theta, `[n b]` (see `ops.reference_options`, which defines it).

    Token t writes `limit_t * share_t`, where its share depends on what the earlier tokens of the
    chunk wrote: a unit lower-triangular system in the writes, each times |grad l_t|.
    """
    tiny = torch.finfo(theta.dtype).tiny
    size, norm = error_size(gradients), torch.linalg.vector_norm
    pairs = [(a, d / size[..., None]) for a, d in written_pairs(gradients, options)]
    lengths = [(norm(a, dim=-1), norm(d, dim=-1)) for a, d in pairs]
    reach = torch.linalg.vector_norm(torch.stack([a * d for a, d in lengths]), dim=0)
    reach = reach.clamp_min(tiny)
    limit, undone = stable_step(eta, theta, 2 * reach.square(), options)
    kernel = None
    for (a, delta), (length, _) in zip(pairs, lengths, strict=True):
        a = a / length.clamp_min(tiny)[..., None]
        delta = delta * (length / reach)[..., None]
        layer = torch.bmm(a, a.mT) * torch.bmm(delta, delta.mT)
        kernel = layer if kernel is None else kernel + layer
    assert kernel is not None
    # What one unit written at token i takes from the error of token t, in the end.
    later = momentum_to_come(eta)
    in_the_end = torch.addcmul(mixed.mix, later[..., None], mixed.momentum)
    taken = (kernel * in_the_end).tril(-1)
    carried = mixed.beta * moved.by_weights + moved.offset
    carried = carried + torch.addcmul(mixed.u, later, mixed.carry) * moved.by_momentum
    left = size + 2 * carried
    writes = torch.linalg.solve_triangular(
        undone[..., None] * taken,
        (theta * limit * reach * left)[..., None],
        upper=False,
        unitriangular=True,
    )
    left = left - 2 * reach * torch.bmm(taken, writes).squeeze(-1)
    return limit * (left / size)
