"""Root-mean-square normalisation with a learnable scale."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`, computed in at least float32 whatever the input's type."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Float[Tensor, "*lead dim"]) -> Float[Tensor, "*lead dim"]:
        """Normalise the last axis."""
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)

    def extra_repr(self) -> str:
        """Size and epsilon, for `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
