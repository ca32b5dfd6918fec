"""The predictive write gate: write only what could not be foreseen.

    s_t = | f(h_{t-1}) - embed(x_t) |^2     h: the block's normalised input; f: learned, linear

Token t is written where s_t exceeds a threshold; the first token of a stream always is. Causal:
only the token before t and t itself are looked at. f learns from its own small loss and from
nothing else; that loss changes nothing but f.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from titans.layers.rows import Rows, last_columns


class SurprisePredictor(nn.Module):
    """Predicts each token's embedding from the token before."""

    def __init__(self, dim: int, threshold: float, *, init_std: float = 0.02) -> None:
        super().__init__()
        self.threshold = threshold
        self.proj = nn.Linear(dim, dim)
        nn.init.normal_(self.proj.weight, std=init_std)
        nn.init.zeros_(self.proj.bias)

    def forward(
        self,
        h: Float[Tensor, "batch time dim"],
        last_input: Float[Tensor, "batch 1 dim"],
        embedded: Float[Tensor, "batch time dim"],
        rows: Rows,
    ) -> tuple[Bool[Tensor, "batch time"], Float[Tensor, ""], Float[Tensor, "batch 1 dim"]]:
        """Which tokens to write, the predictor's loss, and the last input for the next call."""
        h = h.detach()
        before = torch.cat((last_input.to(h.dtype), h[:, :-1]), dim=1)
        error = (self.proj(before) - embedded.detach()).square().sum(-1)
        is_first = rows.positions == 0
        counted = ~is_first if rows.mask is None else ~is_first & rows.mask
        loss = (error * counted).sum() / counted.sum().clamp(min=1)
        return (error > self.threshold) | is_first, loss, last_columns(last_input, h, rows)
