"""The gates of the memory: how much to forget, to keep of past surprise, to write."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from titans.layers.memory_config import MemoryConfig
from titans.layers.short_conv import ShortConv, next_tail
from titans.ops import Gates
from titans.ops.online import largest_rate

LOOK_BACK_CHANNELS = 4
"""Numbers per token and head that gates remember of the tokens before."""
CHANNELS_START = (1e-3, 0.1)
"""alpha of a head's first and last channel before training (`rule: kda`), as is usual there."""


class GatePast(NamedTuple):
    """What gates look back at."""

    held: Float[Tensor, "batch 3 heads"]
    """The open chunk's gates (`gates: chunk`)."""
    tail: Float[Tensor, "batch past channels"]
    """Last inputs of the gates' convolution (`gate_conv_size`)."""


class MemoryGates(nn.Module):
    """Linear + sigmoid, one number per token and head; biases give the initial gates.

    With a convolution, `linear(x_t) + linear(silu(conv(linear(x))_t))` instead of `linear(x_t)`.
    With `rule: kda`, alpha has one number per channel of the key, `sigmoid(up(down(x_t)))` through
    `head_dim` numbers: the published gate without its learned scale (A = 1).
    """

    def __init__(self, dim: int, config: MemoryConfig) -> None:
        super().__init__()
        assert config.num_heads is not None, "resolved"
        self.num_heads, self.chunk_size = config.num_heads, config.chunk_size
        self.kind, self.conv_size = config.gates, config.gate_conv_size
        self.step_max, self.is_online = float(config.step_max or 0), config.rule == "online"
        # Plain numbers, not a buffer: a layer made on the meta device must not lose them.
        self.start = (
            config.forget_init,
            config.momentum_init,
            float(config.step_init or 0) / self.step_max if self.step_max else 0.0,
        )
        self.by_channel = config.rule == "kda"
        self.used = (config.forgetting and not self.by_channel, config.momentum, True)
        if self.kind != "constant":
            self.proj = nn.Linear(dim, sum(self.used) * self.num_heads)
            if self.conv_size:
                channels = LOOK_BACK_CHANNELS * self.num_heads
                self.past_proj = nn.Linear(dim, channels)
                self.past_conv = ShortConv(channels, self.conv_size)
                self.past_out = nn.Linear(channels, self.proj.out_features, bias=False)
            if self.by_channel:
                rank = int(config.head_dim or 0)
                self.channel_down = nn.Linear(dim, rank, bias=False)
                self.channel_up = nn.Linear(rank, self.num_heads * (config.features or rank))
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights near zero and biases that give the initial gates."""
        if self.kind == "constant":
            return
        nn.init.normal_(self.proj.weight, std=0.02)
        start = [s for s, used in zip(self.start, self.used, strict=True) if used]
        logits = [math.log(p / (1 - p)) for p in (min(max(s, 1e-6), 1 - 1e-6) for s in start)]
        self.proj.bias.copy_(torch.tensor(logits).repeat_interleave(self.num_heads))
        if self.conv_size:
            nn.init.normal_(self.past_out.weight, std=0.02)
        if self.by_channel:
            first, last = (math.log(alpha) for alpha in CHANNELS_START)
            size = self.channel_up.out_features // self.num_heads
            start = torch.linspace(first, last, size).exp().logit()
            self.channel_up.bias.copy_(start.repeat(self.num_heads))

    def initial_past(self, batch: int, like: Tensor) -> GatePast:
        """Before the first token, in the type and on the device of `like`."""
        size = self.conv_size
        channels = LOOK_BACK_CHANNELS * self.num_heads if size else 0
        return GatePast(
            like.new_zeros(batch, 3, self.num_heads),
            like.new_zeros(batch, max(size - 1, 0), channels),
        )

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        position: Int[Tensor, " batch"],
        past: GatePast,
        lengths: Int[Tensor, " batch"] | None,
    ) -> tuple[Gates, GatePast]:
        """The gates of every token, and what those of the next call look back at.

        Args:
            position: tokens absorbed before this call, per row.
            past: what the call before returned.
            lengths: how many of each row's tokens are real (they come first); None means all.
        """
        held, tail = past
        values, tail = self._values(x, tail, lengths)
        if self.kind == "chunk":
            values, held = self._hold(values, position, held, lengths)
        alpha, eta, step = values.unbind(2)
        if self.by_channel:
            logits = self.channel_up(self.channel_down(x)).to(alpha.dtype)
            alpha = torch.sigmoid(logits).unflatten(-1, (self.num_heads, -1))
        # Momentum then decides when a write arrives, not how much: otherwise training drives eta
        # to one, where the stabiliser holds every write down (docs/decisions/0003-stabiliser.md).
        whole = largest_rate(eta) / 2 if self.is_online else 1 - eta
        return Gates(alpha, eta, step * self.step_max * whole), GatePast(held, tail)

    def _values(self, x: Tensor, tail: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """alpha, eta, step / step_max as `[batch time 3 heads]`, and the next tail."""
        batch, time = x.shape[:2]
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        if self.kind == "constant":
            values = [s if used else 0.0 for s, used in zip(self.start, self.used, strict=True)]
            row = torch.tensor(values, device=x.device, dtype=dtype)
            return row[None, None, :, None].expand(batch, time, 3, self.num_heads), tail
        logits = self.proj(x)
        if self.conv_size:
            raw = self.past_proj(x)
            logits = logits + self.past_out(nn.functional.silu(self.past_conv(raw, tail)))
            tail = next_tail(raw, tail, lengths)
        found = torch.sigmoid(logits.to(dtype)).unflatten(-1, (-1, self.num_heads))
        parts = iter(found.unbind(2))
        off = found.new_zeros(batch, time, self.num_heads)
        return torch.stack([next(parts) if used else off for used in self.used], dim=2), tail

    def _hold(
        self, values: Tensor, position: Tensor, held: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Give every token the gates of its chunk's first token."""
        batch, time = values.shape[:2]
        rows = torch.arange(batch, device=values.device)[:, None]
        places = torch.arange(time, device=values.device)[None, :]
        opened = (position[:, None] + places) // self.chunk_size * self.chunk_size
        first = opened - position[:, None]
        chosen = values[rows, first.clamp_min(0)]
        chosen = torch.where((first >= 0)[..., None, None], chosen, held[:, None].to(values.dtype))
        if lengths is None:
            return chosen, chosen[:, -1].to(held.dtype)
        last = chosen[rows[:, 0], (lengths - 1).clamp_min(0)].to(held.dtype)
        return chosen, torch.where((lengths > 0)[:, None, None], last, held)
