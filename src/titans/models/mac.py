"""MAC, memory as context: attention sees what the memory knows about the segment (section 4.1).

For each segment S of `segment_len` tokens, with the memory M as it stood before the segment:

      h = M(S)                              read, nothing is written
      y = S + s attention over [P | h | S]  token j sees h_i and S_i for i <= j only
      m = M(y)                              write y, token by token, and read it
      o = y (x) m

NOTE(paper): h_i is computed from token i, so showing the whole of h to every token, as the paper's
figure suggests, would let tokens see the future; hence `i <= j`. The read in `m` is causal, too.
NOTE(paper): the residual in y is the paper's "residual connections in all blocks". Without it the
memory is written with what an untrained attention makes of a segment, its average. For the same
reason s, a scale per channel, is learned and starts small.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from titans.layers.attention import KeyValues, attend, join
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
)
from titans.models.report import MemoryReport
from titans.models.segments import Piece, fill_slots, plan_segments
from titans.ops.checks import eager
from titans.ops.tree import where_rows

FIRST_SCALE = 0.1
"""The attention's part in y at the start of training, per channel: the memory learns first, from
the tokens themselves (docs/log/models.md)."""


class MACMixer(Mixer):
    """`o = g a + (1 - g) m` with the attention a = y - S (convex), `o = norm(y) * sigmoid(norm(m))`
    (normalised), or `o = y * m` (product)."""

    def __init__(self, config: TitansConfig, has_memory: bool = True) -> None:
        super().__init__(config)
        dim = config.hidden_size
        self.segment_len = config.segment_len
        self.gate = config.mac_gate
        self.attention = build_attention(config)
        self.attention_scale = nn.Parameter(torch.full((dim,), FIRST_SCALE))
        self.persistent = (
            PersistentMemory(config.num_persistent, dim) if config.num_persistent else None
        )
        self.memory = NeuralMemory(config.hidden_size, config.memory) if has_memory else None
        if self.memory is not None and self.gate == "normalised":
            self.attention_norm = RMSNorm(dim, config.rms_norm_eps)
            self.memory_norm = RMSNorm(dim, config.rms_norm_eps)
        if self.memory is not None and self.gate == "convex":
            self.gate_proj = build_convex_gate(config)

    def initial_state(self, batch: int) -> BlockState:
        """Empty slots for the open segment, and the memory at its learned start."""
        segment = empty_slots(self.attention, batch, self.segment_len)
        if self.memory is None:
            return BlockState(segment=segment)
        context = empty_slots(self.attention, batch, self.segment_len)
        memory = self.memory.initial_state(batch)
        weights = memory.memory.weights
        return BlockState(segment=segment, context=context, memory=memory, segment_weights=weights)

    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: BlockState,
        rows: Rows,
        write_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Mixed:
        """One segment after the other: each reads what the earlier ones wrote."""
        return _segments(self, x, state, rows, write_mask)

    def segment(
        self, x: Tensor, state: BlockState, piece: Piece, write_mask: Tensor | None
    ) -> Mixed:
        """The figure above, for the part of a segment that lies in this call."""
        use_memory = self.memory is not None and self.memory_mode != "off"
        h = None
        if use_memory:
            state = _open_segment(state, piece, self.segment_len)
            h, state = self._read(x, state, piece)
        a, state = self._attend(x, h, state, piece)
        if self.memory is None:
            return Mixed(a, state, None)
        y = x + a
        if not use_memory:
            return Mixed(self._combine(x, a, y, None), state, None)
        m, state, report = remember(self, y, state, piece.rows, write_mask)
        return Mixed(self._combine(x, a, y, m), state, report)

    def _read(self, x: Tensor, state: BlockState, piece: Piece) -> tuple[Tensor, BlockState]:
        """h: what the memory, as it stood before the segment, knows about its tokens."""
        now = state.memory
        assert self.memory is not None and now is not None
        before = now.replace(memory=now.memory.replace(weights=state.segment_weights))
        h, before = self.memory.read(x, before, lengths=piece.rows.lengths)
        return h, replace(state, memory=now.replace(read_tail=before.read_tail))

    def _attend(
        self, x: Tensor, h: Tensor | None, state: BlockState, piece: Piece
    ) -> tuple[Tensor, BlockState]:
        slots = piece.slots(self.segment_len)
        queries = self.attention.queries(x, slots)
        segment = self.attention.key_values(x, slots)
        context = None if h is None else self.attention.key_values(h, slots)
        assert state.segment is not None
        whole = piece.begins and piece.rows.lengths is None
        if not (whole and piece.rows.time == self.segment_len):
            state = replace(state, segment=fill_slots(state.segment, segment, piece))
            if context is not None and state.context is not None:
                state = replace(state, context=fill_slots(state.context, context, piece))
        if not piece.begins:
            assert state.segment is not None
            segment, context = state.segment, None if context is None else state.context
        prefix = None
        if self.persistent is not None:
            prefix = self.attention.key_values(self.persistent(x.shape[0]))
        mask = _visible(slots, segment, context, prefix, from_start=piece.begins)
        attended = attend(queries, join(prefix, context, segment), mask)
        return self.attention_scale * self.attention.output(attended), state

    def _combine(self, x: Tensor, a: Tensor, y: Tensor, m: Tensor | None) -> Tensor:
        if self.gate == "convex":
            return mix_with_memory(x, a, m, self.gate_proj)
        if self.gate == "normalised":
            return gate_with_memory(y, m, self.attention_norm, self.memory_norm)
        return y if m is None else y * m


@eager(recursive=False)
def _segments(
    mixer: MACMixer, x: Tensor, state: BlockState, rows: Rows, write_mask: Tensor | None
) -> Mixed:
    """The loop stays out of graphs: those of a segment serve any number of them."""
    plan = plan_segments(rows, mixer.segment_len)
    widths = [piece.rows.time for piece in plan.pieces]
    # Split, not sliced: a slice's derivative is as long as the whole input.
    parts = plan.arrange(x).split(widths, dim=1)
    writes: Sequence[Tensor | None] = [None] * len(parts)
    if write_mask is not None:
        writes = plan.arrange(write_mask).split(widths, dim=1)
    outputs: list[Tensor] = []
    total: MemoryReport | None = None
    for piece, part, mask in zip(plan.pieces, parts, writes, strict=True):
        # Graphs tell strides apart.
        out, state, report = mixer.segment(part.contiguous(), state, piece, mask)
        outputs.append(out)
        total = report if total is None or report is None else total + report
    return Mixed(plan.restore(torch.cat(outputs, dim=1)), state, total)


def _visible(
    slots: Tensor,
    segment: KeyValues,
    context: KeyValues | None,
    prefix: KeyValues | None,
    *,
    from_start: bool,
) -> Tensor:
    """True where the token in slot j sees slot i <= j: `[batch or 1, time, P + h + S]`."""
    size = segment.keys.shape[1]
    place = torch.arange(size, device=slots.device)
    # A piece that begins its segment has the same slots 0, 1, 2, ... in every row.
    query = place[None, :, None] if from_start else slots[:, :, None]
    seen = place[None, None] <= query
    if context is not None:
        seen = torch.cat((seen, seen), dim=-1)
    return seen if prefix is None else F.pad(seen, (prefix.keys.shape[1], 0), value=True)


def _open_segment(state: BlockState, piece: Piece, segment_len: int) -> BlockState:
    """Where a segment begins, its tokens are answered by the memory as it stands now."""
    assert state.memory is not None and state.segment_weights is not None
    now, before = state.memory.memory.weights, state.segment_weights
    if piece.rows.lengths is None and piece.begins:
        return replace(state, segment_weights=now)
    if piece.rows.is_uniform:
        return state
    opens = piece.opens(segment_len)
    return replace(state, segment_weights=where_rows(opens, now, before))
