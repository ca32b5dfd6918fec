"""Curves over texts of any length in constant memory: bins that double when they run out."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from titans.analysis.records import Curve

Item = TypeVar("Item")


class CurveBuilder:
    """Mean, lowest and highest of several channels over the text, in at most `max_bins` bins."""

    def __init__(self, channels: int, max_bins: int) -> None:
        if max_bins < 2:
            raise ValueError(f"a curve needs at least 2 bins, got {max_bins}")
        self.width = 1
        self.length = 0
        self._max_bins = max_bins
        self._sum = np.zeros((max_bins, channels))
        self._count = np.zeros((max_bins, channels), dtype=np.int64)
        self._low = np.full((max_bins, channels), np.inf)
        self._high = np.full((max_bins, channels), -np.inf)

    def add(self, values: NDArray) -> None:
        """The next tokens, `[tokens channels]`; NaN counts as missing."""
        if not len(values):
            return
        while (self.length + len(values) - 1) // self.width >= self._max_bins:
            self._fold()
        bins = (self.length + np.arange(len(values))) // self.width
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        rows = bins[starts]
        known = ~np.isnan(values)
        plain = np.where(known, values, 0.0).astype(np.float64)
        self._sum[rows] += np.add.reduceat(plain, starts)
        self._count[rows] += np.add.reduceat(known.astype(np.int64), starts)
        low = np.minimum.reduceat(np.where(known, values, np.inf), starts)
        high = np.maximum.reduceat(np.where(known, values, -np.inf), starts)
        self._low[rows] = np.minimum(self._low[rows], low)
        self._high[rows] = np.maximum(self._high[rows], high)
        self.length += len(values)

    def _fold(self) -> None:
        """Join neighbours: half as many bins, twice as wide."""

        def halve(array: NDArray, join: np.ufunc, empty: float) -> NDArray:
            padded = array
            if len(array) % 2:
                fill = np.full((1, array.shape[1]), empty, dtype=array.dtype)
                padded = np.concatenate([array, fill])
            joined = join(padded[::2], padded[1::2])
            rest = np.full((len(array) - len(joined), array.shape[1]), empty, dtype=array.dtype)
            return np.concatenate([joined, rest])

        self._sum = halve(self._sum, np.add, 0)
        self._count = halve(self._count, np.add, 0)
        self._low = halve(self._low, np.minimum, np.inf)
        self._high = halve(self._high, np.maximum, -np.inf)
        self.width *= 2

    def totals(self) -> NDArray:
        """The mean of each channel over the whole text."""
        with np.errstate(invalid="ignore"):
            return self._sum.sum(0) / self._count.sum(0)

    @np.errstate(over="ignore")
    def curve(self, first: int = 0, last: int | None = None) -> Curve:
        """Channels `first` to `last` as a record."""
        used = -(-self.length // self.width)
        part = (slice(0, used), slice(first, last))
        count = self._count[part]
        empty = count == 0
        mean = np.where(empty, np.nan, self._sum[part] / np.maximum(count, 1))
        return Curve(
            width=self.width,
            mean=mean.astype(np.float32),
            low=np.where(empty, np.nan, self._low[part]).astype(np.float32),
            high=np.where(empty, np.nan, self._high[part]).astype(np.float32),
        )


class Thinned(Generic[Item]):
    """Things numbered 0, 1, 2, ... of which at most `limit` are kept, evenly spread."""

    def __init__(self, limit: int) -> None:
        if limit < 2:
            raise ValueError(f"at least 2 must be kept, got {limit}")
        self.stride = 1
        """Every `stride`-th is kept at present."""
        self._limit = limit
        self._kept: dict[int, Item] = {}

    def wants(self, number: int) -> bool:
        """Whether the thing of this number would be kept."""
        return number % self.stride == 0

    def offer(self, number: int, item: Item) -> None:
        """Keep it if its number is wanted; numbers come in rising order."""
        if self.wants(number):
            self._kept[number] = item
        while len(self._kept) > self._limit:
            self.stride *= 2
            self._kept = {n: kept for n, kept in self._kept.items() if self.wants(n)}

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        """Number and thing, in order."""
        return iter(self._kept.items())

    def __len__(self) -> int:
        return len(self._kept)
