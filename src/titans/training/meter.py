"""Sums over steps, rows and processes, and the means that are logged from them."""

import math
from collections.abc import Mapping

from torch import Tensor

MEMORY_STATS = (
    "surprise",
    "forget_gate",
    "momentum_decay",
    "step_size",
    "written_share",
)
"""What is logged of the model's `memory_stats`, as means over layers."""


class Meter:
    """Sums since the last line of the log. Everything but the clock survives a checkpoint."""

    def __init__(self, sums: Mapping[str, float] | None = None) -> None:
        self.sums: dict[str, float] = dict(sums or {})
        self.seconds = 0.0
        """Spent on steps, waiting for data included; not on measurements and checkpoints."""
        self.waited = 0.0
        """Spent waiting for data."""

    def add(self, **amounts: float) -> None:
        """Add to some sums."""
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0.0) + amount

    def add_memory(self, stats: Mapping[str, Tensor] | None, num_tokens: int) -> None:
        """Add the memories' means over `num_tokens` tokens."""
        if not stats:
            return
        self.add(memory_tokens=num_tokens)
        for name in MEMORY_STATS:
            if name in stats:
                self.add(**{name: float(stats[name].mean()) * num_tokens})


def means(sums: Mapping[str, float], bytes_per_token: float | None) -> dict[str, object]:
    """What a line of the log says of the sums of all processes."""
    targets = max(1.0, sums.get("targets", 0.0))
    loss = sums.get("loss", 0.0) / targets
    values: dict[str, object] = {"loss": loss}
    if bytes_per_token is not None:
        values["bits_per_byte"] = bits_per_byte(loss, bytes_per_token)
    else:
        values["accuracy"] = sums.get("correct", 0.0) / targets
    for name in ("memory_loss", *MEMORY_STATS):
        if name in sums:
            values[name] = sums[name] / max(1.0, sums.get("memory_tokens", 0.0))
    return values


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """From nats per token."""
    return loss / math.log(2) / bytes_per_token
