"""The state of a `NeuralMemory` layer: the memory, and what convolutions and gates look back at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.serialization import add_safe_globals
from torch.utils._pytree import _register_namedtuple, register_dataclass

from titans.layers.gates import GatePast
from titans.ops import Gates, MemoryState, Surprise
from titans.ops.tree import TensorTree, map_tree


class MemoryTrace(NamedTuple):
    """What a call did with each token. At padding, only `active` and `written` have a meaning."""

    gates: Gates
    """alpha, eta and theta as they were made. Differentiable."""
    surprise: Surprise
    """The token's loss, differentiable, and the norm of its gradient."""
    active: Bool[Tensor, "batch time heads"]
    """False: nothing was written and nothing forgotten."""
    written: Bool[Tensor, "batch time heads"]
    """True: the token's gradient was added."""

    def map(self, fn: Callable[[Tensor], Tensor]) -> "MemoryTrace":
        """Apply `fn` to every tensor."""
        return map_tree(fn, self)

    @classmethod
    def join(cls, parts: Sequence["MemoryTrace"]) -> "MemoryTrace":
        """One trace of several calls, one after the other in time."""
        return map_tree(lambda *same: torch.cat(same, dim=1), *parts)


@dataclass(frozen=True)
class NeuralMemoryState(TensorTree):
    """Everything a `NeuralMemory` needs to continue exactly. Constant size; a value."""

    FORMAT = "titans.neural_memory_state"
    PARTS = {"memory": MemoryState, "gate_past": GatePast}  # noqa: RUF012
    SAVED = {"gate_past.held": "chunk_gates", "gate_past.tail": "gate_tail"}  # noqa: RUF012

    memory: MemoryState
    """Weights, momentum, position."""
    conv_tail: Float[Tensor, "batch past three_inner"]
    """Last inputs of the query, key and value convolutions."""
    read_tail: Float[Tensor, "batch past inner"]
    """Last inputs of the query convolution of `read`, which is a stream of its own."""
    gate_past: GatePast
    """What the gates look back at."""

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.memory.batch

    @property
    def position(self) -> Int[Tensor, " batch"]:
        """Tokens written so far, per row."""
        return self.memory.position

    @classmethod
    def from_named_tensors(cls, named: Mapping[str, Tensor]) -> "NeuralMemoryState":
        """The inverse of `named_tensors`; states from before gates had a tail have none."""
        if "chunk_gates" in named and "gate_tail" not in named:
            held = named["chunk_gates"]
            named = {**named, "gate_tail": held.new_zeros(len(held), 0, 0)}
        return super().from_named_tensors(named)


# So that states pass through `torch.export`, `vmap`, whatever else maps over tensors, and
# `torch.load(weights_only=True)`: they are nothing but data.
add_safe_globals([MemoryState, NeuralMemoryState, GatePast])
register_dataclass(MemoryState, serialized_type_name="titans.MemoryState")
_register_namedtuple(GatePast, serialized_type_name="titans.GatePast")
register_dataclass(NeuralMemoryState, serialized_type_name="titans.NeuralMemoryState")
