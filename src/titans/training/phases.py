"""Two phases of a run: first the core without the memory, then the memory joins.

The memory's part of a model is, by definition, every parameter that gets no gradient while the
memory is off the path: the memories with their projections, gates and initial weights, and the
norms and gates that join them to the rest.
"""

from typing import Literal

import torch

from titans.errors import ConfigError
from titans.models import TitansForCausalLM
from titans.models.mixer import Mixer
from titans.training.config import TrainConfig

Phase = Literal["core", "all", "memory"]
"""core: memory off and frozen; all: everything trains; memory: the core is frozen."""


def phase_at(config: TrainConfig, step: int) -> Phase:
    """The phase that step `step` belongs to."""
    if step < config.core_steps:
        return "core"
    return "memory" if config.freeze_core else "all"


def memory_parameters(model: TitansForCausalLM) -> set[str]:
    """Names of the parameters that serve only the memory (see the module's docstring)."""
    if not model.config.has_memory:
        return set()
    if model.config.variant == "lmm":
        # Without its memory an LMM cannot see beyond a token: the mixer is the memory.
        return {
            f"{prefix}.{name}"
            for prefix, module in model.named_modules()
            if isinstance(module, Mixer)
            for name, _ in module.named_parameters()
        }
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    model.set_memory_mode("off")
    was_training = model.training
    model.train()
    try:
        model(tokens, use_cache=False).logits.sum().backward()
        silent = {name for name, p in model.named_parameters() if p.grad is None}
    finally:
        model.zero_grad(set_to_none=True)
        model.set_memory_mode("live")
        model.train(was_training)
    return silent


def check_phases(config: TrainConfig, model: TitansForCausalLM) -> None:
    """Refuse a first phase that cannot be."""
    if not config.core_steps:
        return
    if not model.config.has_memory:
        raise ConfigError(
            f"train.core_steps={config.core_steps}: the variant {model.config.variant!r} has no "
            "memory that could join later"
        )
    if model.config.variant == "lmm":
        raise ConfigError("train.core_steps: an LMM is all memory, it has no core to train first")


def freeze(model: TitansForCausalLM, phase: Phase, memory_names: set[str]) -> list[str]:
    """Switch the memory and freeze what the phase freezes; returns the frozen names."""
    model.set_memory_mode("off" if phase == "core" else "live")
    frozen = []
    for name, parameter in model.named_parameters():
        rests = {"core": name in memory_names, "memory": name not in memory_names}.get(phase, False)
        parameter.requires_grad_(not rests)
        if rests:
            parameter.grad = None
            frozen.append(name)
    return frozen
