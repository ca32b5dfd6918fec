"""Titans: a neural long-term memory that learns while it reads.

The public names are loaded when first used, so that `import titans` (and `titans --help`) is
instant.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from titans import ops as ops
    from titans.layers.memory import NeuralMemory as NeuralMemory
    from titans.layers.memory_config import MemoryConfig as MemoryConfig
    from titans.layers.memory_state import NeuralMemoryState as NeuralMemoryState

_HOMES = {
    "MemoryConfig": "titans.layers.memory_config",
    "NeuralMemory": "titans.layers.memory",
    "NeuralMemoryState": "titans.layers.memory_state",
    "ops": "titans",
}
"""Public name -> module that holds it."""

__all__ = [
    "MemoryConfig",
    "NeuralMemory",
    "NeuralMemoryState",
    "ops",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("titans-neural-memory")
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
