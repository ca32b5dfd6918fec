"""The neural memory of a scope, online: what is written for a text, and how a state is kept.

Every write is logged as the exact keys and values (float16, rounded before use), so a state can be
computed again from any snapshot, by any process, to the bit. Built on `titans.ops.step`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from titans import ops
from titans.errors import StateError
from titans.files import read_tensors
from titans.ops import MemoryState
from titans.recall.config import NeuralConfig, neural_to_json
from titans.recall.neural.sketch import sketch_words
from titans.recall.neural.turn import TurnNetwork

CONTENT, CONTEXT = 0, 1
"""The heads of `roles="associative"`."""
CHECKPOINT_FORMAT = "titans.text_memory"
CHECKPOINT_VERSION = 1


@dataclass(frozen=True)
class Write:
    """What one text writes: a key and a value per head; an idle head has a value of zeros."""

    keys: Float[Tensor, "heads dim"]
    values: Float[Tensor, "heads dim"]

    def to_bytes(self) -> bytes:
        """As kept in the store."""
        return torch.stack([self.keys, self.values]).half().numpy().tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, num_heads: int) -> "Write":
        """The inverse; float16 widened to float32."""
        flat = torch.from_numpy(np.frombuffer(data, dtype=np.float16).astype(np.float32))
        keys, values = flat.view(2, num_heads, -1)
        return cls(keys, values)

    def rounded(self) -> "Write":
        """As it will be read back from the store."""
        return Write(self.keys.half().float(), self.values.half().float())


@dataclass(frozen=True)
class Observation:
    """A text as the memory met it, before and after the write (the symbols of turn.py)."""

    s: Float[Tensor, " dim"]
    h: Float[Tensor, " dim"]
    y: Float[Tensor, " dim"]
    write: Write
    surprise: float
    """The loss of the first head, before the write."""


@dataclass(frozen=True)
class Surroundings:
    """What `roles="associative"` needs to know beyond the text's vector."""

    word_weights: dict[str, float]
    """Each stem of the text with its information in nats (surprisal under what was read so far)."""
    recent: tuple[Float[Tensor, " dim"], ...] = ()
    """The vectors of up to two texts before this one in the same session, oldest first."""
    centre: Float[Tensor, " dim"] | None = None
    """The mean vector of the scope, subtracted so that what all texts share does not count."""


class OnlineMemory:
    """The rules of the neural memory: observing, writing, reading, saving. Holds no state."""

    def __init__(
        self, encoder_dim: int, config: NeuralConfig, checkpoint: str | None = None
    ) -> None:
        self.config = config
        self.turn = TurnNetwork(encoder_dim, config).eval().requires_grad_(False)
        if checkpoint is not None:
            load_turn(self.turn, checkpoint)

    @property
    def dim(self) -> int:
        """Width of the vector per text."""
        return self.turn.dim

    def initial_state(self) -> MemoryState:
        """A memory that has seen nothing."""
        return self.turn.initial_state()

    @torch.no_grad()
    def observe(
        self, pooled: Float[Tensor, " encoder_dim"], state: MemoryState, around: Surroundings
    ) -> Observation:
        """Steps 1 to 4 without changing the state: vector, read, attention, keys, surprise."""
        s = self.turn.embed(pooled[None])
        h = self.turn.read(s, state)[:, -1]
        y = self.turn.attend(s, h)
        write = self._write(y[0], around).rounded()
        surprise = self._losses(write, state)[0]
        return Observation(s[0], h[0], y[0], write, float(surprise))

    @torch.no_grad()
    def absorb(self, state: MemoryState, write: Write) -> MemoryState:
        """Step 4: the state after a write."""
        active = (write.values.abs().sum(-1) > 0).float()
        keys, values = write.keys[None], write.values[None]
        gates = self.turn.gates(1, active)
        return ops.step(keys, keys, values, gates, state, chunk_size=1)[1]

    @torch.no_grad()
    def search_vector(self, y: Float[Tensor, " dim"], state: MemoryState) -> Float[Tensor, " dim"]:
        """Step 5: o = y * M(y)."""
        return self.turn.output(y[None], self.turn.read(y[None], state)[:, 0])[0]

    @torch.no_grad()
    def read(
        self,
        pooled: Float[Tensor, " encoder_dim"],
        state: MemoryState,
        centre: Tensor | None = None,
    ) -> Float[Tensor, "heads dim"]:
        """What every head answers to a text, e.g. a question."""
        s = self.turn.embed(pooled[None])
        if centre is not None:
            s = F.normalize(s - centre, dim=-1)
        return self.turn.read(s, state)[0]

    def _losses(self, write: Write, state: MemoryState) -> Float[Tensor, " heads"]:
        predicted = ops.read_memory(write.keys[None, None], state)[0, 0]
        return (predicted - write.values).square().sum(-1)

    def _write(self, y: Float[Tensor, " dim"], around: Surroundings) -> Write:
        if self.config.roles == "self":
            key, value = self.turn.pairs(y[None])
            return Write(key, value)
        words = torch.from_numpy(sketch_words(around.word_weights, self.dim))
        key, value = context_pair(y, around)
        return Write(torch.stack([y, key]), torch.stack([words, value]))

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


def context_pair(y: Tensor, around: Surroundings) -> tuple[Tensor, Tensor]:
    """What the context head writes: the text before this one -> the mean of it and its neighbours.

    A text is written when its successor arrives: only then is it known what surrounds it.
    """
    if not around.recent:
        return torch.zeros_like(y), torch.zeros_like(y)
    centre = torch.zeros_like(y) if around.centre is None else around.centre
    texts = [F.normalize(x - centre, dim=-1) for x in (*around.recent, y)]
    return texts[-2], F.normalize(torch.stack(texts).sum(0), dim=-1)


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
