"""How the gates of a chunk mix its start and its writes: the matrices A, H and C of ops/README.md.

    M_t = beta_t M + u_t S - sum_{i<=t} C[t, i] theta_i delta_i a_i^T,    C = A diag(active) H

Tokens are `[n b]` with n = batch x heads, matrices `[n b b]`, lower triangular.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from titans.ops.derivatives import by_hand, is_recorded, through


class Coefficients(NamedTuple):
    """How the gates of a chunk mix the start weights, the momentum and the writes."""

    decay: Tensor
    """A[t, j]: what is left at token t of what was added at token j."""
    momentum: Tensor
    """H[j, i]: what is left at token j of the surprise of token i."""
    mix: Tensor
    """C = A diag(active) H."""
    beta: Tensor
    """beta_t: what is left of the start weights."""
    carry: Tensor
    """E_t: what is left of the start momentum."""
    u: Tensor
    """u = A diag(active) E: how much of the start momentum has been added."""


class GateValues(NamedTuple):
    """The gates of a chunk, `[n b]`, already neutral (0, 1, 0) where `active` is zero."""

    alpha: Tensor
    eta: Tensor
    theta: Tensor
    active: Tensor | None


def coefficients(alpha: Tensor, eta: Tensor, active: Tensor | None) -> Coefficients:
    """Mix the gates of a chunk; products are taken directly, so exact zeros and ones are fine."""
    keep = 1 - alpha
    decay, momentum = running_products(torch.cat([keep, eta])).chunk(2)
    added = decay if active is None else decay * active[:, None, :]
    mix = torch.bmm(added, momentum)
    # The start weights and momentum are as if added just before the first token.
    beta, carry, u = decay[..., 0] * keep[:, :1], momentum[..., 0] * eta[:, :1], mix[..., 0]
    return Coefficients(decay, momentum, mix, beta, carry, u * eta[:, :1])


def running_products(factor: Tensor) -> Tensor:
    """P[t, j] = factor_{j+1} * ... * factor_t, lower triangular with a unit diagonal."""
    size = factor.shape[1]
    if size == 1:
        return torch.ones_like(factor)[..., None]
    if is_recorded():
        # P = (I - diag(f) shift)^-1: a derivative of any order, and no division by a factor.
        eye = torch.eye(size, dtype=factor.dtype, device=factor.device)
        steps = eye - torch.diag_embed(factor[:, 1:], offset=-1)
        return torch.linalg.solve_triangular(
            steps, eye.expand_as(steps), upper=False, unitriangular=True
        )
    below, lower = _masks(size, factor.device, factor.dtype)
    ladder = torch.addcmul(1 - below, below, factor[..., None])
    return ladder.cumprod(1).mul_(lower)


_known_masks: dict[tuple[int, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}


def _masks(size: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Ones strictly below the diagonal, and with it; kept, since every chunk asks for the same."""
    if torch.compiler.is_compiling():
        ones = torch.ones(size, size, device=device, dtype=dtype)
        return ones.tril(-1), ones.tril()
    if (size, device, dtype) not in _known_masks:
        ones = torch.ones(size, size, device=device, dtype=dtype)
        _known_masks[size, device, dtype] = ones.tril(-1), ones.tril()
    return _known_masks[size, device, dtype]


class GateGrads(NamedTuple):
    """The derivative of `coefficients`."""

    alpha: Tensor
    eta: Tensor


def coefficients_backward(
    gates: GateValues,
    mixed: Coefficients,
    d_mix: Tensor,
    d_last_momentum: Tensor,
    d_beta: Tensor,
    d_u: Tensor,
    d_last_carry: Tensor,
) -> GateGrads:
    """Carry the derivative back to the gates.

    A running-product matrix is `P = (I - diag(f) shift)^-1`, so `dP = P^T dP P^T` gives the
    derivative by the factors without dividing by any of them.
    """
    keep = 1 - gates.alpha
    active = gates.active
    added = mixed.decay if active is None else mixed.decay * active[:, None, :]
    first = gates.eta[:, :1]
    d_mix[..., 0] += d_u * first
    d_added = torch.bmm(d_mix, mixed.momentum.mT)
    d_momentum = torch.bmm(added.mT, d_mix)
    d_momentum[:, -1] += d_last_momentum
    d_momentum[:, -1, 0] += d_last_carry * first[:, 0]
    d_decay = d_added if active is None else d_added * active[:, None, :]
    d_decay[..., 0] += d_beta * keep[:, :1]

    d_keep = running_products_backward(mixed.decay, d_decay)
    d_keep[:, 0] += (d_beta * mixed.decay[..., 0]).sum(-1)
    d_eta = running_products_backward(mixed.momentum, d_momentum)
    d_eta[:, 0] += (d_u * mixed.mix[..., 0]).sum(-1) + d_last_carry * mixed.momentum[:, -1, 0]
    return GateGrads(-d_keep, d_eta)


def running_products_backward(product: Tensor, grad: Tensor) -> Tensor:
    """The derivative by the factors; `grad` is overwritten."""
    inner = torch.bmm(product.mT, grad.tril_())
    return torch.nn.functional.pad((inner[:, 1:] * product[:, :-1]).sum(-1), (1, 0))


class _RunningProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factor: Tensor) -> Tensor:
        products = running_products(factor)
        ctx.save_for_backward(factor, products)
        return products

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        factor, products = ctx.saved_tensors
        if is_recorded():
            return through(lambda f: (running_products(f),), (factor,), (grad,))[0]
        return running_products_backward(products, grad.clone())


def differentiable_products(factor: Tensor) -> Tensor:
    """`running_products` for autograd, with a derivative that divides by nothing."""
    return _RunningProducts.apply(factor) if by_hand() else running_products(factor)  # type: ignore[no-any-return]
