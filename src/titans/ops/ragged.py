"""Rows of a batch that stand at different places in their chunks, or have padding anywhere.

Padding takes no position, so each row keeps chunk borders of its own. Shifting every row's real
tokens by its offset in the open chunk brings all borders to the same columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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
