"""What the memories of a model did during one call: sums over tokens, so that reports add up."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class MemoryReport:
    """Sums over the real tokens and heads of one memory in one call."""

    loss: Tensor
    """Associative loss, differentiable."""
    grad_norm: Tensor
    """Norm of the loss's gradient."""
    forget_gate: Tensor
    """alpha."""
    momentum_decay: Tensor
    """eta."""
    step_size: Tensor
    """theta, differentiable."""
    written: Tensor
    """Tokens that were written."""
    count: Tensor
    """Tokens."""

    def __add__(self, other: "MemoryReport") -> "MemoryReport":
        """The report of both."""
        return MemoryReport(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def mean_loss(self) -> Tensor:
        """Mean associative loss per token, differentiable."""
        return self.loss / self.count.clamp(min=1)

    @property
    def mean_step(self) -> Tensor:
        """Mean step size per token, differentiable."""
        return self.step_size / self.count.clamp(min=1)


def summarise(reports: Sequence[MemoryReport]) -> dict[str, Tensor]:
    """Means over tokens, detached, one number per layer that has a memory: `[layers]` each."""
    names = {
        "surprise": "loss",
        "grad_norm": "grad_norm",
        "forget_gate": "forget_gate",
        "momentum_decay": "momentum_decay",
        "step_size": "step_size",
        "written_share": "written",
    }

    def mean(field: str) -> Tensor:
        return torch.stack([getattr(r, field).detach() / r.count.clamp(min=1) for r in reports])

    return {name: mean(field) for name, field in names.items()}
