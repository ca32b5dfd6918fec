"""Where each row of a batch stands in its own stream, and which of its tokens are real.

Rows of one batch may have read different numbers of tokens (prompts of different length, resets).
Inside a model the real tokens of a row always come first: padding is moved to the end on entry and
put back on exit (`compact`, `scatter_back`), so it never shifts a position, a chunk or a segment.
Below that, padding has one form, `lengths`: real tokens per row.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """A batch of `time` columns: row r holds `lengths[r]` real tokens, then padding."""

    position: Int[Tensor, " batch"]
    """Tokens that each row had read before this call."""
    time: int
    """Columns of this call."""
    start: int | None
    """`position` of every row, where all are equal; None where they differ."""
    lengths: Int[Tensor, " batch"] | None = None
    """Real tokens per row; None: all columns are real."""
    resumable: bool = True
    """Whether anybody will go on from the state; if not, what only serves that can be left out."""

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.position.shape[0]

    @property
    def is_uniform(self) -> bool:
        """All rows stand at the same place and all tokens are real."""
        return self.start is not None and self.lengths is None

    @property
    def mask(self) -> Bool[Tensor, "batch time"] | None:
        """True at real tokens; None where all are."""
        if self.lengths is None:
            return None
        return real_columns(self.lengths, self.time)

    @property
    def positions(self) -> Int[Tensor, "batch time"]:
        """Position of every token in its row's stream."""
        return self.position[:, None] + torch.arange(self.time, device=self.position.device)

    @property
    def counts(self) -> Int[Tensor, " batch"]:
        """Real tokens per row, as a tensor in any case."""
        if self.lengths is not None:
            return self.lengths
        return torch.full_like(self.position, self.time)

    def after(self) -> Int[Tensor, " batch"]:
        """Where the rows stand after this call."""
        return self.position + self.counts


def real_columns(lengths: Int[Tensor, " batch"], time: int) -> Bool[Tensor, "batch {time}"]:
    """True at each row's first `lengths` columns."""
    return torch.arange(time, device=lengths.device)[None] < lengths[:, None]


def compact(
    mask: Bool[Tensor, "batch time"],
) -> tuple[Int[Tensor, "batch time"], Int[Tensor, " batch"]]:
    """Order of columns that puts each row's real tokens first (stable), and how many there are."""
    order = torch.argsort((~mask).long(), dim=1, stable=True)
    return order, mask.sum(1)


def compact_if_needed(
    mask: Bool[Tensor, "batch time"] | None, lengths: Int[Tensor, " batch"] | None, time: int
) -> tuple[Int[Tensor, "batch time"] | None, Int[Tensor, " batch"] | None]:
    """What `compact` gives, for padding in either form: None where the real tokens come first
    already, and None where all are real."""
    can_ask = not torch.compiler.is_compiling()  # a graph cannot branch on numbers
    if mask is not None:
        return (None, None) if can_ask and bool(mask.all()) else compact(mask)
    if lengths is not None and can_ask:
        shortest, longest = (int(length) for length in lengths.aminmax())
        if shortest < 0 or longest > time:
            raise ValueError(
                f"lengths must be in 0..{time}, the input's tokens; got {shortest} to {longest}"
            )
        lengths = None if shortest == time else lengths
    return None, lengths


def take_columns(x: Tensor, columns: Int[Tensor, "batch taken"]) -> Tensor:
    """`x[r, columns[r]]` for every row r; x is `[batch, time]` or `[batch, time, ...]`."""
    index = columns.view(*columns.shape, *[1] * (x.ndim - 2))
    return x.gather(1, index.expand(*columns.shape, *x.shape[2:]))


def scatter_back(
    x: Shaped[Tensor, "batch time dim"],
    order: Int[Tensor, "batch time"],
) -> Shaped[Tensor, "batch time dim"]:
    """Undo `take_columns(x, order)`."""
    return take_columns(x, torch.argsort(order, dim=1))


def last_columns(past: Tensor, new: Tensor, rows: Rows) -> Tensor:
    """The last `past.shape[1]` entries of each row's stream: a window that moves with it."""
    size = past.shape[1]
    joined = torch.cat((past, new), dim=1)
    if rows.lengths is None:
        return joined[:, joined.shape[1] - size :]
    columns = rows.lengths[:, None] + torch.arange(size, device=new.device)
    return take_columns(joined, columns)
