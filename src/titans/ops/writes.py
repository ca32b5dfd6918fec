"""Is this token written, and how strongly? Decided here for the scan, the step, the generic path
and the delta rule; only `ops.reference` has a rule of its own, against which this one is tested.

A token may be a full no-op (padding, `write_mask`, `write_threshold`, `skip_unsurprising`). If it
acts, thresholds, clipping and the stabiliser multiply its theta, so the chunk's closed form stays
exact. These factors are constants for the outer gradient. Derivation: ops/README.md.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from titans.ops.options import ScanOptions
from titans.ops.state import Surprise, Trace


def may_act(
    step_size: Float[Tensor, "*tokens heads"],
    options: ScanOptions,
    *,
    mask: Bool[Tensor, "*tokens"] | None = None,
    write_mask: Bool[Tensor, "*tokens"] | None = None,
) -> Bool[Tensor, "*tokens heads"] | None:
    """False for a full no-op, as far as that is known before its surprise; None: all tokens act."""
    active = None
    for rows in (mask, write_mask):
        if rows is not None:
            rows = rows[..., None].expand_as(step_size)
            active = rows if active is None else active & rows
    if options.write_threshold is not None:
        strong = step_size >= options.write_threshold
        active = strong if active is None else active & strong
    return active


def acting_gates(alpha: Tensor, eta: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
    """alpha and eta, neutral (0 and 1) where `active` is zero."""
    if active is None:
        return alpha, eta
    return alpha * active, 1 - (1 - eta) * active


def needs_loss(options: ScanOptions) -> bool:
    """Does a write depend on its loss?"""
    return options.surprise_threshold is not None and options.surprise_measure == "loss"


def needs_norm(options: ScanOptions) -> bool:
    """Does a write depend on the norm of its gradient?"""
    by_norm = options.surprise_threshold is not None and options.surprise_measure == "grad_norm"
    return by_norm or options.max_grad_norm is not None


class Decision(NamedTuple):
    """What follows from the surprise of some tokens; tensors of one shape, floating point."""

    active: Tensor | None
    """Zero where a token is a full no-op; None: nowhere."""
    written: Tensor | None
    """Zero where no gradient is added; None: nowhere."""
    factor: Tensor | None
    """What theta is multiplied by, zero where nothing is written; None: one everywhere."""


def decide(
    active: Tensor | None, loss: Tensor | None, norm: Tensor | None, options: ScanOptions
) -> Decision:
    """Apply the surprise threshold and clipping; the stabiliser comes after (`stable_step`).

    `loss` and `norm_squared` may be None if the options do not need them.
    """
    written = active
    if options.surprise_threshold is not None:
        measure = loss if options.surprise_measure == "loss" else norm
        assert measure is not None
        surprised = (measure > options.surprise_threshold).to(measure.dtype)
        written = surprised if active is None else active * surprised
        if options.skip_unsurprising:
            active = written
    factor = written
    if options.max_grad_norm is not None:
        assert norm is not None
        tiny = torch.finfo(norm.dtype).tiny
        clip = (options.max_grad_norm / norm.clamp_min(tiny)).clamp_max(1.0)
        factor = clip if factor is None else factor * clip
    return Decision(active, written, factor)


def make_trace(surprise: Surprise, decision: Decision) -> Trace:
    """What was done with tokens, from the final decision about them."""
    ones = torch.ones_like(surprise.loss)
    active, written, factor = (ones if t is None else t.detach() for t in decision)
    return Trace(surprise, active.bool(), written.bool(), factor.to(ones.dtype))


def product(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Two factors as one; None counts as one."""
    if first is None or second is None:
        return second if first is None else first
    return first * second


def stable_step(
    eta: Tensor, theta: Tensor, gain: Tensor, options: ScanOptions
) -> tuple[Tensor, Tensor]:
    """The stabiliser's first factor: a write undoes at most `step_limit` of its own error.

    `gain` is the share of its error that a step of one undoes. Momentum repeats a write
    1 / (1 - eta) times. Also gives the share that is then undone.
    """
    assert options.step_limit is not None
    largest = options.step_limit * (1 - eta)
    taken = (theta * gain).clamp_min(torch.finfo(theta.dtype).tiny)
    return (largest / taken).clamp_max(1.0), torch.minimum(taken, largest)


LONGEST_MOMENTUM = 100.0
"""Momentum is followed for this many tokens, for which even eta = 1 is a finite sum."""


def momentum_to_come(eta: Tensor) -> Tensor:
    """How much of the momentum at hand, `eta S`, later tokens will add once more."""
    return eta / (1 - eta).clamp_min(1 / LONGEST_MOMENTUM)
