"""Signs of trouble while a model trains.

Why a loss is not finite (which parameter, which layer, what the gates were doing), a gradient that
jumps, and a memory that forgets too fast to be of use.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn

from titans.data.batch import Batch
from titans.errors import TitansError
from titans.models import TitansConfig
from titans.training.checkpoint import Progress
from titans.training.processes import whole

JUMP = 10.0
"""A gradient norm this many times the usual one is a jump."""
FIRST_STEPS = 10
"""The norms of these are not judged: they fall from the start of every training."""


class NonFiniteLoss(TitansError, FloatingPointError):
    """Training stopped because several steps in a row were not finite. It says so in lines."""

    def __str__(self) -> str:
        """The message as it was written."""
        return FloatingPointError.__str__(self)


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
            "  Lower train.learning_rate or model.memory.step_init, raise train.warmup_steps, or "
            "set model.memory.step_limit."
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


def gradient_jump(norm: float, progress: Progress) -> str:
    """What to say of the gradient's norm before clipping; empty unless it jumped.

    The usual norm is a geometric mean of about the last ten steps. After a jump it begins again, so
    a norm that stays large is told once.
    """
    usual = progress.usual_grad_norm
    if norm <= 0:
        return ""
    has_jumped = usual > 0 and progress.step > FIRST_STEPS and norm > JUMP * usual
    progress.usual_grad_norm = norm if has_jumped or not usual else usual**0.9 * norm**0.1
    if not has_jumped:
        return ""
    return (
        f"step {progress.step}: the gradient's norm jumped to {norm:.3g} before clipping, usual "
        f"is {usual:.3g}; if it happens often, lower train.learning_rate or train.max_grad_norm"
    )


def fast_forgetting(
    forget_gate: object, config: TitansConfig, sequence_len: int, progress: Progress
) -> str:
    """What to say of a mean forget gate with which the memory cannot be long; told once.

    A memory must outlast what attention sees without it: a segment (MAC) or a window (MAG, MAL).
    In an LMM it must outlast the sequence.
    """
    if not isinstance(forget_gate, float) or not 0 < forget_gate < 1:
        return ""
    spans = {
        "mac": (config.segment_len, "of a segment"),
        "lmm": (sequence_len, "of a sequence"),
    }
    span, of_what = spans.get(config.variant, (config.window, "of the attention window"))
    half_life = math.log(0.5) / math.log1p(-forget_gate)
    told = progress.forgets_fast
    # Not told again until it was clearly longer in between.
    progress.forgets_fast = half_life < (2 * span if told else span)
    if told or not progress.forgets_fast:
        return ""
    return (
        f"step {progress.step}: the memory forgets half in {half_life:.0f} tokens (mean forget "
        f"gate {forget_gate:.2g}), fewer than the {span} {of_what}"
    )
