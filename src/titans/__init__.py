"""Titans: a neural long-term memory that learns while it reads.

The public names are loaded when first used, so that `import titans` (and `titans --help`) is
instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from titans import ops as ops
    from titans.layers.gates import GateSettings as GateSettings
    from titans.layers.memory import NeuralMemory as NeuralMemory
    from titans.layers.memory_networks import MLP as MLP
    from titans.layers.memory_parts import Parts as Parts
    from titans.layers.memory_state import NeuralMemoryState as NeuralMemoryState
    from titans.ops import ScanOptions as ScanOptions

_HOMES = {
    "GateSettings": "titans.layers.gates",
    "MLP": "titans.layers.memory_networks",
    "NeuralMemory": "titans.layers.memory",
    "NeuralMemoryState": "titans.layers.memory_state",
    "Parts": "titans.layers.memory_parts",
    "ScanOptions": "titans.ops",
    "ops": "titans",
}
"""Public name -> module that holds it."""

__all__ = [
    "MLP",
    "GateSettings",
    "NeuralMemory",
    "NeuralMemoryState",
    "Parts",
    "ScanOptions",
    "ops",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'titans' has no attribute {name!r}")
    home = _HOMES[name]
    value = (
        import_module(f"{home}.{name}") if home == "titans" else getattr(import_module(home), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
