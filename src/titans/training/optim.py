"""AdamW, its parameter groups, and the learning rate of each step."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from titans.layers.gates import MemoryGates
from titans.training.config import TrainConfig
from titans.training.processes import split_like, whole


@dataclass(frozen=True)
class Group:
    """Which parameters are treated alike."""

    name: str
    is_memory: bool
    decays: bool


GROUPS = (
    Group("matrices", is_memory=False, decays=True),
    Group("vectors", is_memory=False, decays=False),
    Group("memory_matrices", is_memory=True, decays=True),
    Group("memory_vectors", is_memory=True, decays=False),
)
"""Matrices decay. Vectors do not: norms, biases, convolutions, gates, embeddings, persistent
vectors and initial memories (their scale has a meaning, and decay would pull it away)."""


def group_of(model: nn.Module, memory_names: set[str]) -> dict[str, Group]:
    """The group of each parameter, by its name."""
    gates = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, MemoryGates)
        for parameter in module.parameters()
    }
    matrices = {
        f"{prefix}.weight"
        for prefix, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module.weight) not in gates
    }
    return {
        name: next(
            g
            for g in GROUPS
            if g.is_memory == (name in memory_names) and g.decays == (name in matrices)
        )
        for name, _ in model.named_parameters()
    }


def build_optimizer(model: nn.Module, config: TrainConfig, memory_names: set[str]) -> Optimizer:
    """AdamW over all parameters, also those that a stage freezes: without a gradient they rest."""
    belongs = group_of(model, memory_names)
    parameters: dict[str, list[nn.Parameter]] = {group.name: [] for group in GROUPS}
    for name, parameter in model.named_parameters():
        parameters[belongs[name].name].append(parameter)
    groups = [
        {
            "params": parameters[group.name],
            "name": group.name,
            "weight_decay": config.weight_decay if group.decays else 0.0,
            "rate_ratio": config.memory_learning_rate_ratio if group.is_memory else 1.0,
        }
        for group in GROUPS
        if parameters[group.name]
    ]
    return AdamW(groups, lr=config.learning_rate, betas=config.betas)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of optimizer step `step` (0 is the first): a warm-up, then a cosine.

    A closed form: there is no state of a scheduler to save.
    """
    warmup = config.warmup
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, config.steps - warmup)
    falling = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    floor = config.min_learning_rate_ratio
    return config.learning_rate * (floor + (1 - floor) * falling)


def set_learning_rate(optimizer: Optimizer, config: TrainConfig, step: int) -> float:
    """Set the rate of optimizer step `step` in every group; returns the common one."""
    rate = learning_rate(config, step)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_ratio"]
    return rate


def clip_gradients(model: nn.Module, max_norm: float) -> float:
    """Scale gradients to at most `max_norm` (0: leave them) and return their norm before that."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    limit = max_norm if max_norm > 0 else float("inf")
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    return float(whole(norm))


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `parameter:field` -> tensor, whole even if the model is split."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for field, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}:{field}"] = whole(value).detach().cpu()
    return tensors


def set_optimizer_tensors(
    model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` returned."""
    by_name = dict(model.named_parameters())
    for key, tensor in tensors.items():
        name, field = key.rsplit(":", 1)
        parameter = by_name[name]
        # AdamW keeps its step counts on the CPU.
        value = tensor if field == "step" else split_like(tensor.to(parameter.device), parameter)
        optimizer.state[parameter][field] = value
