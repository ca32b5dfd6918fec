"""Normalisation of the last axis: to a given length, or by the root mean square and a scale."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

_SHORTEST = 1e-12
"""Vectors shorter than this are not stretched."""


class _FixedLength(torch.autograd.Function):
    """The derivative of `fixed_length` in three passes over the data; autograd's own takes ten."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: float) -> Tensor:
        found = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        factor = length / found.clamp_min_(_SHORTEST)
        y = x * factor
        ctx.save_for_backward(y, factor)
        ctx.length = length
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        y, factor = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, y).unsqueeze(-1)
        return torch.addcmul(grad, y, along, value=-(ctx.length**-2)).mul_(factor), None


def fixed_length(x: Float[Tensor, "*lead dim"], length: float = 1.0) -> Float[Tensor, "*lead dim"]:
    """`x` brought to this length; zero stays zero."""
    return _FixedLength.apply(x, length)  # type: ignore[no-any-return]


class _RootMeanSquare(torch.autograd.Function):
    """`x / rms(x) * weight` with a derivative of few passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        plain = x * inverse
        ctx.save_for_backward(plain, inverse, weight)
        return plain * weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        plain, inverse, weight = ctx.saved_tensors
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
        wide = x if x.dtype == torch.float64 else x.float()
        return _RootMeanSquare.apply(wide, self.weight, self.eps).to(x.dtype)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Size and epsilon, for `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
