"""The state of a `NeuralMemory` layer: the memory, and what convolutions and gates look back at."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.serialization import add_safe_globals
from torch.utils._pytree import _register_namedtuple, register_dataclass

from titans.errors import StateError
from titans.files import read_tensors, write_tensors
from titans.layers.gates import GatePast
from titans.ops import Gates, MemoryState, Surprise

FORMAT = "titans.neural_memory_state"
FORMAT_VERSION = 1


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
        gates, surprise = Gates(*map(fn, self.gates)), Surprise(*map(fn, self.surprise))
        return MemoryTrace(gates, surprise, fn(self.active), fn(self.written))

    @classmethod
    def join(cls, parts: Sequence["MemoryTrace"]) -> "MemoryTrace":
        """One trace of several calls, one after the other in time."""

        def together(several: Iterable[Tensor]) -> Tensor:
            return torch.cat(list(several), dim=1)

        return cls(
            Gates(*map(together, zip(*(part.gates for part in parts), strict=True))),
            Surprise(*map(together, zip(*(part.surprise for part in parts), strict=True))),
            together(part.active for part in parts),
            together(part.written for part in parts),
        )


@dataclass(frozen=True)
class NeuralMemoryState:
    """Everything a `NeuralMemory` needs to continue exactly. Constant size; a value."""

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

    @property
    def num_bytes(self) -> int:
        """Size of all tensors, as saved."""
        return sum(t.numel() * t.element_size() for t in self.named_tensors().values())

    def map(self, fn: Callable[[Tensor], Tensor]) -> "NeuralMemoryState":
        """Apply `fn` to every tensor."""
        return NeuralMemoryState(
            self.memory.map(fn),
            fn(self.conv_tail),
            fn(self.read_tail),
            GatePast(*map(fn, self.gate_past)),
        )

    def detach(self) -> "NeuralMemoryState":
        """Cut the autograd graph (truncated BPTT)."""
        return self.map(torch.Tensor.detach)

    def clone(self) -> "NeuralMemoryState":
        """A copy that shares no storage."""
        return self.map(torch.Tensor.clone)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "NeuralMemoryState":
        """Move to a device and, for the floating-point tensors, a type."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

        return self.map(move)

    def select(self, index: Int[Tensor, " rows"] | Sequence[int]) -> "NeuralMemoryState":
        """The rows at `index`, in that order; rows may repeat."""
        rows = torch.as_tensor(index, device=self.conv_tail.device)
        return self.map(lambda tensor: tensor.index_select(0, rows))

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor under a flat name."""
        named = {f"memory.{name}": t for name, t in self.memory.named_tensors().items()}
        named["conv_tail"] = self.conv_tail
        named["read_tail"] = self.read_tail
        named["chunk_gates"], named["gate_tail"] = self.gate_past
        return named

    @classmethod
    def from_named_tensors(cls, named: dict[str, Tensor]) -> "NeuralMemoryState":
        """The inverse of `named_tensors`; states from before gates had a tail have none."""
        held = named["chunk_gates"]
        inner = {n.removeprefix("memory."): t for n, t in named.items() if n.startswith("memory.")}
        return cls(
            MemoryState.from_named_tensors(inner),
            named["conv_tail"],
            named["read_tail"],
            GatePast(held, named.get("gate_tail", held.new_zeros(len(held), 0, 0))),
        )

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with a format version."""
        write_tensors(path, self.named_tensors(), FORMAT, FORMAT_VERSION)

    @classmethod
    def load(cls, path: str | Path) -> "NeuralMemoryState":
        """Read what `save` wrote."""
        named = read_tensors(path, FORMAT, FORMAT_VERSION)
        try:
            return cls.from_named_tensors(named)
        except KeyError as error:
            raise StateError(f"{path}: a state without {error}; save it again") from error

    def replace(self, **changes: object) -> "NeuralMemoryState":
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


# So that states pass through `torch.export`, `vmap`, whatever else maps over tensors, and
# `torch.load(weights_only=True)`: they are nothing but data.
add_safe_globals([MemoryState, NeuralMemoryState, GatePast])
register_dataclass(MemoryState, serialized_type_name="titans.MemoryState")
_register_namedtuple(GatePast, serialized_type_name="titans.GatePast")
register_dataclass(NeuralMemoryState, serialized_type_name="titans.NeuralMemoryState")
