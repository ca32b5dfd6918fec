"""Forward hooks on a model's memories: what went in, what came out, with no change to the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from titans.analysis.probes import PartOutputs, memory_share, watch_parts
from titans.layers.memory import NeuralMemory
from titans.layers.memory_state import MemoryTrace, NeuralMemoryState
from titans.models import TitansForCausalLM
from titans.models.mixer import Mixer


@dataclass(frozen=True)
class Call:
    """One call of a memory, for one row."""

    x: Tensor
    """`[1 time dim]`."""
    before: NeuralMemoryState
    after: NeuralMemoryState
    trace: MemoryTrace
    write_mask: Tensor | None = None
    """What the model allowed to be written, `[1 time]`; None: everything."""

    @property
    def write_size(self) -> Tensor:
        """theta times the gradient norm where the token was written, `[1 time heads]`."""
        return self.trace.gates.step_size * self.trace.surprise.grad_norm * self.trace.written


@dataclass(frozen=True)
class Watched:
    """A memory of a model."""

    layer: int
    memory: NeuralMemory
    mixer: Mixer
    calls: list[Call]
    """In the order of the text (MAC calls its memory once per segment)."""
    parts: PartOutputs

    def take(self) -> tuple[list[Call], Tensor | None]:
        """The calls since the last time, and the memory's share in the layer's output, `[time]`."""
        calls = list(self.calls)
        share = memory_share(self.mixer, self.parts)
        self.calls.clear()
        self.parts.clear()
        return calls, share


def memories(model: TitansForCausalLM) -> list[Watched]:
    """Every memory of a model, in the order of its layers."""
    found = []
    for number, block in enumerate(model.model.layers):
        mixer = block.mixer
        assert isinstance(mixer, Mixer)
        if mixer.memory is not None:
            found.append(Watched(number, mixer.memory, mixer, [], PartOutputs()))
    return found


@contextmanager
def watching(found: list[Watched]) -> Iterator[None]:
    """Note every call of the memories while this is open."""
    handles = []
    for watched in found:
        handles.append(_watch_memory(watched))
        handles += watch_parts(watched.mixer, watched.parts)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _watch_memory(watched: Watched) -> torch.utils.hooks.RemovableHandle:
    def note(module: nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
        x, before = args
        _, after, trace = output
        watched.calls.append(Call(x, before, after, trace, kwargs.get("write_mask")))

    return watched.memory.register_forward_hook(note, with_kwargs=True)
