"""The gates of the memory: how much to forget, to keep of past surprise, to write."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from titans.layers.short_conv import ShortConv, next_tail
from titans.ops import Gates

GateKind = Literal["token", "chunk", "constant"]
LOOK_BACK_CHANNELS = 4
"""Numbers per token and head that gates remember of the tokens before."""


class GatePast(NamedTuple):
    """What gates look back at."""

    held: Float[Tensor, "batch 3 heads"]
    """The open chunk's gates (`GateSettings.kind = "chunk"`)."""
    tail: Float[Tensor, "batch past channels"]
    """Last inputs of the gates' convolution (`GateSettings.conv_size`)."""


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """How the gates are made, and where they start."""

    kind: GateKind = "token"
    """`token`: from each token. `chunk`: from the first token of a chunk, held for the whole of
    it. `constant`: the initial values, for good."""
    forget_init: float = 5e-4
    """Initial alpha. Keep 1 / alpha above the lengths trained on: faster forgetting than that
    is never unlearned."""
    momentum_init: float = 0.5
    """Initial eta."""
    step_init: float = 0.1
    """Initial step: theta / (1 - eta), what a write comes to with the momentum that repeats it."""
    step_max: float = 1.0
    """Largest step."""
    use_forgetting: bool = True
    """Off: alpha = 0."""
    use_momentum: bool = True
    """Off: eta = 0."""
    conv_size: int = 0
    """Width of a causal convolution through which gates see the tokens before; 0: a gate sees its
    own token alone, and cannot tell the same token in two places apart (docs/log/memory.md)."""

    def __post_init__(self) -> None:
        if self.kind not in ("token", "chunk", "constant"):
            raise ValueError(f"gates must be token, chunk or constant, got {self.kind!r}")
        for name in ("forget_init", "momentum_init"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if not 0 <= self.step_init <= self.step_max:
            raise ValueError(
                f"step_init must lie in [0, step_max = {self.step_max}], got {self.step_init}"
            )
        if self.conv_size < 0:
            raise ValueError(f"conv_size must be 0 (none) or more, got {self.conv_size}")
        if self.conv_size and self.kind == "constant":
            raise ValueError(
                f"constant gates see no token: conv_size must be 0, got {self.conv_size}"
            )


class MemoryGates(nn.Module):
    """Linear + sigmoid, one number per token and head; biases set by `GateSettings`.

    With a convolution, `linear(x_t) + linear(silu(conv(linear(x))_t))` instead of `linear(x_t)`.
    """

    def __init__(self, dim: int, num_heads: int, chunk_size: int, settings: GateSettings) -> None:
        super().__init__()
        self.settings = settings
        self.num_heads = num_heads
        self.chunk_size = chunk_size
        # Plain numbers, not a buffer: a layer made on the meta device must not lose them.
        self.start = (
            settings.forget_init,
            settings.momentum_init,
            settings.step_init / settings.step_max if settings.step_max else 0.0,
        )
        self.used = (settings.use_forgetting, settings.use_momentum, True)
        if settings.kind != "constant":
            self.proj = nn.Linear(dim, sum(self.used) * num_heads)
            if settings.conv_size:
                self.past_proj = nn.Linear(dim, LOOK_BACK_CHANNELS * num_heads)
                self.past_conv = ShortConv(LOOK_BACK_CHANNELS * num_heads, settings.conv_size)
                self.past_out = nn.Linear(
                    LOOK_BACK_CHANNELS * num_heads, self.proj.out_features, bias=False
                )
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights near zero and biases that give the initial gates."""
        if self.settings.kind == "constant":
            return
        nn.init.normal_(self.proj.weight, std=0.02)
        start = [s for s, used in zip(self.start, self.used, strict=True) if used]
        logits = [math.log(p / (1 - p)) for p in (min(max(s, 1e-6), 1 - 1e-6) for s in start)]
        self.proj.bias.copy_(torch.tensor(logits).repeat_interleave(self.num_heads))
        if self.settings.conv_size:
            nn.init.normal_(self.past_out.weight, std=0.02)

    def initial_past(self, batch: int, like: Tensor) -> GatePast:
        """Before the first token, in the type and on the device of `like`."""
        size = self.settings.conv_size
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
        count: Int[Tensor, " batch"] | None,
    ) -> tuple[Gates, GatePast]:
        """The gates of every token, and what those of the next call look back at.

        Args:
            position: tokens absorbed before this call, per row.
            past: what the call before returned.
            count: how many of each row's tokens are real (they come first); None means all.
        """
        held, tail = past
        values, tail = self._values(x, tail, count)
        if self.settings.kind == "chunk":
            values, held = self._hold(values, position, held, count)
        alpha, eta, step = values.unbind(2)
        # Momentum then decides when a write arrives, not how much: otherwise training drives eta
        # to one, where the stabiliser holds every write down (docs/decisions/0003-stabiliser.md).
        theta = step * self.settings.step_max * (1 - eta)
        return Gates(alpha, eta, theta), GatePast(held, tail)

    def _values(self, x: Tensor, tail: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
        """alpha, eta, step / step_max as `[batch time 3 heads]`, and the next tail."""
        batch, time = x.shape[:2]
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        if self.settings.kind == "constant":
            values = [s if used else 0.0 for s, used in zip(self.start, self.used, strict=True)]
            row = torch.tensor(values, device=x.device, dtype=dtype)
            return row[None, None, :, None].expand(batch, time, 3, self.num_heads), tail
        logits = self.proj(x)
        if self.settings.conv_size:
            raw = self.past_proj(x)
            logits = logits + self.past_out(nn.functional.silu(self.past_conv(raw, tail)))
            tail = next_tail(raw, tail, count)
        found = torch.sigmoid(logits.to(dtype)).unflatten(-1, (-1, self.num_heads))
        parts = iter(found.unbind(2))
        off = found.new_zeros(batch, time, self.num_heads)
        return torch.stack([next(parts) if used else off for used in self.used], dim=2), tail

    def _hold(
        self, values: Tensor, position: Tensor, held: Tensor, count: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Give every token the gates of its chunk's first token."""
        batch, time = values.shape[:2]
        rows = torch.arange(batch, device=values.device)[:, None]
        places = torch.arange(time, device=values.device)[None, :]
        opened = (position[:, None] + places) // self.chunk_size * self.chunk_size
        first = opened - position[:, None]
        chosen = values[rows, first.clamp_min(0)]
        chosen = torch.where((first >= 0)[..., None, None], chosen, held[:, None].to(values.dtype))
        if count is None:
            return chosen, chosen[:, -1].to(held.dtype)
        last = chosen[rows[:, 0], (count - 1).clamp_min(0)].to(held.dtype)
        return chosen, torch.where((count > 0)[:, None, None], last, held)
