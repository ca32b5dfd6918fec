"""What a trace holds: plain arrays in typed records, of a size that does not grow with the text.

Axes: `tokens` are the first tokens of the text, up to a limit; `bins` and `reads` are spread over
the whole of it, at most a fixed number; `heads` are the memories of a layer. NaN means "none".
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]

MEMORY_QUANTITIES = (
    "loss",
    "grad_norm",
    "forget_gate",
    "momentum_decay",
    "step_size",
    "written",
)
"""What is measured of every token in every head. `write_size` follows from them."""

MODES = ("live", "frozen", "off")
"""What a memory does: reads and writes, only reads at its start, or is left out."""


class Passage(NamedTuple):
    """Tokens to read, in order, and (if known) the text that each of them stands for."""

    ids: Tensor
    """`[time]`."""
    texts: list[str]
    """One per token; together they are the text. Empty: unknown."""


@dataclass(frozen=True, kw_only=True)
class TokenTrace:
    """What one layer's memory made of each kept token, `[tokens heads]`."""

    loss: FloatArray
    """Surprise: the inner loss at the weights of the chunk's start."""
    grad_norm: FloatArray
    """Momentary surprise: the norm of that loss's gradient."""
    forget_gate: FloatArray
    """alpha."""
    momentum_decay: FloatArray
    """eta."""
    step_size: FloatArray
    """theta."""
    written: FloatArray
    """1 where the token was written, 0 where a threshold or a mask kept it out."""

    @property
    def write_size(self) -> FloatArray:
        """How much was written: theta times the gradient norm; 0 where nothing was.

        The stabiliser may make it smaller still.
        """
        return self.step_size * self.grad_norm * self.written


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A quantity over the whole text, in bins of `width` tokens, `[bins channels]`."""

    width: int
    mean: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def positions(self) -> IntArray:
        """The first token of every bin."""
        return np.arange(len(self.mean), dtype=np.int64) * self.width


@dataclass(frozen=True, kw_only=True)
class Life:
    """The memory itself at some moments, `[reads heads]`; norms are Frobenius, over all weights."""

    positions: IntArray
    """Tokens read at that moment."""
    weight_norm: FloatArray
    drift: FloatArray
    """Distance of the weights from where they started."""
    momentum_norm: FloatArray
    effective_rank: FloatArray
    """`[reads heads matrices]`: exp of the entropy of the singular values, per weight matrix."""
    drift_rank: FloatArray
    """The same of what was written, weights less initial weights; 0 while there is nothing."""


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """How associations that were written read back later.

    For an association (k, v) and the initial memory M_0,

        recall = <M(k) - M_0(k), v - M_0(k)> / |v - M_0(k)|^2

    is 1 where the memory answers v, and 0 where it answers as if it had read nothing.
    """

    written_at: IntArray
    """`[probes]`: the token that wrote the association."""
    at_once: FloatArray
    """`[probes heads]`: recall right after the write, age 0."""
    read_at: IntArray
    """`[reads]`: tokens read when all of them were asked for."""
    recall: FloatArray
    """`[probes reads heads]`; NaN before the write."""
    gate_only: FloatArray
    """`[probes reads heads]`: what the forgetting gates alone would have left of the write."""

    @property
    def ages(self) -> IntArray:
        """`[probes reads]`: tokens between write and read; negative before the write."""
        return self.read_at[None, :] - 1 - self.written_at[:, None]


@dataclass(frozen=True, kw_only=True)
class LayerTrace:
    """One layer with a memory."""

    layer: int
    num_heads: int
    tokens: TokenTrace
    curves: dict[str, Curve]
    """`MEMORY_QUANTITIES` and `write_size`, channels are heads; `memory_share` where the memory
    gates attention (one channel)."""
    life: Life
    forgetting: Forgetting
    memory_share: FloatArray | None = None
    """`[tokens]`: see `titans.analysis.probes`."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """Loss of the model's next-token prediction with the memory live, frozen and off."""

    loss: Curve
    """nats; channels are `MODES`."""
    tokens: FloatArray
    """`[tokens 3]`: the loss at each kept token, predicted from those before it."""
    mean_loss: tuple[float, float, float]
    """Over the whole text."""
    accuracy: tuple[float, float, float]
    """Share of tokens that were the likeliest."""
    gain: tuple[float, float]
    """Loss when frozen, and when off, less the loss when live."""
    gain_error: tuple[float, float]
    """Standard errors of the gains, from the spread over bins; NaN with fewer than two bins."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """One of the strongest writes of the text, with the words around it."""

    position: int
    write_size: float
    """Mean over layers and heads."""
    loss: float
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    """As `ids`; empty if unknown."""
    offset: int
    """Which of them is the peak."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Everything that was observed while a model read a text."""

    name: str
    """What was read by what, for titles."""
    variant: str
    num_parameters: int
    chunk_size: int
    num_tokens: int
    """Tokens read."""
    ids: IntArray
    """`[tokens]`: those that are kept one by one."""
    texts: tuple[str, ...]
    """Their texts, or empty."""
    layers: tuple[LayerTrace, ...]
    worth: Worth | None
    """None if only the memory was traced."""
    peaks: tuple[Peak, ...]
    state_bytes: int
    """Size of what the model carries from token to token."""
    notes: tuple[str, ...] = field(default=())
    """What a reader should know before believing the numbers."""

    def layer(self, number: int) -> LayerTrace:
        """The record of a layer, by its number in the model."""
        for layer in self.layers:
            if layer.layer == number:
                return layer
        known = ", ".join(str(layer.layer) for layer in self.layers)
        raise ValueError(f"layer {number} has no memory; there are {known}")

    def surprise(self, measure: str = "loss") -> FloatArray:
        """`[tokens]`: loss, grad_norm or write_size of every kept token, mean of all memories."""
        if measure not in ("loss", "grad_norm", "write_size"):
            raise ValueError(f"measure must be loss, grad_norm or write_size; got {measure!r}")
        parts = [getattr(layer.tokens, measure).mean(1) for layer in self.layers]
        return np.stack(parts).mean(0)
