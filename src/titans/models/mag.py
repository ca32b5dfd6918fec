"""MAG, memory as a gate: sliding-window attention and the memory side by side (section 4.2).

x ──┬── sliding-window attention over [P | x] ── a ──┐
    └── memory over [P | x] ───────────────────── m ──┴── a (x) m ── o
"""

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor

from titans.layers.attention import KeyValues, slide, window_attention
from titans.layers.memory import NeuralMemory
from titans.layers.norm import RMSNorm
from titans.layers.persistent import PersistentMemory
from titans.layers.rows import Rows
from titans.models.cache import BlockState
from titans.models.config import TitansConfig
from titans.models.mixer import (
    Mixed,
    Mixer,
    build_attention,
    build_convex_gate,
    empty_slots,
    gate_with_memory,
    mix_with_memory,
    remember,
    write_prefix,
)


class MAGMixer(Mixer):
    """`o = norm(a) * sigmoid(norm(m))` (paper), or `o = g a + (1 - g) m` (convex)."""

    def __init__(self, config: TitansConfig, has_memory: bool = True) -> None:
        super().__init__(config)
        dim = config.hidden_size
        self.window = config.window
        self.gate = config.mag_gate
        self.attention = build_attention(config)
        self.persistent = (
            PersistentMemory(config.num_persistent, dim) if config.num_persistent else None
        )
        self.memory = NeuralMemory(config.hidden_size, config.memory) if has_memory else None
        if self.memory is None:
            return
        if self.gate == "paper":
            self.attention_norm = RMSNorm(dim, config.rms_norm_eps)
            self.memory_norm = RMSNorm(dim, config.rms_norm_eps)
        else:
            self.gate_proj = build_convex_gate(config)

    def initial_state(self, batch: int) -> BlockState:
        """An empty window, and the memory after it has read the persistent vectors."""
        past = empty_slots(self.attention, batch, self.window)
        if self.memory is None:
            return BlockState(past=past)
        return BlockState(past=past, memory=write_prefix(self.memory, self.persistent, batch)[1])

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: BlockState,
        rows: Rows,
        write_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Mixed:
        """Attend to the near past, remember the far one, gate the one by the other."""
        assert state.past is not None
        a, past = self._attend(x, state, rows)
        state = replace(state, past=past)
        if self.memory is None:
            return Mixed(a, state, None)
        if self.memory_mode == "off":
            return Mixed(self._combine(x, a, None), state, None)
        m, state, report = remember(self, x, state, rows, write_mask)
        return Mixed(self._combine(x, a, m), state, report)

    def _attend(self, x: Tensor, state: BlockState, rows: Rows) -> tuple[Tensor, KeyValues]:
        assert state.past is not None
        prefix = None
        if self.persistent is not None:
            prefix = self.attention.key_values(self.persistent(rows.batch))
        queries = self.attention.queries(x, rows.positions)
        new = self.attention.key_values(x, rows.positions)
        past = None if rows.start == 0 else state.past
        attended = window_attention(queries, new, rows, self.window, past=past, prefix=prefix)
        return self.attention.output(attended), slide(state.past, new, rows)

    def _combine(self, x: Tensor, a: Tensor, m: Tensor | None) -> Tensor:
        if self.gate == "paper":
            return gate_with_memory(a, m, self.attention_norm, self.memory_norm)
        return mix_with_memory(x, a, m, self.gate_proj)
