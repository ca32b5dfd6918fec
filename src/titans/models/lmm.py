"""LMM: the neural memory alone is the token mixer (Titans, section 4.3)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from titans.layers.memory import NeuralMemory
from titans.layers.rows import Rows
from titans.models.cache import BlockState
from titans.models.config import TitansConfig
from titans.models.mixer import Mixed, Mixer, remember


class LMMMixer(Mixer):
    """`o = M(x)`. A layer without a memory mixes nothing: only its feed-forward network works."""

    def __init__(self, config: TitansConfig, has_memory: bool = True) -> None:
        super().__init__(config)
        self.memory = NeuralMemory(config.hidden_size, config.memory) if has_memory else None

    def initial_state(self, batch: int) -> BlockState:
        """The memory at its learned start."""
        if self.memory is None:
            return BlockState()
        return BlockState(memory=self.memory.initial_state(batch))

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: BlockState,
        rows: Rows,
        write_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Mixed:
        """Write every token, then read it."""
        if self.memory is None or self.memory_mode == "off":
            return Mixed(torch.zeros_like(x), state, None)
        return Mixed(*remember(self, x, state, rows, write_mask))
