"""Settings of layout 1, where a memory's settings were flat fields of the model, as of today.

`config.json` files, saved caches and YAML of that time are read through this one table.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from titans.errors import ConfigError

SINCE_FLAT: dict[str, tuple[str, object]] = {
    "chunk_size": ("memory.chunk_size", 16),
    "memory_num_heads": ("memory.num_heads", None),
    "memory_head_dim": ("memory.head_dim", None),
    "memory_value_dim": ("memory.value_dim", None),
    "memory_depth": ("memory.depth", 2),
    "memory_expansion": ("memory.expansion", 2.0),
    "memory_rule": ("memory.rule", "titans"),
    "memory_conv_kernel": ("memory.conv_size", 4),
    "memory_key_lag": ("memory.key_lag", None),
    "memory_value_norm": ("memory.value_norm", 4.0),
    "memory_momentum": ("memory.momentum", True),
    "memory_forgetting": ("memory.forgetting", True),
    "memory_gates": ("memory.gates", "token"),
    "memory_gate_kernel": ("memory.gate_conv_size", 0),
    "memory_step_init": ("memory.step_init", 0.1),
    "memory_step_max": ("memory.step_max", 1.0),
    "memory_forget_init": ("memory.forget_init", 5e-4),
    "memory_momentum_init": ("memory.momentum_init", 0.5),
    "memory_init": ("memory.init", None),
    "memory_written": ("memory.written", "all"),
    "forget_towards": ("memory.forget_towards", "initial"),
    "step_limit": ("memory.step_limit", 1.0),
    "memory_gradient": ("memory.gradient", "full"),
    "surprise_measure": ("memory.surprise_measure", "loss"),
    "surprise_threshold": ("memory.surprise_threshold", None),
    "write_threshold": ("memory.write_threshold", None),
    "train_with_threshold": ("memory.train_with_threshold", False),
    "mixer_conv_kernel": ("mixer_conv_size", None),
    "write_gate": ("predictor_threshold", None),
}
"""Flat name -> its name today, and what it was where a file does not say."""


def upgrade_names(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flat model section under the names of today; what it does not say is left out."""
    given = dict(flat)
    gate, threshold = given.pop("write_gate", None), given.get("surprise_threshold")
    if gate == "predictive":
        given["surprise_threshold"] = None
    found: dict[str, Any] = {}
    memory: dict[str, Any] = dict(given.pop("memory", {}))
    for name, value in given.items():
        new = SINCE_FLAT.get(name, (name, None))[0]
        if name == "memory_rule" and value == "titans":
            value = "chunk"
        section, _, field = new.rpartition(".")
        (memory if section else found)[field] = value
    if gate == "predictive":
        found["predictor_threshold"] = threshold
    return {**found, "memory": memory} if memory else found


def upgrade_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` of layout 1, with the defaults of its time."""
    old = {name: default for name, (_, default) in SINCE_FLAT.items() if name != "write_gate"}
    return {"mal_residual": False, **upgrade_names({**old, **content})}


def refuse_flat(names: Iterable[str], where: str = "") -> None:
    """Raise on a setting under its name of layout 1, with the name that it has now."""
    for name in names:
        if name in SINCE_FLAT:
            raise ConfigError(f"{where}{name} is now called {where}{SINCE_FLAT[name][0]}")


def is_flat(content: Mapping[str, Any]) -> bool:
    """Whether any setting has a name of layout 1."""
    return any(name in SINCE_FLAT for name in content)
