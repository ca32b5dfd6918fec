"""The neural memory of a scope, online: what is written for a text, and how a state is kept.

Every write is logged as the exact keys and values (float16, rounded before use), so a state can be
computed again from any snapshot, by any process, to the bit.

The default is a matrix per head under the delta rule: `DeltaMemory`, in NumPy, so that a command
does not wait for PyTorch. It equals `titans.ops.step` (tests/recall/test_turn_steps.py), on which
all other configurations run (turn_memory.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from titans.errors import StateError
from titans.recall.config import NeuralConfig
from titans.recall.neural.sketch import sketch_words
from titans.recall.vectors import round_half, unit, widen

Array = NDArray[np.float32]
CONTENT, CONTEXT = 0, 1
"""The heads of `roles="associative"`."""
REPLAY_CHUNK = 48
"""Writes that a replay absorbs at once."""


@dataclass(frozen=True)
class Write:
    """What one text writes: a key and a value per head; an idle head has a value of zeros."""

    keys: Array
    """`[heads, dim]`."""
    values: Array
    """`[heads, dim]`."""

    def to_bytes(self) -> bytes:
        """As kept in the store."""
        return np.stack([self.keys, self.values]).astype(np.float16).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, num_heads: int) -> "Write":
        """The inverse; float16 widened to float32."""
        keys, values = cls.many_from_bytes([data], num_heads)[0]
        return cls(keys, values)

    @staticmethod
    def many_from_bytes(found: Sequence[bytes], num_heads: int) -> Array:
        """Writes as one array, as `replay` takes it."""
        flat = widen(np.frombuffer(b"".join(found), np.float16))
        return flat.reshape(len(found), 2, num_heads, -1)

    def rounded(self) -> "Write":
        """As it will be read back from the store."""
        return Write(round_half(self.keys), round_half(self.values))


@dataclass(frozen=True)
class Observation:
    """A text as the memory met it, before and after the write."""

    y: Array
    """Its vector, as it is written."""
    write: Write
    surprise: float
    """The loss of the first head, before the write."""


@dataclass(frozen=True)
class Surroundings:
    """What `roles="associative"` needs to know beyond the text's vector."""

    word_weights: dict[str, float]
    """Each stem of the text with its information in nats (surprisal under what was read so far)."""
    recent: tuple[Array, ...] = ()
    """The vectors of up to two texts before this one in the same session, oldest first."""
    centre: Array | None = None
    """The mean vector of the scope, subtracted so that what all texts share does not count."""


class OnlineMemory(Protocol):
    """The rules of a neural memory: observing, writing, reading, saving. Holds no state."""

    config: NeuralConfig
    dim: int
    """Width of the vector per text."""

    def initial_state(self) -> Any:
        """A memory that has seen nothing."""
        ...

    def size(self, state: Any) -> int:
        """Bytes of its weights."""
        ...

    def embed(self, pooled: Array) -> Array:
        """Vectors of unit length for pooled ones of the encoder, `[..., dim]`."""
        ...

    def observe(self, pooled: Array, state: Any, around: Surroundings) -> Observation:
        """Meet a text without changing the state: vector, keys, values, surprise."""
        ...

    def absorb(self, state: Any, write: Write) -> Any:
        """The state after a write."""
        ...

    def replay(self, state: Any, writes: Array) -> Any:
        """The state after many writes, `[writes, (key, value), heads, dim]`; its last bits may be
        others than those of `absorb`."""
        ...

    def search_vector(self, y: Array, state: Any) -> Array:
        """What the stored vectors are compared with: o = y * M(y)."""
        ...

    def dump(self, state: Any) -> bytes:
        """A snapshot."""
        ...

    def restore(self, data: bytes) -> Any:
        """The inverse of `dump`."""
        ...


def load_online_memory(
    encoder_dim: int, config: NeuralConfig, checkpoint: str | None = None
) -> OnlineMemory:
    """The memory that a configuration means."""
    plain = NeuralConfig()
    is_default = len(config.step_size) == plain.num_heads and config == replace(
        plain, step_size=config.step_size
    )
    if is_default and checkpoint is None:
        return DeltaMemory(encoder_dim, config)
    from titans.recall.neural.turn_memory import TurnMemory

    return TurnMemory(encoder_dim, config, checkpoint)


@dataclass(frozen=True)
class DeltaState:
    """A matrix per head, and how many texts it has seen."""

    weights: Array
    """`[heads, dim, dim]`: key to value."""
    position: int


class DeltaMemory:
    """W <- W - 2 theta (W k - v) k^T for each head, from zero: the gradient of ||W k - v||^2."""

    def __init__(self, dim: int, config: NeuralConfig) -> None:
        self.config, self.dim = config, dim
        self._rates = 2 * np.array(config.step_size, np.float32)

    def initial_state(self) -> DeltaState:
        """A memory that has seen nothing."""
        heads = self.config.num_heads
        return DeltaState(np.zeros((heads, self.dim, self.dim), np.float32), 0)

    def size(self, state: DeltaState) -> int:
        """Bytes of its weights."""
        return state.weights.nbytes

    def embed(self, pooled: Array) -> Array:
        """At unit length, without a projection."""
        return unit(pooled)

    def observe(self, pooled: Array, state: DeltaState, around: Surroundings) -> Observation:
        """The text's vector is the key of its words; its surroundings are a second pair."""
        y = self.embed(pooled)
        write = associative_write(y, around).rounded()
        error = state.weights[CONTENT] @ write.keys[CONTENT] - write.values[CONTENT]
        return Observation(y, write, float(error @ error))

    def absorb(self, state: DeltaState, write: Write) -> DeltaState:
        """The state after a write."""
        weights = state.weights.copy()
        for head in np.flatnonzero(write.values.any(1)).tolist():
            key = write.keys[head]
            error = weights[head] @ key - write.values[head]
            weights[head] -= np.outer(self._rates[head] * error, key)
        return DeltaState(weights, state.position + 1)

    def replay(self, state: DeltaState, writes: Array) -> DeltaState:
        """Many writes, a chunk at a time in closed form.

        With the keys K and values V of a chunk as rows, the errors E before each write solve
        (I + rate tril(K K^T, -1)) E = K W^T - V, and W loses rate E^T K.
        """
        weights = state.weights.copy()
        for begin in range(0, len(writes), REPLAY_CHUNK):
            chunk = writes[begin : begin + REPLAY_CHUNK]
            for head, rate in enumerate(self._rates):
                active = chunk[chunk[:, 1, head].any(1)]
                if not len(active):
                    continue
                keys, values = active[:, 0, head], active[:, 1, head]
                mixing = rate * np.tril(keys @ keys.T, -1)
                mixing.flat[:: len(active) + 1] = 1
                errors = np.linalg.solve(mixing, keys @ weights[head].T - values)
                weights[head] -= rate * (errors.T @ keys)
        return DeltaState(weights, state.position + len(writes))

    def search_vector(self, y: Array, state: DeltaState) -> Array:
        """o = y * M(y), M of the first head."""
        return y * (state.weights[CONTENT] @ y)

    def dump(self, state: DeltaState) -> bytes:
        """A snapshot in the layout of a `MemoryState`: a row of a batch of one."""
        position = np.array([state.position], np.int64)
        return save_arrays({"weights.0": state.weights[None], "position": position})

    def restore(self, data: bytes) -> DeltaState:
        """The inverse of `dump`."""
        named = load_arrays(data)
        heads = (1, self.config.num_heads, self.dim, self.dim)
        if named["weights.0"].shape != heads:
            raise StateError("a snapshot in the store has another shape than its configuration")
        return DeltaState(named["weights.0"][0], int(named["position"][0]))


def associative_write(y: Array, around: Surroundings) -> Write:
    """The pairs of both heads: a text's vector to its words, and to what stood around it."""
    words = sketch_words(around.word_weights, len(y))
    key, value = context_pair(y, around)
    return Write(np.stack([y, key]), np.stack([words, value]))


def context_pair(y: Array, around: Surroundings) -> tuple[Array, Array]:
    """What the context head writes: the text before this one -> the mean of it and its neighbours.

    A text is written when its successor arrives: only then is it known what surrounds it.
    """
    if not around.recent:
        return np.zeros_like(y), np.zeros_like(y)
    centre = np.zeros_like(y) if around.centre is None else around.centre
    texts = unit(np.stack([*around.recent, y]) - centre)
    return texts[-2], unit(texts.sum(0))
