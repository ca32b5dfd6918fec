"""MAL, memory as a layer: the memory, then attention over its answers (section 4.3).

x ─┬─ memory over [P | x] ── m ─(+)─ h ── sliding-window attention over [P + M(P) | h] ── a ─(+)─ o
   └───────────────────────────┘ └── m ─────────────────────────────────────────────────────┘

The residuals around memory and attention can be left out: then attention reads `m` and gives `o`.
"""

from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor

from titans.layers.attention import Attention, slide, window_attention
from titans.layers.memory import NeuralMemory
from titans.layers.norm import RMSNorm
from titans.layers.persistent import PersistentMemory
from titans.layers.rows import Rows
from titans.models.cache import BlockState
from titans.models.config import TitansConfig
from titans.models.mixer import (
    Mixed,
    Mixer,
    empty_slots,
    remember,
    write_prefix,
)


class MALMixer(Mixer):
    """`o = m + attention(norm(x + m))`, or `o = attention(norm(m))` without residuals."""

    def __init__(self, config: TitansConfig, has_memory: bool = True) -> None:
        super().__init__(config)
        dim = config.hidden_size
        self.window, self.residual = config.window, config.mal_residual
        self.memory = NeuralMemory(config.hidden_size, config.memory) if has_memory else None
        self.memory_norm = RMSNorm(dim, config.rms_norm_eps) if has_memory else None
        # The memory is heard through the attention alone, so that passes on what it gets; a sharp
        # start would amplify the rounding of what the memory answers.
        self.attention = Attention(
            dim,
            config.num_attention_heads,
            rope_theta=config.rope_theta,
            init_std=dim**-0.5,
            sharpness=0.3,
        )
        self.persistent = (
            PersistentMemory(config.num_persistent, dim) if config.num_persistent else None
        )

    def initial_state(self, batch: int) -> BlockState:
        """An empty window; the memory after the persistent vectors, and its answers to them."""
        past = empty_slots(self.attention, batch, self.window)
        prefix = None if self.persistent is None else self.persistent(batch)
        if self.memory is None or self.memory_norm is None:
            keys = None if prefix is None else self.attention.key_values(prefix)
            return BlockState(past=past, prefix=keys)
        answers, memory = write_prefix(self.memory, self.persistent, batch)
        if answers is None:
            return BlockState(past=past, memory=memory)
        assert prefix is not None
        heard = self._heard(prefix, None if self.memory_mode == "off" else answers)
        keys = self.attention.key_values(heard)
        return BlockState(past=past, prefix=keys, memory=memory)

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: BlockState,
        rows: Rows,
        write_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Mixed:
        """Remember, then attend to what the memory answered lately."""
        assert state.past is not None
        report = m = None
        if self.memory is not None and self.memory_mode != "off":
            m, state, report = remember(self, x, state, rows, write_mask)
        heard = self._heard(x, m)
        queries = self.attention.queries(heard, rows.positions)
        new = self.attention.key_values(heard, rows.positions)
        past = None if rows.start == 0 else state.past
        attended = window_attention(queries, new, rows, self.window, past=past, prefix=state.prefix)
        state = replace(state, past=slide(state.past, new, rows))  # type: ignore[arg-type]
        out = self.attention.output(attended)
        return Mixed(out if m is None or not self.residual else out + m, state, report)

    def _heard(self, x: Tensor, m: Tensor | None) -> Tensor:
        """What the attention reads; m is None where the memory is off."""
        if self.memory_norm is None or (m is None and not self.residual):
            return x
        if m is None:
            return self.memory_norm(x)
        return self.memory_norm(x + m if self.residual else m)
