"""Persistent memory: learned vectors that stand before every sequence (Titans, section 3.3)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class PersistentMemory(nn.Module):
    """`num_vectors` learned inputs p_1..p_Np, the same for every sequence: knowledge of the task.

    They do not change while a model reads; only training changes them.
    """

    def __init__(self, num_vectors: int, dim: int, *, init_std: float = 0.02) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(num_vectors, dim))
        nn.init.normal_(self.vectors, std=init_std)

    def forward(self, batch: int) -> Float[Tensor, "batch vectors dim"]:
        """The vectors, for each row of a batch."""
        return self.vectors.expand(batch, -1, -1)

    def extra_repr(self) -> str:
        """Number and size, for `print(model)`."""
        return f"{self.vectors.shape[0]} vectors, dim={self.vectors.shape[1]}"
