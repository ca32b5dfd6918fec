"""One layer of a model: a token mixer and a feed-forward network, each with norm and residual."""

from dataclasses import replace
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from titans.layers.feed_forward import FeedForward
from titans.layers.norm import RMSNorm
from titans.layers.rows import Rows
from titans.layers.short_conv import ShortConv, next_tail
from titans.models.baselines import FullAttentionMixer, WindowMixer
from titans.models.cache import BlockState
from titans.models.config import TitansConfig
from titans.models.lmm import LMMMixer
from titans.models.mac import MACMixer
from titans.models.mag import MAGMixer
from titans.models.mal import MALMixer
from titans.models.mixer import Mixer
from titans.models.predictor import SurprisePredictor
from titans.models.report import MemoryReport

MIXERS: dict[str, type[Mixer]] = {
    "lmm": LMMMixer,
    "mac": MACMixer,
    "mag": MAGMixer,
    "mal": MALMixer,
    "transformer": FullAttentionMixer,
    "swa": WindowMixer,
}
"""Variant -> its token mixer."""


class BlockOutput(NamedTuple):
    """What a block returns."""

    x: Float[Tensor, "batch time dim"]
    state: BlockState
    report: MemoryReport | None
    predictor_loss: Float[Tensor, ""] | None


class Block(nn.Module):
    """`x + mixer(conv(norm(x)))`, then `x + feed_forward(norm(x))`."""

    def __init__(self, config: TitansConfig, layer: int) -> None:
        super().__init__()
        dim = config.hidden_size
        has_memory = config.layer_has_memory(layer)
        self.mixer_norm = RMSNorm(dim, config.rms_norm_eps)
        size = int(config.mixer_conv_size or 0)
        self.mixer_conv = ShortConv(dim, size) if size else None
        self.mixer = MIXERS[config.variant](config, has_memory)
        self.feed_forward_norm = RMSNorm(dim, config.rms_norm_eps)
        self.feed_forward = FeedForward(
            dim, int(config.intermediate_size or 0), init_std=config.initializer_range
        )
        self.predictor = None
        threshold = config.predictor_threshold
        if has_memory and threshold is not None:
            self.predictor = SurprisePredictor(dim, threshold, init_std=config.initializer_range)

    def initial_state(self, batch: int) -> BlockState:
        """The state before the first token."""
        state = self.mixer.initial_state(batch)
        weight = self.mixer_norm.weight
        if self.mixer_conv is not None:
            past = self.mixer_conv.size - 1
            state = replace(state, mixer_tail=weight.new_zeros(batch, past, len(weight)))
        if self.predictor is not None:
            state = replace(state, last_input=weight.new_zeros(batch, 1, len(weight)))
        return state

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: BlockState,
        rows: Rows,
        embedded: Float[Tensor, "batch time dim"],
    ) -> BlockOutput:
        """Mix tokens, then channels. `embedded` are the model's input embeddings."""
        h = self.mixer_norm(x)
        if self.mixer_conv is not None:
            tail = state.mixer_tail
            assert tail is not None
            state = replace(state, mixer_tail=next_tail(h, tail, rows.lengths))
            h = self.mixer_conv(h, tail)
        write_mask, predictor_loss = None, None
        if self.predictor is not None and self.mixer.memory_mode == "live":
            assert state.last_input is not None
            write_mask, predictor_loss, last = self.predictor(h, state.last_input, embedded, rows)
            state = replace(state, last_input=last)
        mixed = self.mixer(h, state, rows, write_mask)
        x = x + mixed.out
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return BlockOutput(x, mixed.state, mixed.report, predictor_loss)
