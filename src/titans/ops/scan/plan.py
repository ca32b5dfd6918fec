"""How a scan's tokens are cut into chunks and groups of chunks, and rows aligned for that.

Rows of a batch may be at different places in their chunks, or have padding anywhere. Padding
takes no position, so each row has chunk borders of its own. `align_rows` shifts every row's real
tokens by its offset in the open chunk, which brings all borders to the same columns.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.options import ScanOptions

GROUP_TOKENS = 64
"""Chunks shorter than this are read (and their reads differentiated) several at a time."""
SMALL_CHUNK = 16
"""Shorter chunks keep the memory only at the borders of groups of this many tokens; inside a group
it is replayed."""


class Tokens(NamedTuple):
    """Token-wise inputs, `[n time ...]` with n = batch x heads."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    alpha: Tensor
    eta: Tensor
    theta: Tensor
    active: Tensor | None
    """Zero where a token is a full no-op."""

    def slice(self, begin: int, end: int) -> "Tokens":
        """The tokens `begin` to `end`."""
        return Tokens(*(None if t is None else t[:, begin:end] for t in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Plan:
    """What a scan does, apart from its tensors."""

    pieces: tuple[int, ...]
    """Lengths of the chunks; the first may continue an open one, the last may stay open."""
    biased: tuple[bool, ...]
    """Per layer: does it have a bias?"""
    resumed: bool
    """The first piece continues an open chunk, whose start weights are given."""
    options: ScanOptions

    @property
    def depth(self) -> int:
        """Layers of the memory."""
        return len(self.biased)

    @property
    def tracks(self) -> int:
        """What lies side by side per layer: weights and momentum, or weights alone."""
        return 2 if self.options.momentum else 1

    @property
    def written(self) -> tuple[bool, ...]:
        """Per layer: is it written?"""
        return self.options.written_layers(self.depth)

    @property
    def groups(self) -> list[range]:
        """Pieces that are read together: neighbours of one length."""
        groups: list[range] = []
        index = 0
        while index < len(self.pieces):
            length = self.pieces[index]
            most = 1 if index == 0 and self.resumed else _group_size(length)
            stop = index + 1
            while stop < len(self.pieces) and stop - index < most and self.pieces[stop] == length:
                stop += 1
            groups.append(range(index, stop))
            index = stop
        return groups

    @property
    def has_base(self) -> bool:
        """Are weights kept as a difference from the initial ones?"""
        return self.options.forget_towards == "initial"


def _group_size(length: int) -> int:
    return max(1, (SMALL_CHUNK if length < SMALL_CHUNK else GROUP_TOKENS) // length)


@dataclass(frozen=True)
class RaggedRows:
    """Where each row's tokens go so that chunk borders align."""

    offset: Tensor
    """Tokens already in the open chunk, `[batch]`."""
    count: Tensor
    """Real tokens of this call, `[batch]`."""
    chunk_size: int
    width: int
    """Columns of the aligned layout."""
    source: Tensor
    """For each aligned column, the token that it holds, `[batch width]`."""
    valid: Tensor
    """Which aligned columns hold a real token, `[batch width]`."""
    target: Tensor
    """For each token, its aligned column, `[batch time]`."""
    mask: Tensor
    """Which tokens are real, `[batch time]`."""

    @property
    def last_chunk(self) -> Tensor:
        """The chunk that holds a row's last real token; -1 if it has none."""
        last = (self.offset + self.count - 1) // self.chunk_size
        return torch.where(self.count > 0, last, -1)

    @property
    def closed(self) -> Tensor:
        """Rows whose last real token completes a chunk."""
        return (self.count > 0) & ((self.offset + self.count) % self.chunk_size == 0)

    def align(self, tokens: Tensor) -> Tensor:
        """`[batch time ...]` -> `[batch width ...]`, zero where there is no real token."""
        rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
        valid = self.valid.view(*self.valid.shape, *[1] * (tokens.ndim - 2))
        return torch.where(valid, tokens[rows, self.source], 0.0)

    def restore(self, tokens: Tensor) -> Tensor:
        """`[batch width ...]` -> `[batch time ...]`, zero where a token is masked."""
        rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
        mask = self.mask.view(*self.mask.shape, *[1] * (tokens.ndim - 2))
        found = tokens[rows, self.target]
        return torch.where(mask, found, torch.zeros_like(found))


def align_rows(
    mask: Tensor | None, time: int, position: Tensor, chunk_size: int
) -> RaggedRows | None:
    """The alignment that these rows need, or None if they are aligned already."""
    offset = position % chunk_size
    aligned = bool((offset == offset[0]).all())
    if aligned and (mask is None or bool(mask.all())):
        return None
    if mask is None:
        mask = torch.ones(position.shape[0], time, dtype=torch.bool, device=position.device)
    count = mask.sum(1)
    width = max(int((offset + count).max()), 1)
    order = torch.argsort(~mask, dim=1, stable=True)
    rank = torch.arange(width, device=mask.device)[None, :] - offset[:, None]
    valid = (rank >= 0) & (rank < count[:, None])
    source = order.gather(1, rank.clamp(0, time - 1))
    target = (mask.cumsum(1) - 1).clamp_min(0) + offset[:, None]
    # A row without any real token may point past the last column; what it reads is masked.
    return RaggedRows(
        offset, count, chunk_size, width, source, valid, target.clamp_max(width - 1), mask
    )
