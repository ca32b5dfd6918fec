"""MAL, memory as a layer: the memory, then attention over its answers (section 4.3).

x ── memory over [P | x] ── m ── sliding-window attention over [M(P) | m] ── o
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
    """`o = attention(norm(m))`, `m = M(x~)`."""

    def __init__(self, config: TitansConfig, has_memory: bool = True) -> None:
        super().__init__(config)
        dim = config.hidden_size
        self.window = config.window
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
        heard = prefix if self.memory_mode == "off" else self.memory_norm(answers)
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
        report = None
        if self.memory is not None and self.memory_norm is not None and self.memory_mode != "off":
            m, state, report = remember(self, x, state, rows, write_mask)
            x = self.memory_norm(m)
        queries = self.attention.queries(x, rows.positions)
        new = self.attention.key_values(x, rows.positions)
        past = None if rows.start == 0 else state.past
        attended = window_attention(queries, new, rows, self.window, past=past, prefix=state.prefix)
        state = replace(state, past=slide(state.past, new, rows))  # type: ignore[arg-type]
        return Mixed(self.attention.output(attended), state, report)
