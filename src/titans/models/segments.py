"""Cutting a call into MAC's segments, where every row of the batch has its own segment borders.

The first piece fills up the segments that earlier calls left open; then all rows stand at a border,
and whole segments follow. Rows that have run out of tokens are padding in the later pieces.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from titans.layers.attention import KeyValues
from titans.layers.rows import Rows, take_columns
from titans.ops.checks import eager


@dataclass(frozen=True)
class Piece:
    """Tokens of one call that lie in one segment of each row."""

    rows: Rows
    """Where the rows stand, and how many of the piece's columns are real in each."""
    begins: bool
    """Every row that has tokens here starts a new segment with them."""

    def slots(self, segment_len: int) -> Int[Tensor, "batch time"]:
        """Place of every token within its segment."""
        return self.rows.positions % segment_len

    def opens(self, segment_len: int) -> Bool[Tensor, " batch"]:
        """Rows whose tokens in this piece begin a segment."""
        return (self.rows.position % segment_len == 0) & (self.rows.counts > 0)


@dataclass(frozen=True)
class SegmentPlan:
    """How one call is cut. `arrange` brings the columns in order, `restore` undoes it."""

    pieces: list[Piece]
    first: Int[Tensor, " batch"] | None
    """Columns that each row takes in the first piece; None where all rows take the same."""
    time: int

    @eager(recursive=True)
    def arrange(self, x: Tensor) -> Tensor:
        """Columns in the order of the pieces."""
        if self.first is None:
            return x
        width = self.pieces[0].rows.time
        total = sum(piece.rows.time for piece in self.pieces)
        later = self.first[:, None] + torch.arange(total - width, device=x.device)
        rest = take_columns(x, later.clamp(max=self.time - 1))
        return torch.cat((x[:, :width], rest), dim=1)

    @eager(recursive=True)
    def restore(self, x: Float[Tensor, "batch arranged dim"]) -> Float[Tensor, "batch time dim"]:
        """Columns in the order of the call."""
        if self.first is None:
            return x
        width = self.pieces[0].rows.time
        column = torch.arange(self.time, device=x.device)[None]
        place = torch.where(
            column < self.first[:, None], column, column - self.first[:, None] + width
        )
        return take_columns(x, place.clamp(max=x.shape[1] - 1))


@eager(recursive=True)
def plan_segments(rows: Rows, segment_len: int) -> SegmentPlan:
    """Cut the columns of one call at the borders of each row's segments."""
    if rows.is_uniform:
        return _plan_uniform(rows, segment_len)
    if rows.time == 1:
        # One plan for one token wherever its row stands, so that one exported graph is enough.
        piece = Piece(Rows(rows.position, 1, None, rows.counts), begins=False)
        return SegmentPlan([piece], None, 1)
    room = segment_len - rows.position % segment_len
    first = torch.minimum(rows.counts, room)
    width = int(first.max())
    begins = bool(((rows.position % segment_len == 0) | (first == 0)).all())
    pieces = [Piece(Rows(rows.position, width, None, first), begins)]
    position, left = rows.position + first, rows.counts - first
    longest = int(left.max())
    while longest > 0:
        time = min(segment_len, longest)
        taken = left.clamp(max=time)
        piece = Rows(position, time, None, taken)
        pieces.append(Piece(piece, True))
        position, left = position + taken, left - taken
        longest -= time
    return SegmentPlan(pieces, first, rows.time)


def _plan_uniform(rows: Rows, segment_len: int) -> SegmentPlan:
    pieces: list[Piece] = []
    start, column = rows.start, 0
    assert start is not None
    while column < rows.time:
        offset = (start + column) % segment_len
        time = min(segment_len - offset, rows.time - column)
        piece = Rows(rows.position + column, time, start + column)
        pieces.append(Piece(piece, offset == 0))
        column += time
    return SegmentPlan(pieces, None, rows.time)


def fill_slots(buffer: KeyValues, new: KeyValues, piece: Piece) -> KeyValues:
    """The open segment after a piece: its keys and values in their slots, the others as before.

    Without autograd the buffer is written in place: the caller owns it (`BlockState`).
    """
    segment_len = buffer.keys.shape[1]
    slots = piece.slots(segment_len)
    mask = piece.rows.mask
    in_place = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    if mask is None and in_place:
        index = slots[:, :, None, None].expand_as(new.keys)
        for old, fresh in zip(buffer, new, strict=True):
            old.scatter_(1, index, fresh.to(old.dtype))
        return buffer
    if mask is not None:
        # Padding goes to a slot of its own, which is thrown away.
        slots = torch.where(mask, slots, segment_len)

    def fill(old: Tensor, fresh: Tensor) -> Tensor:
        roomy = torch.cat((old, old.new_zeros(old.shape[0], 1, *old.shape[2:])), dim=1)
        index = slots[:, :, None, None].expand_as(fresh)
        return roomy.scatter(1, index, fresh.to(old.dtype))[:, :segment_len]

    return KeyValues(fill(buffer.keys, new.keys), fill(buffer.values, new.values))
