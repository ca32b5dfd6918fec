"""Why a loss is not finite: which parameter, which layer, and what the gates were doing."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn

from titans.data.batch import Batch
from titans.errors import TitansError
from titans.training.processes import whole


class NonFiniteLoss(TitansError, FloatingPointError):
    """Training stopped because several steps in a row were not finite."""


@dataclass
class Diagnosis:
    """What was found."""

    step: int
    bad_steps: int
    bad_parameters: list[str] = field(default_factory=list)
    """Parameters that hold a number that is not finite."""
    first_bad_layer: str | None = None
    """The first module, in the order of the forward pass, that put out such a number."""
    bad_gradients: list[str] = field(default_factory=list)
    """Parameters whose gradient is not finite, where the forward pass was fine."""
    gates: dict[str, list[float]] = field(default_factory=dict)
    """The memories' means, layer by layer."""

    def text(self) -> str:
        """For a person."""
        lines = [f"{self.bad_steps} steps in a row were not finite; stopped at step {self.step}."]
        if self.bad_parameters:
            lines.append(f"  parameters not finite: {_few(self.bad_parameters)}")
        if self.first_bad_layer:
            lines.append(f"  first layer with a value that is not finite: {self.first_bad_layer}")
        elif self.bad_gradients:
            lines.append(
                f"  the forward pass is finite, these gradients are not: {_few(self.bad_gradients)}"
            )
        for name, values in self.gates.items():
            lines.append(f"  {name} by layer: {', '.join(f'{v:.3g}' for v in values)}")
        lines.append(
            "  Lower train.learning_rate or model.memory_step_init, raise train.warmup_steps, or "
            "set model.step_limit."
        )
        return "\n".join(lines)

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def diagnose(model: nn.Module, batch: Batch, step: int, bad_steps: int) -> Diagnosis:
    """Run the batch once more, watching every module."""
    found = Diagnosis(step=step, bad_steps=bad_steps)
    found.bad_parameters = [
        name for name, p in model.named_parameters() if not _is_finite(whole(p.detach()))
    ]
    found.bad_gradients = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not _is_finite(whole(p.grad))
    ]
    hooks = [
        module.register_forward_hook(_watch(name, found))
        for name, module in model.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            output = model(input_ids=batch.tokens, attention_mask=batch.mask, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    stats: Mapping[str, Tensor] = getattr(output, "memory_stats", None) or {}
    found.gates = {name: [float(v) for v in values] for name, values in stats.items()}
    return found


def _watch(name: str, found: Diagnosis):
    def hook(module: nn.Module, inputs: object, output: object) -> None:
        if found.first_bad_layer is None and not all(map(_is_finite, _tensors(output))):
            found.first_bad_layer = f"{name} ({type(module).__name__})"

    return hook


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _tensors(item)]
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in _tensors(item)]
    return []


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
