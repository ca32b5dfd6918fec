"""What a store is: the values that it keeps, and the operations that the text memory asks of it.

The text memory is written against `Store` and holds no SQL. A store knows no encoder and no neural
memory: it keeps texts, numbers and bytes. Every operation on records names its scope by the number
that `head` or `create_scope` gave; nothing of one scope is ever returned for another.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Marks:
    """How long a record is kept, and how much it weighs. Unlike its text, they can be changed."""

    expires: int | None = None
    """From when on it is not recalled, in microseconds since 1970, UTC."""
    importance: float = 0.0
    """In [0, 1]."""
    pinned: bool = False
    """Never expires, and is left alone when old records are removed."""


NO_MARKS = Marks()


@dataclass(frozen=True)
class StoredRecord:
    """A record as stored. `seq` is its place in the order of writing."""

    seq: int
    id: str
    text: str
    speaker: str | None
    time: int
    """Microseconds since 1970, UTC."""
    metadata: dict[str, Any] | None
    surprise: float
    written: bool
    reason: str
    duplicate_of: int | None
    """The seq of the first record of its group."""
    successor_of: int | None
    """The seq of the statement that it updates."""
    marks: Marks = NO_MARKS
    recalls: int = 0
    """How often it was recalled."""


@dataclass(frozen=True)
class StoredPassage:
    """A part of a record's text that fits the encoder, ready to be stored."""

    terms: list[str]
    flags: int
    vectors: bytes
    tokens: bytes


class IndexEntry(NamedTuple):
    """One passage, as the index of a scope takes it in."""

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


@dataclass(frozen=True)
class Head:
    """How far a scope has come: what a process compares to see whether others have written.

    Numbers are never used again, so a scope that was forgotten and made anew under the same name
    has another `scope_id`; `generation` rises when something in it is forgotten. Who finds another
    number of records than `num_records` reads a damaged store.
    """

    scope_id: int
    generation: int
    last_seq: int
    num_records: int
    marks: int
    """How often marks of a record were set in this scope."""


Scalar = str | int | float | bool | None
"""What a field of metadata can be compared with."""


@dataclass(frozen=True)
class Filter:
    """Which records are meant; times in microseconds, `before` exclusive, `after` inclusive."""

    before: int | None = None
    after: int | None = None
    speaker: str | None = None
    metadata: tuple[tuple[str, Scalar], ...] = ()
    """Fields of the metadata and the values that they must have, all of them."""


class Store(Protocol):
    """A store that is open. Not for several threads at once: the caller holds a lock.

    Errors are `StoreError`s that say what to do. Everything but `close`, `writing`, `reading`,
    `check_sound` and `damages` is called inside a transaction; what changes something, inside
    `writing`.
    """

    # The store as a whole

    @property
    def name(self) -> str:
        """How messages call it: the path of its file, an address without the password."""
        ...

    @property
    def files(self) -> list[Path]:
        """Files of this machine that hold it; none if a server keeps it."""
        ...

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        ...

    def close(self) -> None:
        """Let go of it. Everything acknowledged is on disk already."""
        ...

    def writing(self, scope: str | None = None) -> AbstractContextManager[None]:
        """One transaction that sees the newest state and excludes other writers of a scope.

        Args:
            scope: the only scope that is written; None excludes the writers of all scopes. A store
                may always exclude them all.
        """
        ...

    def reading(self, scope: str | None = None) -> AbstractContextManager[None]:
        """One transaction in which every query sees the same state.

        Args:
            scope: the only scope that is read; None allows all. A store may always allow them all.
        """
        ...

    def setting(self, key: str) -> str | None:
        """A setting of the store."""
        ...

    def set_setting(self, key: str, value: str) -> None:
        """Set it."""
        ...

    @property
    def is_clean(self) -> bool:
        """Whether nothing that was forgotten is left anywhere in the store."""
        ...

    def check_sound(self) -> None:
        """Raise `StoreError` if the store is damaged as a whole; reads all of it."""
        ...

    def damages(self, progress: Callable[[str], None] | None = None) -> Iterator[str]:
        """Everything that cannot have been written like this, a line each.

        Args:
            progress: called with what is looked at next.
        """
        ...

    # Scopes

    def scopes(self) -> list[str]:
        """The names of all scopes, sorted."""
        ...

    def head(self, scope: str) -> Head | None:
        """How far a scope has come; None if nothing was ever stored under this name."""
        ...

    def create_scope(self, scope: str) -> int:
        """The number of a scope, new if need be. Numbers are never used again."""
        ...

    def delete_scope(self, scope_id: int) -> None:
        """Remove a scope with everything in it, its name included, without a trace."""
        ...

    def counts(self, scope_id: int) -> dict[str, int]:
        """How many records, passages, neural_writes, snapshots, duplicates, successors it holds."""
        ...

    def persistent_texts(self, scope_id: int) -> list[str]:
        """The texts in every prompt of a scope."""
        ...

    def set_persistent_texts(self, scope_id: int, texts: Sequence[str]) -> None:
        """Replace them."""
        ...

    # Records

    def add_record(
        self,
        scope_id: int,
        record: StoredRecord,
        passages: Iterable[StoredPassage],
        neural_write: bytes | None,
    ) -> int:
        """Store a record with everything that belongs to it.

        Returns:
            Its seq (`record.seq` is not used): larger than every seq that the scope ever had.
        """
        ...

    def find(self, scope_id: int, record_id: str) -> StoredRecord | None:
        """A record by its id."""
        ...

    def records(self, scope_id: int, seqs: Sequence[int]) -> dict[int, StoredRecord]:
        """Records by their seq; those that are not there are left out."""
        ...

    def list_records(
        self,
        scope_id: int,
        wanted: Filter | None = None,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        beyond: int | None = None,
    ) -> Iterator[StoredRecord]:
        """The records of a scope, or those that are wanted, in the order of writing.

        Args:
            newest_first: in the reverse order.
            limit: no more than this many.
            beyond: a seq; only the records that come after it in this order.
        """
        ...

    def find_seqs(self, scope_id: int, wanted: Filter) -> list[int]:
        """The seqs of the records that are wanted, rising."""
        ...

    def set_marks(self, scope_id: int, seq: int, marks: Marks) -> None:
        """Mark a record; the scope's number of marks rises (so does it in `add_record`, for a
        record that has any)."""
        ...

    def marks(self, scope_id: int, after: int) -> dict[int, Marks]:
        """By seq, the marks that were set when the scope's number of marks was above `after`."""
        ...

    def count_recalls(self, scope_id: int, recalls: Mapping[int, int]) -> None:
        """Add to how often records were recalled, by seq; those that are gone are left out."""
        ...

    def delete_records(self, scope_id: int, seqs: Sequence[int]) -> None:
        """Remove records without a trace, with all that belongs to them.

        Links of the records that stay are mended: a group whose first record is gone is led by the
        next one. Snapshots go from the first of the records on, and so do the blocks of the index
        that hold one of the records or one whose links changed. The scope's generation rises.
        """
        ...

    # Passages: what the index and the search load

    def index_entries(
        self, scope_id: int, after_seq: int, until: int | None = None
    ) -> list[IndexEntry]:
        """The passages of the records in (after_seq, until], in the order of writing."""
        ...

    def token_vectors(self, scope_id: int, passages: Sequence[int]) -> dict[int, bytes]:
        """The content-word vectors of some passages."""
        ...

    def postings(self, scope_id: int, term: str) -> NDArray[np.int64]:
        """The passages that hold a term, rising, each as often as the term occurs in it."""
        ...

    def document_count(self, scope_id: int, term: str) -> int:
        """In how many passages of the scope a term occurs."""
        ...

    def blocks(self, scope_id: int) -> Iterator[bytes]:
        """The blocks of the index in order."""
        ...

    def rows_in_blocks(self, scope_id: int) -> int:
        """How many passages the blocks hold."""
        ...

    def block_ends(self, scope_id: int) -> list[int]:
        """The newest record in each block, rising."""
        ...

    def save_block(self, scope_id: int, last_seq: int, num_rows: int, data: bytes) -> None:
        """Add a block of the index."""
        ...

    # The neural memory: a log of writes, and states at some places of it

    def neural_write(self, scope_id: int, seq: int) -> bytes | None:
        """What a record has written into the neural memory; None if it was not written."""
        ...

    def neural_writes(self, scope_id: int, after: int, until: int) -> Iterator[tuple[int, bytes]]:
        """The seq and write of the records in (after, until], in order."""
        ...

    def count_neural_writes(self, scope_id: int, after: int, until: int) -> int:
        """How many those are."""
        ...

    def replace_neural_write(self, scope_id: int, seq: int, data: bytes) -> None:
        """Log another write for a record."""
        ...

    def snapshots(self, scope_id: int) -> Iterator[tuple[int, bytes]]:
        """Every state that is kept, with the seq of the record after which it was taken."""
        ...

    def newest_snapshot(self, scope_id: int, until: int) -> tuple[int, bytes] | None:
        """The last one that is not newer than `until`."""
        ...

    def save_snapshot(self, scope_id: int, seq: int, state: bytes, keep: int) -> None:
        """Keep a state; beyond `keep`, one goes, so that those left are spread over the history."""
        ...
