"""Causal depthwise convolution over time, with its past in an explicit tail."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ShortConv(nn.Module):
    """`y_t = sum_j weight_j * x_{t-j}` per channel; together with the projection before it, a
    depthwise-separable convolution.

    It starts as the identity plus a little noise, so that an untrained layer passes its input on.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a convolution needs size >= 1, got {size}; 0 is 'no convolution'")
        self.size = size
        self.weight = nn.Parameter(torch.randn(size, channels) * 0.1)
        with torch.no_grad():
            self.weight[0] += 1

    def forward(
        self, x: Float[Tensor, "batch time channels"], tail: Float[Tensor, "batch past channels"]
    ) -> Float[Tensor, "batch time channels"]:
        """Convolve `x`, which follows the `size - 1` inputs in `tail`."""
        time = x.shape[1]
        joined = torch.cat([tail.to(x.dtype), x], dim=1)
        weight = self.weight.to(x.dtype)
        y = x * weight[0]
        for lag in range(1, self.size):
            begin = self.size - 1 - lag
            y = torch.addcmul(y, joined[:, begin : begin + time], weight[lag])
        return y


def next_tail(
    x: Float[Tensor, "batch time channels"],
    tail: Float[Tensor, "batch past channels"],
    count: Tensor | None,
) -> Float[Tensor, "batch past channels"]:
    """The last inputs, for the next call.

    Args:
        count: how many of each row's inputs are real (they come first); None means all.
    """
    past = tail.shape[1]
    if past == 0:
        return tail
    if count is None:
        recent = torch.cat([tail, x[:, -past:].to(tail.dtype)], dim=1)
        return recent[:, recent.shape[1] - past :]
    joined = torch.cat([tail, x.to(tail.dtype)], dim=1)
    rows = torch.arange(len(count), device=x.device)[:, None]
    return joined[rows, count[:, None] + torch.arange(past, device=x.device)]
