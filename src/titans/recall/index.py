"""The part of a scope that lives in RAM: vectors and what the features need, one row per passage.

Rows stand in the order of writing, so neighbours in time are neighbours here. Arrays grow by
doubling; a row is never changed. Loaded from the store when a scope is opened, and kept up to date
with what other processes write.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SMALL_DIM = 96
"""Width of the vectors of the first search over a large scope."""


class Entry(NamedTuple):
    """One passage, as it enters the index (and as the store's query returns it)."""

    passage: int
    seq: int
    num_terms: int
    flags: int
    vectors: bytes
    time: int
    speaker: str | None
    written: bool
    duplicate_of: int | None
    successor_of: int | None
    surprise: float


class ScopeIndex:
    """Growing arrays of one scope. `len(index)` is the number of passages."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._size = 0
        self._arrays: dict[str, NDArray[Any]] = {
            "passage": np.empty(0, np.int64),
            "seq": np.empty(0, np.int64),
            "num_terms": np.empty(0, np.float32),
            "flags": np.empty(0, np.int64),
            "time": np.empty(0, np.int64),
            "speaker": np.empty(0, np.int32),
            "written": np.empty(0, np.bool_),
            "group": np.empty(0, np.int64),
            "replaced": np.empty(0, np.bool_),
            "surprise": np.empty(0, np.float32),
            "in_context": np.empty((0, dim), np.float16),
            "bare": np.empty((0, dim), np.float16),
            "small": np.empty((0, min(SMALL_DIM, dim)), np.float32),
        }
        self._basis = _small_basis(dim)
        self._sum = np.zeros(dim, np.float64)
        self.speakers: dict[str, int] = {}
        """Names in order of appearance -> code; records without a speaker have -1."""

    def __len__(self) -> int:
        return self._size

    def column(self, name: str) -> NDArray[Any]:
        """One column, without the spare room at its end."""
        return self._arrays[name][: self._size]

    @property
    def last_seq(self) -> int:
        """The newest record in the index."""
        return int(self._arrays["seq"][self._size - 1]) if self._size else 0

    @property
    def mean(self) -> NDArray[np.float32]:
        """The mean of the bare vectors."""
        return (self._sum / max(self._size, 1)).astype(np.float32)

    @property
    def mean_terms(self) -> float:
        """The mean length of a passage in stems."""
        return float(self.column("num_terms").mean()) if self._size else 1.0

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append passages in the order of writing."""
        if not entries:
            return
        # By column: a store of 100,000 records opens in a fraction of the time.
        columns = dict(zip(Entry._fields, zip(*entries, strict=True), strict=True))
        begin, end = self._size, self._size + len(entries)
        self._reserve(end)
        a = self._arrays
        for name in ("passage", "seq", "num_terms", "flags", "time", "written", "surprise"):
            a[name][begin:end] = columns[name]
        for name in dict.fromkeys(columns["speaker"]):
            if name is not None:
                self.speakers.setdefault(name, len(self.speakers))
        a["speaker"][begin:end] = [self.speakers.get(name, -1) for name in columns["speaker"]]
        a["group"][begin:end] = [
            seq if leader is None else leader
            for seq, leader in zip(columns["seq"], columns["duplicate_of"], strict=True)
        ]
        self._extend_vectors(begin, end, b"".join(columns["vectors"]))
        self._size = end
        a["replaced"][begin:end] = False
        replaced = [seq for seq in columns["successor_of"] if seq is not None]
        if replaced:
            a["replaced"][:end] |= np.isin(a["seq"][:end], replaced)

    def _extend_vectors(self, begin: int, end: int, data: bytes) -> None:
        vectors = np.frombuffer(data, np.float16).reshape(end - begin, 2, self.dim)
        self._arrays["in_context"][begin:end] = vectors[:, 0]
        self._arrays["bare"][begin:end] = vectors[:, 1]
        for first in range(begin, end, 8192):
            rows = slice(first, min(first + 8192, end))
            bare = self._arrays["bare"][rows].astype(np.float32)
            self._arrays["small"][rows] = bare @ self._basis
            self._sum += bare.sum(0, dtype=np.float64)

    def _reserve(self, size: int) -> None:
        capacity = len(self._arrays["seq"])
        if size <= capacity:
            return
        capacity = max(size, 2 * capacity, 256)
        for name, old in self._arrays.items():
            new = np.empty((capacity, *old.shape[1:]), old.dtype)
            new[: self._size] = old[: self._size]
            self._arrays[name] = new

    def rows_of(self, passages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of passages; those that are not in the index are dropped."""
        known = self.column("passage")
        rows = np.searchsorted(known, passages)
        inside = rows < self._size
        rows = rows[inside]
        return rows[known[rows] == passages[inside]]

    def nearest(
        self,
        queries: NDArray[np.float32],
        count: int,
        allowed: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The rows whose bare vectors are nearest to any query, best first, and their cosines.

        In a large scope a narrow projection picks `4 * count` rows first; the cosines returned
        are exact in any case.
        """
        rows = np.arange(self._size) if allowed is None else np.flatnonzero(allowed)
        if len(rows) > 16 * count:
            rough = (self.column("small") @ (queries @ self._basis).T).max(1)[rows]
            rows = rows[np.argpartition(-rough, 4 * count)[: 4 * count]]
        if not len(rows):
            return rows, np.empty(0, np.float32)
        cosine = (self.column("bare")[rows].astype(np.float32) @ queries.T).max(1)
        order = np.argsort(-cosine, kind="stable")[:count]
        return rows[order], cosine[order]


def _small_basis(dim: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(1).standard_normal((dim, min(SMALL_DIM, dim)))
    return np.linalg.qr(drawn)[0].astype(np.float32)
