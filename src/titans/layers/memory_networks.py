"""What a memory can be: the network whose weights are written at test time.

`MLP` (and its special cases `linear` and `residual_mlp`) is a description; the layer holds its
initial weights and the closed form of `ops.scan` does the rest. `GatedMemory`,
`SwiGLUMemory` and `FactorisedMemory` are ordinary modules, as yours may be: they map
`[..., dim]` to `[..., dim]` and run through the generic path of `ops.generic`.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

LAYER_GAIN = 2.0
"""Of every layer but the first: SiLU halves the small inputs that a key of length one gives it."""


@dataclass(frozen=True, kw_only=True)
class MLP:
    """`depth` linear layers with SiLU between them; M(k) = z_depth (+ k if residual)."""

    depth: int = 2
    """L >= 1; 1 is a linear memory."""
    expansion: float = 2.0
    """Hidden width as a multiple of the head's width."""
    bias: bool = False
    """Give each layer a bias, a part of the memory like its weight."""
    residual: bool = False
    """Add the key to the output."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"a memory needs depth >= 1, got {self.depth}")
        if not self.expansion > 0:
            raise ValueError(f"expansion must be above 0, got {self.expansion}")

    def widths(self, head_dim: int, value_dim: int | None = None) -> list[int]:
        """The width of every layer's input, and of the output (`head_dim`, unless given)."""
        hidden = max(1, round(head_dim * self.expansion))
        return [head_dim, *[hidden] * (self.depth - 1), value_dim or head_dim]

    def initial_parameters(
        self, num_heads: int, head_dim: int, value_dim: int | None = None
    ) -> list[Tensor]:
        """Random weights `[heads, out, in]` that keep the scale of their input, zero biases."""
        widths = self.widths(head_dim, value_dim)
        parameters: list[Tensor] = []
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
            gain = LAYER_GAIN if layer else 1.0
            parameters.append(torch.randn(num_heads, fan_out, fan_in) * gain * fan_in**-0.5)
            if self.bias:
                parameters.append(torch.zeros(num_heads, fan_out))
        return parameters


def linear() -> MLP:
    """A matrix: the memory of linear attention and the delta rule."""
    return MLP(depth=1)


def residual_mlp(depth: int = 2, expansion: float = 2.0) -> MLP:
    """An MLP that starts near the identity's scale: M(k) = MLP(k) + k."""
    return MLP(depth=depth, expansion=expansion, residual=True)


class GatedMemory(nn.Module):
    """`W_out (silu(W_in x) * sigmoid(W_gate x))`."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, hidden, bias=False)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.outer = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Float[Tensor, "*lead dim"]) -> Float[Tensor, "*lead dim"]:
        """Recall the values of keys `x`."""
        return self.outer(nn.functional.silu(self.inner(x)) * torch.sigmoid(self.gate(x)))


class SwiGLUMemory(nn.Module):
    """`W_out (silu(W_gate x) * W_in x)`."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, hidden, bias=False)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.outer = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Float[Tensor, "*lead dim"]) -> Float[Tensor, "*lead dim"]:
        """Recall the values of keys `x`."""
        return self.outer(nn.functional.silu(self.gate(x)) * self.inner(x))


class FactorisedMemory(nn.Module):
    """A linear memory of low rank: `U V x`, for a smaller state."""

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)

    def forward(self, x: Float[Tensor, "*lead dim"]) -> Float[Tensor, "*lead dim"]:
        """Recall the values of keys `x`."""
        return self.up(self.down(x))
