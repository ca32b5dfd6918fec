"""Rotary position embedding that stays exact at millions of tokens.

Angles are computed in float64 and reduced by cos/sin before they are rounded to the input's type:
in float32 the angle of position 10^6 would already be wrong in its second decimal.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def rotate(
    x: Float[Tensor, "batch time heads dim"],
    positions: Int[Tensor, "batch time"],
    theta: float = 10_000.0,
) -> Float[Tensor, "batch time heads dim"]:
    """Turn each pair (x_i, x_{i + dim/2}) by `position * theta^(-2 i / dim)`.

    Dot products of two rotated vectors depend on the difference of their positions alone.
    """
    cos, sin = _angles(positions, x.shape[-1], theta, x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _angles(positions: Tensor, dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    steps = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.double()[:, :, None, None] * theta ** (-steps / dim)
    return angles.cos().to(dtype), angles.sin().to(dtype)
