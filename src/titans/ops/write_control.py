"""Which tokens of a chunk write, and how strongly: thresholds, clipping and the stabiliser.

Each is a factor on theta (or a token made a full no-op), so the chunk's closed form stays exact.
The factors are constants for the outer gradient. Derivation: ops/README.md.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.chunk_math import Recall, grad_norm_squared, loss_value, written_pairs
from titans.ops.mixing import Coefficients
from titans.ops.options import ScanOptions


class Verdict(NamedTuple):
    """What was measured of a chunk's tokens, `[n b]`, and what follows for their writes."""

    active: Tensor | None
    """Zero where a token is a full no-op; None if there is no such token."""
    scale: Tensor | None
    """Factor on theta; None if it is one everywhere."""
    loss: Tensor | None
    grad_norm_squared: Tensor | None


def judge_writes(
    recall: Recall, active: Tensor | None, options: ScanOptions, want_surprise: bool
) -> Verdict:
    """Measure each token's surprise and apply thresholds and clipping."""
    by_loss = options.surprise_threshold is not None and options.surprise_measure == "loss"
    by_norm = options.surprise_threshold is not None and not by_loss
    needs_norm = want_surprise or by_norm or options.max_grad_norm is not None
    squared = None
    if needs_norm or options.step_limit is not None:
        squared = grad_norm_squared(recall, options)
    loss = loss_value(recall.residue, options) if want_surprise or by_loss else None
    scale = active
    if options.surprise_threshold is not None:
        measure = loss if by_loss else squared.sqrt()  # type: ignore[union-attr]
        assert measure is not None
        surprised = (measure > options.surprise_threshold).to(measure.dtype)
        scale = surprised if scale is None else scale * surprised
        if options.skip_unsurprising:
            active = scale
    if options.max_grad_norm is not None:
        assert squared is not None
        tiny = torch.finfo(squared.dtype).tiny
        clip = (options.max_grad_norm / squared.sqrt().clamp_min(tiny)).clamp_max(1.0)
        scale = clip if scale is None else scale * clip
    return Verdict(active, scale, loss, squared)


class Moved(NamedTuple):
    """First-order change of each token's loss when the weights move, `<grad l_t, ...>`, `[n b]`."""

    by_weights: Tensor
    """... by the (difference of the) weights that beta multiplies."""
    by_momentum: Tensor
    """... by the momentum that u multiplies."""
    offset: Tensor
    """... by what no gate multiplies, less the chunk's start."""


def project_on_gradients(
    recall: Recall,
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
    for layer, both in enumerate(packed):
        if not written[layer]:
            continue
        a, delta = recall.inputs[layer], recall.deltas[layer]
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


LONGEST_MOMENTUM = 100.0
"""Momentum is followed for this many tokens, for which even eta = 1 is a finite sum."""


def momentum_to_come(eta: Tensor) -> Tensor:
    """How much of the momentum at hand, `eta S`, later tokens will add once more."""
    return eta / (1 - eta).clamp_min(1 / LONGEST_MOMENTUM)


def stabilise(
    eta: Tensor,
    theta: Tensor,
    squared: Tensor,
    recall: Recall,
    mixed: Coefficients,
    moved: Moved,
    options: ScanOptions,
) -> Tensor:
    """The stabiliser's factor on theta, `[n b]` (see `ops.reference`, which defines it).

    Token t writes `limit_t * share_t`, where its share depends on what the earlier tokens of the
    chunk wrote: a unit lower-triangular system in the writes.
    """
    assert options.step_limit is not None
    tiny = torch.finfo(theta.dtype).tiny
    twice_by_size = 2 / recall.deltas[-1].square().sum(-1).clamp_min(tiny)
    largest = options.step_limit * (1 - eta)
    limit = (largest / (theta * squared * twice_by_size).clamp_min(tiny)).clamp_max(1.0)
    kernel = None
    for a, delta in written_pairs(recall, options):
        layer = torch.bmm(a, a.mT) * torch.bmm(delta, delta.mT)
        kernel = layer if kernel is None else kernel.add_(layer)
    assert kernel is not None
    # What one unit written at token i takes from the error of token t, in the end.
    later = momentum_to_come(eta)
    in_the_end = torch.addcmul(mixed.mix, later[..., None], mixed.momentum)
    taken = (kernel.mul_(in_the_end) * twice_by_size[..., None]).tril(-1)
    carried = mixed.beta * moved.by_weights + moved.offset
    carried = carried + torch.addcmul(mixed.u, later, mixed.carry) * moved.by_momentum
    left = 1 + carried * twice_by_size
    step = theta * limit
    writes = torch.linalg.solve_triangular(
        step[..., None] * taken, (step * left)[..., None], upper=False, unitriangular=True
    )
    return limit * (left - torch.bmm(taken, writes).squeeze(-1))
