"""Normalisation of the last axis: to a given length, or by the root mean square and a scale.

Both compute in at least float32, whatever the input's type.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from titans.ops.derivatives import by_hand, is_recorded, through
from titans.ops.state import widened

_SHORTEST = 1e-12
"""A vector shorter than this, or than its type's smallest normal number, has no direction."""


def _stretch(x: Tensor, length: float, shortest: float) -> tuple[Tensor, Tensor]:
    """`x` at this length, and the factor that brought it there."""
    found = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # Not by clamping: the derivative of a zero vector would be 1e12, an infinity in float16. Nor
    # by one `where`: autograd multiplies the zero it gives to the other side by 1 / found^2.
    none = found < shortest
    factor = torch.where(none, 0.0, length / torch.where(none, 1.0, found))
    return x * factor, factor


class _FixedLength(torch.autograd.Function):
    """The derivative of `fixed_length` in three passes over the data; autograd's own takes ten."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: float, shortest: float) -> tuple[Tensor, Tensor]:
        y, factor = _stretch(x, length, shortest)
        ctx.save_for_backward(y, factor)
        ctx.set_materialize_grads(False)
        ctx.length = length
        return y, factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, d_factor: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Outputs alone are kept, so all of this can be differentiated again.
        y, factor = ctx.saved_tensors
        grad = torch.zeros_like(y) if grad is None else grad
        along = torch.linalg.vecdot(grad, y).unsqueeze(-1)
        along = along if d_factor is None else along + d_factor * factor
        return torch.addcmul(grad, y, along, value=-(ctx.length**-2)).mul_(factor), None, None


def fixed_length(x: Float[Tensor, "*lead dim"], length: float = 1.0) -> Float[Tensor, "*lead dim"]:
    """`x` brought to this length, in at least float32; zero stays zero (derivative zero)."""
    shortest = max(_SHORTEST, torch.finfo(x.dtype).tiny)
    stretch = _FixedLength.apply if by_hand() else _stretch
    return stretch(widened(x), length, shortest)[0]  # type: ignore[index,no-any-return]


def _root_mean_square(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    inverse = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return x * inverse * weight


class _RootMeanSquare(torch.autograd.Function):
    """`x / rms(x) * weight` with a derivative of few passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        plain = x * inverse
        ctx.save_for_backward(x, inverse, weight)
        ctx.eps = eps
        return plain * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, inverse, weight = ctx.saved_tensors
        if is_recorded():
            found = through(lambda x, w: (_root_mean_square(x, w, ctx.eps),), (x, weight), (grad,))
            return (*found, None)
        plain = x * inverse
        product = grad * plain
        d_weight = product.flatten(0, -2).sum(0)
        d_plain = torch.mul(grad, weight, out=product)
        along = torch.linalg.vecdot(d_plain, plain).unsqueeze(-1)
        d_x = d_plain.addcmul_(plain, along, value=-1 / plain.shape[-1]).mul_(inverse)
        return d_x, d_weight, None


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`, computed in at least float32 whatever the input's type."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Float[Tensor, "*lead dim"]) -> Float[Tensor, "*lead dim"]:
        """Normalise the last axis."""
        norm = _RootMeanSquare.apply if by_hand() else _root_mean_square
        return norm(widened(x), self.weight, self.eps).to(x.dtype)  # type: ignore[union-attr,no-any-return]

    def extra_repr(self) -> str:
        """Size and epsilon, for `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
