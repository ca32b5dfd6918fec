"""What a scan is asked to do: its tokens, and how they are cut into chunks and groups of chunks."""

from dataclasses import dataclass
from typing import NamedTuple

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
