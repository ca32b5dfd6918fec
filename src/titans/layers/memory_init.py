"""How a memory starts: M_0, before anything is written."""

from typing import Literal, get_args

MemoryInit = Literal["learned", "random", "zero_first", "zero_last"]
MEMORY_INITS: tuple[MemoryInit, ...] = get_args(MemoryInit)


def passes_no_error(written: str, init: str | None, depth: int) -> bool:
    """Whether the one layer that is written lies behind or before a layer of zeros for good."""
    return depth > 1 and (written, init) in (("first", "zero_last"), ("last", "zero_first"))


def default_init(depth: int) -> MemoryInit:
    """How a memory of so many layers starts: where a deep one starts is not to be learned.

    Its layers multiply, and grow in training until a write overshoots.
    """
    return "learned" if depth <= 2 else "random"
