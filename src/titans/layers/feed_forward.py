"""SwiGLU feed-forward network: the channel mixer of every block."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class FeedForward(nn.Module):
    """`down(silu(gate(x)) * up(x))`, without biases."""

    def __init__(self, dim: int, hidden_dim: int, *, init_std: float = 0.02) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.up_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.down_proj = nn.Linear(hidden_dim, dim, bias=False)
        for linear in (self.gate_proj, self.up_proj, self.down_proj):
            nn.init.normal_(linear.weight, std=init_std)

    def forward(self, x: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """Mix the channels of each token; tokens do not see each other."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
