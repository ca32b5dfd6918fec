"""Which tokens of a chunk write, and how strongly: thresholds, clipping and the step budget.

All of it folds into the gates, so the chunk's closed form stays exact (ops/README.md).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.chunk_math import GateValues, Recall, grad_norm_squared, loss_value
from titans.ops.options import ScanOptions

LONGEST_MOMENTUM = 1e-3
"""The step budget counts a write 1 / (1 - eta) times, but with 1 - eta no smaller than this."""


class Verdict(NamedTuple):
    """What was measured of a chunk's tokens and decided from it; constants for autograd."""

    active: Tensor | None
    """Zero where a token is a full no-op; None if there is no such token."""
    scale: Tensor | None
    """Factor on theta from thresholds and clipping."""
    gain: Tensor | None
    """Relative step per unit of theta: what a write does to its own error."""
    loss: Tensor | None
    grad_norm: Tensor | None


def judge_writes(
    recall: Recall, active: Tensor | None, options: ScanOptions, want_surprise: bool
) -> Verdict:
    """Measure each token's surprise and decide on its write."""
    scale = gain = None
    by_loss = options.surprise_threshold is not None and options.surprise_measure == "loss"
    by_norm = options.surprise_threshold is not None and options.surprise_measure == "grad_norm"
    needs_norm = (
        want_surprise
        or by_norm
        or options.max_grad_norm is not None
        or options.step_budget is not None
    )
    squared = grad_norm_squared(recall) if needs_norm else None
    norm = squared.sqrt() if squared is not None else None
    loss = loss_value(recall.residue, options) if want_surprise or by_loss else None
    tiny = torch.finfo(recall.residue.dtype).tiny
    if options.surprise_threshold is not None:
        measure = loss if by_loss else norm
        assert measure is not None
        scale = (measure > options.surprise_threshold).to(measure.dtype)
        if options.skip_unsurprising:
            active = scale if active is None else active * scale
    if options.max_grad_norm is not None:
        assert norm is not None
        clip = (options.max_grad_norm / norm.clamp_min(tiny)).clamp_max(1.0)
        scale = clip if scale is None else scale * clip
    if options.step_budget is not None:
        assert squared is not None
        gain = 2 * squared / recall.deltas[-1].square().sum(-1).clamp_min(tiny)
    return Verdict(active, scale, gain, loss, norm)


def apply_verdict(
    alpha: Tensor,
    eta: Tensor,
    theta: Tensor,
    load: Tensor,
    verdict: Verdict,
    options: ScanOptions,
) -> tuple[GateValues, Tensor]:
    """The gates as they act, and the step budget's load after the chunk.

    The budget B bounds the accumulated relative step of a chunk: a chunk that asks for a total
    load of L gets `L / (1 + L / B)`, each token its share in the order of arrival. So a small
    load passes unchanged, and the sum never exceeds B (docs/decisions/0003-step-budget.md).
    """
    if verdict.scale is not None:
        theta = theta * verdict.scale
    if verdict.active is not None:
        theta = theta * verdict.active
    if options.step_budget is not None:
        assert verdict.gain is not None
        budget = options.step_budget
        request = theta * verdict.gain / (1 - eta).clamp_min(LONGEST_MOMENTUM)
        total = load[:, None] + request.cumsum(-1)
        theta = theta / ((1 + (total - request) / budget) * (1 + total / budget))
        load = total[:, -1]
    if verdict.active is not None:
        alpha = alpha * verdict.active
        eta = 1 - (1 - eta) * verdict.active
    return GateValues(alpha, eta, theta, verdict.active), load


def apply_verdict_backward(
    gates: tuple[Tensor, Tensor, Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor, Tensor],
    verdict: Verdict,
    options: ScanOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Derivative by (alpha, eta, theta, load); a few numbers per token, so autograd may do it."""
    if verdict.active is None and verdict.scale is None and verdict.gain is None:
        return grads
    with torch.enable_grad():
        leaves = tuple(g.detach().requires_grad_() for g in gates)
        alpha, eta, theta, load = leaves
        acting, load_after = apply_verdict(alpha, eta, theta, load, verdict, options)
        outputs = (acting.alpha, acting.eta, acting.theta, load_after)
        live = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
        found = torch.autograd.grad(
            [o for o, _ in live], leaves, [g for _, g in live], allow_unused=True
        )
    alpha_grad, eta_grad, theta_grad, load_grad = (
        torch.zeros_like(leaf) if f is None else f for leaf, f in zip(leaves, found, strict=True)
    )
    return alpha_grad, eta_grad, theta_grad, load_grad
