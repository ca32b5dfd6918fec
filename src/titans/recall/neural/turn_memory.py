"""The neural memory in PyTorch, on `titans.ops`: any depth, momentum, forgetting, learned parts.

For the preset `classic`, for checkpoints of `titans memory train`, and for configurations of one's
own; the default one has a memory of its own (memory.py). Values come and go as arrays.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from titans import ops
from titans.errors import StateError
from titans.files import read_tensors
from titans.ops import MemoryState
from titans.recall.config import NeuralConfig, neural_to_json
from titans.recall.neural.memory import Observation, Surroundings, Write, associative_write
from titans.recall.neural.turn import TurnNetwork

Array = NDArray[np.float32]
CHECKPOINT_FORMAT = "titans.text_memory"
CHECKPOINT_VERSION = 1


class TurnMemory:
    """The rules of a neural memory with a `TurnNetwork` (the steps of turn.py)."""

    def __init__(
        self, encoder_dim: int, config: NeuralConfig, checkpoint: str | None = None
    ) -> None:
        self.config = config
        self.turn = TurnNetwork(encoder_dim, config).eval().requires_grad_(False)
        self.dim = self.turn.dim
        if checkpoint is not None:
            load_turn(self.turn, checkpoint)

    def initial_state(self) -> MemoryState:
        """A memory that has seen nothing."""
        return self.turn.initial_state()

    def size(self, state: MemoryState) -> int:
        """Bytes of its weights."""
        return sum(w.nbytes for w in state.weights)

    @torch.no_grad()
    def embed(self, pooled: Array) -> Array:
        """Step 1: vectors of unit length."""
        rows = torch.from_numpy(pooled.reshape(-1, pooled.shape[-1]))
        return self.turn.embed(rows).numpy().reshape(*pooled.shape[:-1], self.dim)

    @torch.no_grad()
    def observe(self, pooled: Array, state: MemoryState, around: Surroundings) -> Observation:
        """Steps 1 to 4 without changing the state: vector, read, attention, keys, surprise."""
        s = self.turn.embed(torch.from_numpy(pooled)[None])
        y = self.turn.attend(s, self.turn.read(s, state)[:, -1])
        write = self._write(y, around).rounded()
        keys, values = _tensors(write)
        predicted = ops.read_memory(keys[None], state)[0, 0]
        losses = (predicted - values[0]).square().sum(-1)
        return Observation(y[0].numpy(), write, float(losses[0]))

    def _write(self, y: Tensor, around: Surroundings) -> Write:
        if self.config.roles == "self":
            key, value = self.turn.pairs(y)
            return Write(key.numpy(), value.numpy())
        return associative_write(y[0].numpy(), around)

    @torch.no_grad()
    def absorb(self, state: MemoryState, write: Write) -> MemoryState:
        """Step 4: the state after a write."""
        keys, values = _tensors(write)
        active = (values[0].abs().sum(-1) > 0).float()
        gates = self.turn.gates(1, active)
        return ops.step(keys, keys, values, gates, state, chunk_size=1)[1]

    def replay(self, state: MemoryState, writes: Array) -> MemoryState:
        """One after the other."""
        for keys, values in writes:
            state = self.absorb(state, Write(keys, values))
        return state

    @torch.no_grad()
    def search_vector(self, y: Array, state: MemoryState) -> Array:
        """Step 5: o = y * M(y)."""
        asked = torch.from_numpy(y)[None]
        return self.turn.output(asked, self.turn.read(asked, state)[:, 0])[0].numpy()

    def dump(self, state: MemoryState) -> bytes:
        """A snapshot: weights, and momentum if there is any. Chunks of one token need no more."""
        named = {f"weights.{i}": w.contiguous() for i, w in enumerate(state.weights)}
        if self.config.momentum_decay:
            named.update({f"momentum.{i}": w.contiguous() for i, w in enumerate(state.momentum)})
        return save_tensors({**named, "position": state.position})

    def restore(self, data: bytes) -> MemoryState:
        """The inverse of `dump`."""
        named = load_tensors(data)
        state = self.initial_state()
        weights = tuple(named[f"weights.{i}"] for i in range(len(state.weights)))
        if any(a.shape != b.shape for a, b in zip(weights, state.weights, strict=True)):
            raise StateError("a snapshot in the store has another shape than its configuration")
        momentum = tuple(
            named.get(f"momentum.{i}", torch.zeros_like(w)) for i, w in enumerate(weights)
        )
        position = named["position"]
        return state.replace(
            weights=weights, chunk_weights=weights, momentum=momentum, position=position
        )


def _tensors(write: Write) -> tuple[Tensor, Tensor]:
    """Keys and values as a batch of one."""
    return torch.from_numpy(write.keys)[None], torch.from_numpy(write.values)[None]


def load_turn(turn: TurnNetwork, path: str | Path) -> None:
    """Put the parameters of a checkpoint of `titans memory train` into a turn."""
    named = read_tensors(path, CHECKPOINT_FORMAT, CHECKPOINT_VERSION)
    ours = turn.state_dict()
    wrong = [n for n, t in ours.items() if n not in named or named[n].shape != t.shape]
    if wrong or len(named) != len(ours):
        raise StateError(
            f"{path} does not fit this configuration ({', '.join(wrong[:3]) or 'extra tensors'}): "
            f"it needs {neural_to_json(turn.config)}"
        )
    turn.load_state_dict(named)
