"""The part of a scope that lives in RAM: vectors and what the features need, one row per passage.

Rows stand in the order of writing, so neighbours in time are neighbours here. Arrays grow by
doubling; of a row only its marks change. Loaded from the store when a scope is opened (in blocks,
blocks.py), and kept up to date with what other processes write.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from titans.recall.store import IndexEntry, Marks
from titans.recall.vectors import widen

SMALL_DIM = 64
"""Width of each of the two projections for the first pass of a search over a large scope."""
FIRST_PASS = 1024
"""Rows that the first pass picks."""
NEVER = np.iinfo(np.int64).max
"""When a record without an expiry expires."""
NOT_IN_BLOCKS = ("fact", "expires", "importance")
"""Columns that may change, or that rest on other rows."""
IN_CONTEXT, BARE = 0, 1
"""The two vectors of a passage."""


class Columns(NamedTuple):
    """Some passages by column, apart from the index they come from or go to."""

    columns: dict[str, NDArray[Any]]
    speakers: list[str]
    """The names that the codes in the column `speaker` stand for."""
    total: NDArray[np.float64]
    """The sum of the bare vectors."""


class ScopeIndex:
    """Growing arrays of one scope. `len(index)` is the number of passages."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._size = 0
        self.num_records = 0
        """Records that the passages belong to."""
        self._arrays: dict[str, NDArray[Any]] = {
            "passage": np.empty(0, np.int64),
            "seq": np.empty(0, np.int64),
            "num_terms": np.empty(0, np.float32),
            "flags": np.empty(0, np.int64),
            "time": np.empty(0, np.int64),
            "speaker": np.empty(0, np.int32),
            "written": np.empty(0, np.bool_),
            "group": np.empty(0, np.int64),
            "successor_of": np.empty(0, np.int64),
            "surprise": np.empty(0, np.float32),
            "vectors": np.empty((0, 2, dim), np.float16),
            # Two arrays, not one of twice the width: reading them is what takes the time.
            "small": np.empty((0, min(SMALL_DIM, dim // 2)), np.float32),
            "small_more": np.empty((0, min(SMALL_DIM, dim // 2)), np.float32),
            "fact": np.empty(0, np.int64),
            "expires": np.empty(0, np.int64),
            "importance": np.empty(0, np.float32),
        }
        self._first_expiry = NEVER
        self._told_again: set[int] = set()
        self._bases = _small_bases(dim)
        self._sum = np.zeros(dim, np.float64)
        self.speakers: dict[str, int] = {}
        """Names in order of appearance -> code; records without a speaker have -1."""

    def __len__(self) -> int:
        return self._size

    def column(self, name: str) -> NDArray[Any]:
        """One column, without the spare room at its end."""
        return self._arrays[name][: self._size]

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of some rows, `[rows, 2, dim]`: in context, and of the bare text."""
        return widen(self.column("vectors")[rows])

    def bare(self, row: int) -> NDArray[np.float32]:
        """The vector of one passage's text."""
        return self.column("vectors")[row, BARE].astype(np.float32)

    @property
    def last_seq(self) -> int:
        """The newest record in the index."""
        return int(self._arrays["seq"][self._size - 1]) if self._size else 0

    @property
    def mean(self) -> NDArray[np.float32]:
        """The mean of the bare vectors."""
        return (self._sum / max(self._size, 1)).astype(np.float32)

    def extend(self, entries: Sequence[IndexEntry]) -> None:
        """Append passages in the order of writing."""
        if entries:
            self.append(self._rows(entries))

    def append(self, rows: Columns) -> None:
        """Append passages by column."""
        columns = rows.columns
        begin, end = self._size, self._size + len(columns["seq"])
        self.reserve(end)
        for name, values in columns.items():
            self._arrays[name][begin:end] = values
        codes = [self.speakers.setdefault(name, len(self.speakers)) for name in rows.speakers]
        # The last code is that of passages without a speaker: -1.
        self._arrays["speaker"][begin:end] = np.array([*codes, -1])[columns["speaker"]]
        self._arrays["expires"][begin:end] = NEVER
        self._arrays["importance"][begin:end] = 0
        self._size = end
        # A record is never divided between two calls.
        self.num_records += len(np.unique(columns["seq"]))
        # Exact, and so the same in any order: multiples of 2^-24 below 1, added in float64.
        self._sum += rows.total
        self._join_facts(begin)

    def mark(self, marks: Mapping[int, Marks]) -> None:
        """Take in the marks of some records, by seq."""
        marked, seqs = np.array(sorted(marks), np.int64), self.column("seq")
        begins, ends = (np.searchsorted(seqs, marked, side) for side in ("left", "right"))
        for seq, begin, end in zip(marked.tolist(), begins, ends, strict=True):
            found = marks[seq]
            expires = NEVER if found.pinned or found.expires is None else found.expires
            self._first_expiry = min(self._first_expiry, expires)
            self.column("expires")[begin:end] = expires
            self.column("importance")[begin:end] = found.importance

    def expired(self, now: int) -> NDArray[np.bool_] | None:
        """Per passage whether its record has expired; None if none has."""
        return self.column("expires") <= now if self._first_expiry <= now else None

    def _join_facts(self, begin: int) -> None:
        """Give the rows from `begin` on the fact of the record that they update or repeat.

        A fact is a number: the seq of the record that stated it first.
        """
        seqs, facts = self.column("seq"), self.column("fact")
        facts[begin:] = seqs[begin:]
        updates, groups = self.column("successor_of"), self.column("group")
        linked = np.flatnonzero((updates[begin:] > 0) | (groups[begin:] != seqs[begin:]))
        for row in (linked + begin).tolist():
            earlier = int(updates[row] or groups[row])
            place = int(np.searchsorted(seqs, earlier))
            if place < row and seqs[place] == earlier:
                facts[row] = facts[place]
                if updates[row]:
                    self._told_again.add(int(facts[row]))

    def histories(self, rows: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """The facts of some rows that were updated -> all rows that state them, oldest first."""
        facts = self.column("fact")
        changed = sorted(self._told_again.intersection(facts[rows].tolist()))
        found: dict[int, NDArray[np.int64]] = {}
        for fact in changed:
            members = np.flatnonzero(facts == fact)
            found[fact] = members[np.argsort(self.column("time")[members], kind="stable")]
        return found

    def rows(self, begin: int, end: int) -> Columns:
        """Some passages by column, as `append` takes them."""
        names = [name for name in self._arrays if name not in NOT_IN_BLOCKS]
        columns = {name: self._arrays[name][begin:end].copy() for name in names}
        used = sorted({int(code) for code in columns["speaker"]} - {-1})
        by_code = list(self.speakers)
        local = {code: place for place, code in enumerate(used)}
        columns["speaker"] = np.array([local.get(int(c), -1) for c in columns["speaker"]], np.int32)
        total = widen(columns["vectors"][:, BARE]).sum(0, dtype=np.float64)
        return Columns(columns, [by_code[code] for code in used], total)

    def _rows(self, entries: Sequence[IndexEntry]) -> Columns:
        found = dict(zip(IndexEntry._fields, zip(*entries, strict=True), strict=True))
        names = ("passage", "seq", "num_terms", "flags", "time", "written", "surprise")
        columns = {name: np.array(found[name], self._arrays[name].dtype) for name in names}
        speakers = [name for name in dict.fromkeys(found["speaker"]) if name is not None]
        codes = {name: code for code, name in enumerate(speakers)}
        columns["speaker"] = np.array([codes.get(name, -1) for name in found["speaker"]], np.int32)
        columns["successor_of"] = np.array([seq or 0 for seq in found["successor_of"]], np.int64)
        columns["group"] = np.array(
            [
                seq if leader is None else leader
                for seq, leader in zip(found["seq"], found["duplicate_of"], strict=True)
            ],
            np.int64,
        )
        vectors = np.frombuffer(b"".join(found["vectors"]), np.float16).reshape(-1, 2, self.dim)
        columns["vectors"] = vectors
        bare = widen(vectors[:, BARE])
        columns["small"], columns["small_more"] = (bare @ basis for basis in self._bases)
        return Columns(columns, speakers, bare.sum(0, dtype=np.float64))

    def reserve(self, size: int) -> None:
        """Make room for this many passages in all."""
        capacity = len(self._arrays["seq"])
        if size <= capacity:
            return
        capacity = max(size + size // 4, 2 * capacity, 256)
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
        query: NDArray[np.float32],
        count: int,
        allowed: NDArray[np.bool_] | None = None,
        quick: bool = False,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The rows whose bare vectors are nearest to a query, best first, and their cosines.

        In a large scope narrow projections pick `FIRST_PASS` rows first; the cosines returned are
        exact in any case.

        Args:
            quick: pick by one projection: half of the time, and still sure to find near texts.
        """
        rows = np.arange(self._size) if allowed is None else np.flatnonzero(allowed)
        if len(rows) > 4 * FIRST_PASS:
            rough = self.column("small") @ (query @ self._bases[0])
            if not quick:
                rough += self.column("small_more") @ (query @ self._bases[1])
            if allowed is not None:
                rough = rough[rows]
            # In order, so that equal texts keep the order of writing.
            chosen = np.argpartition(rough, len(rough) - FIRST_PASS)[-FIRST_PASS:]
            rows = np.sort(rows[chosen])
        cosine = widen(self.column("vectors")[rows, BARE]) @ query
        order = np.argsort(-cosine, kind="stable")[:count]
        return rows[order], cosine[order]


def _small_bases(dim: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Two random projections, orthogonal to each other."""
    width = min(SMALL_DIM, dim // 2)
    drawn = np.random.default_rng(1).standard_normal((dim, 2 * width))
    basis = np.linalg.qr(drawn)[0].astype(np.float32)
    return basis[:, :width].copy(), basis[:, width:].copy()
