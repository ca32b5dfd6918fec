"""Causal depthwise convolution over time, with its past in an explicit tail."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from titans.ops.derivatives import by_hand, is_recorded, through


class _CausalConv(torch.autograd.Function):
    """The convolution of `ShortConv`; autograd's own derivative takes three times as long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tail: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, tail, weight)
        y = x * weight[0]
        for lag, here, there, early, past in _spans(x.shape[1], len(weight)):
            y[:, here].addcmul_(x[:, there], weight[lag])
            y[:, early].addcmul_(tail[:, past], weight[lag])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, tail, weight = ctx.saved_tensors
        if is_recorded():
            return through(lambda *given: (_convolve(*given),), (x, tail, weight), (grad,))
        d_x, d_tail, d_weight = grad * weight[0], torch.zeros_like(tail), torch.empty_like(weight)
        product = grad * x  # one buffer: a fresh one per lag would cost more than its sum
        d_weight[0] = product.sum((0, 1))
        for lag, here, there, early, past in _spans(x.shape[1], len(weight)):
            d_x[:, there].addcmul_(grad[:, here], weight[lag])
            d_tail[:, past].addcmul_(grad[:, early], weight[lag])
            torch.mul(grad[:, here], x[:, there], out=product[:, here])
            torch.mul(grad[:, early], tail[:, past], out=product[:, early])
            d_weight[lag] = product.sum((0, 1))
        return d_x, d_tail, d_weight


def _convolve(x: Tensor, tail: Tensor, weight: Tensor) -> Tensor:
    """`_CausalConv` in plain operations."""
    joined = torch.cat((tail, x), dim=1)
    past, time = tail.shape[1], x.shape[1]
    lags = [joined[:, past - lag : past - lag + time] * w for lag, w in enumerate(weight)]
    return sum(lags[1:], lags[0])


def _spans(time: int, size: int) -> Iterator[tuple[int, slice, slice, slice, slice]]:
    """Per lag: outputs here and the inputs there that they see; early outputs, and the tail's."""
    for lag in range(1, size):
        early = min(lag, time)
        begin = size - 1 - lag
        yield (
            lag,
            slice(early, time),
            slice(0, time - early),
            slice(0, early),
            slice(begin, begin + early),
        )


NOISE = 0.3
"""Standard deviation of a convolution's weights at the start, around the identity."""
LAGGED_NOISE = 0.1
"""The same, where it is said which token a convolution starts at."""


class ShortConv(nn.Module):
    """`y_t = sum_j weight_j * x_{t-j}` per channel; together with the projection before it, a
    depthwise-separable convolution.

    It starts as the identity plus noise: an untrained layer passes its input on, with enough of
    the tokens before it for a memory to bind neighbours (docs/log/models.md). With a `lag` it
    starts as the input `lag` tokens before, plus little noise.
    """

    def __init__(self, channels: int, size: int, lag: int | None = None) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a convolution needs size >= 1, got {size}; 0 is 'no convolution'")
        if lag is not None and not 0 <= lag < size:
            raise ValueError(f"a convolution over {size} tokens has lags below that; got {lag}")
        self.size = size
        noise = NOISE if lag is None else LAGGED_NOISE
        self.weight = nn.Parameter(torch.randn(size, channels) * noise)
        with torch.no_grad():
            self.weight[lag or 0] += 1

    def forward(
        self, x: Float[Tensor, "batch time channels"], tail: Float[Tensor, "batch past channels"]
    ) -> Float[Tensor, "batch time channels"]:
        """Convolve `x`, which follows the `size - 1` inputs in `tail`."""
        convolve = _CausalConv.apply if by_hand() else _convolve
        return convolve(x, tail.to(x.dtype), self.weight.to(x.dtype))  # type: ignore[no-any-return]


def next_tail(
    x: Float[Tensor, "batch time channels"],
    tail: Float[Tensor, "batch past channels"],
    lengths: Tensor | None,
) -> Float[Tensor, "batch past channels"]:
    """The last inputs, for the next call.

    Args:
        lengths: how many of each row's inputs are real (they come first); None means all.
    """
    past = tail.shape[1]
    if past == 0:
        return tail
    if lengths is None:
        recent = torch.cat([tail, x[:, -past:].to(tail.dtype)], dim=1)
        return recent[:, recent.shape[1] - past :]
    joined = torch.cat([tail, x.to(tail.dtype)], dim=1)
    rows = torch.arange(len(lengths), device=x.device)[:, None]
    return joined[rows, lengths[:, None] + torch.arange(past, device=x.device)]
