"""The matched baselines: a Transformer with full attention, and one with a sliding window.

Same embedding, RoPE, SwiGLU network, norms and head as the models with a memory.
"""

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor

from titans.layers.attention import append, full_attention, slide, window_attention
from titans.layers.rows import Rows
from titans.models.cache import BlockState
from titans.models.config import TitansConfig
from titans.models.mixer import Mixed, Mixer, build_attention, empty_slots

FIRST_CAPACITY = 64
"""Slots of a new key-value cache; it doubles when full."""


class FullAttentionMixer(Mixer):
    """Every token sees all earlier tokens. The cache grows with the text."""

    def __init__(self, config: TitansConfig, has_memory: bool = False) -> None:
        super().__init__(config)
        self.attention = build_attention(config)

    def initial_state(self, batch: int) -> BlockState:
        """An empty key-value cache."""
        return BlockState(past=empty_slots(self.attention, batch, FIRST_CAPACITY))

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: BlockState,
        rows: Rows,
        write_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Mixed:
        """Full causal attention."""
        assert state.past is not None
        queries = self.attention.queries(x, rows.positions)
        new = self.attention.key_values(x, rows.positions)
        past = append(state.past, new, rows) if rows.resumable else None
        out = self.attention.output(full_attention(queries, new, rows, past))
        return Mixed(out, replace(state, past=past or state.past), None)


class WindowMixer(Mixer):
    """Every token sees the last `window` tokens. The cache has constant size."""

    def __init__(self, config: TitansConfig, has_memory: bool = False) -> None:
        super().__init__(config)
        self.window = config.window
        self.attention = build_attention(config)

    def initial_state(self, batch: int) -> BlockState:
        """An empty window."""
        return BlockState(past=empty_slots(self.attention, batch, self.window))

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: BlockState,
        rows: Rows,
        write_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Mixed:
        """Sliding-window attention."""
        assert state.past is not None
        queries = self.attention.queries(x, rows.positions)
        new = self.attention.key_values(x, rows.positions)
        past = None if rows.start == 0 else state.past
        out = self.attention.output(window_attention(queries, new, rows, self.window, past=past))
        return Mixed(out, replace(state, past=slide(state.past, new, rows)), None)
