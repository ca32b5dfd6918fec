"""What a memory can be: the network whose weights are written at test time.

Of an MLP, the layer holds the initial weights and the closed form of `ops.scan` does the rest.
`GatedMemory`, `SwiGLUMemory` and `FactorisedMemory` are ordinary modules, as yours may be: they map
`[..., dim]` to `[..., dim]` and run through the generic path of `ops.generic`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from titans.layers.norm import fixed_length

LAYER_GAIN = 2.0
"""Of every layer but the first: SiLU halves the small inputs that a key of length one gives it."""


def mlp_parameters(num_heads: int, widths: Sequence[int], bias: bool = False) -> list[Tensor]:
    """Weights `[heads, out, in]` of an MLP, random at the scale of their input; biases zero.

    Args:
        widths: of every layer's input, and of the last one's output.
    """
    parameters: list[Tensor] = []
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        gain = LAYER_GAIN if layer else 1.0
        parameters.append(torch.randn(num_heads, fan_out, fan_in) * gain * fan_in**-0.5)
        if bias:
            parameters.append(torch.zeros(num_heads, fan_out))
    return parameters


class KeyProducts(nn.Module):
    """phi(k) = (A k) * (B k), elementwise, brought to unit length: a memory of degree two."""

    def __init__(self, num_heads: int, head_dim: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, num_heads, features, head_dim))

    def forward(
        self, keys: Float[Tensor, "batch time heads dim"]
    ) -> Float[Tensor, "batch time heads features"]:
        """The features of keys or queries."""
        first, second = torch.einsum("bthd,phfd->pbthf", keys, self.weight.to(keys.dtype))
        return fixed_length(first * second)


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


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "gated": GatedMemory,
    "swiglu": SwiGLUMemory,
    "factorised": FactorisedMemory,
}
"""`MemoryConfig.network` -> its module, from `head_dim` and the hidden width (or rank)."""
