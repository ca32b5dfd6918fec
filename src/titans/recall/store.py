"""The store: one SQLite file (WAL) for many scopes, safe for several processes.

A record is written with its passages, index entries and neural write in one transaction, so after
a crash it is there whole or not at all. Scopes are rows of one file; every query names its scope.
The store knows no encoder and no memory: it keeps bytes. Deleting is in forget.py.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titans.errors import StoreError
from titans.recall.migrations import APPLICATION_ID, MIGRATIONS, migrate, schema_version

MMAP_BYTES = 2**31
"""Read through the page cache: opening a large scope reads most of the file."""
BUSY_SECONDS = 30.0
"""How long a writer waits for another process before it gives up."""


@dataclass(frozen=True)
class Row:
    """A record as stored. `seq` is its place in the order of writing."""

    seq: int
    id: str
    text: str
    speaker: str | None
    time: int
    metadata: dict[str, Any] | None
    surprise: float
    written: bool
    reason: str
    duplicate_of: int | None
    successor_of: int | None


@dataclass(frozen=True)
class Passage:
    """A part of a record's text that fits the encoder, ready to be stored."""

    terms: list[str]
    flags: int
    vectors: bytes
    tokens: bytes


@dataclass(frozen=True)
class Head:
    """How far a scope has come: what a process compares to see whether others have written."""

    generation: int
    last_seq: int


_ROW = (
    "seq, id, text, speaker, time, metadata, surprise, written, reason, duplicate_of, successor_of"
)


class Store:
    """An open store. Not for several threads at once: the caller holds a lock."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._translated("opened"):
            if self.path.parent != Path() and not self.path.parent.exists():
                self.path.parent.mkdir(parents=True)
            self.db = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._prepare()

    def _prepare(self) -> None:
        """Recognise the file before anything is written to it, then bring it up to date."""
        try:
            self._refuse_foreign()
            self.db.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
            self._enter_wal()
            # A commit survives loss of power, not only of the process.
            self.db.execute("PRAGMA synchronous = FULL")
            self.db.execute("PRAGMA secure_delete = ON")
            self.db.execute("PRAGMA foreign_keys = OFF")
            self.db.execute(f"PRAGMA mmap_size = {MMAP_BYTES}")
            if schema_version(self.db) < len(MIGRATIONS):
                with self.writing():
                    migrate(self.db)
        except BaseException:
            self.db.close()
            raise

    def _refuse_foreign(self) -> None:
        application = int(self.db.execute("PRAGMA application_id").fetchone()[0])
        tables = self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != APPLICATION_ID and tables:
            raise StoreError(
                f"{self.path} is an SQLite file of another program; choose another path"
            )
        if schema_version(self.db) > len(MIGRATIONS):
            raise StoreError(
                f"{self.path} was written by a newer version (schema {schema_version(self.db)}, "
                f"this one knows {len(MIGRATIONS)}): upgrade titans-neural-memory"
            )

    def _enter_wal(self) -> None:
        # Switching to WAL does not wait for locks: two processes that create a store at once meet.
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self.db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """Let go of the file."""
        self.db.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction that sees the newest state and excludes other writers."""
        with self._translated("written"):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One transaction in which every query sees the same state."""
        with self._translated("read"):
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                if self.db.in_transaction:
                    self.db.execute("COMMIT")

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """SQLite's errors, and the file system's, as `StoreError`s that say what to do."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(explain(error, self.path, action)) from error

    def check_sound(self) -> None:
        """Raise `StoreError` if pages of the file are damaged; reads all of it."""
        with self._translated("read"):
            found = str(self.db.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if found != "ok":
            raise StoreError(f"{self.path} is damaged ({' '.join(found.split())})")

    # Settings of the whole file

    def get_meta(self, key: str) -> str | None:
        """A setting of the store."""
        found = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def set_meta(self, key: str, value: str) -> None:
        """Set it; inside `writing()`."""
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # Scopes

    def scope_id(self, name: str) -> int | None:
        """The number of a scope; None if nothing was ever stored under this name."""
        found = self.db.execute("SELECT id FROM scopes WHERE name = ?", (name,)).fetchone()
        return None if found is None else int(found[0])

    def create_scope(self, name: str) -> int:
        """The number of a scope, new if need be; inside `writing()`."""
        self.db.execute("INSERT OR IGNORE INTO scopes (name) VALUES (?)", (name,))
        found = self.scope_id(name)
        assert found is not None
        return found

    def scopes(self) -> list[str]:
        """The names of all scopes."""
        return [str(r[0]) for r in self.db.execute("SELECT name FROM scopes ORDER BY name")]

    def head(self, scope: int) -> Head:
        """How far the scope has come."""
        found = self.db.execute(
            "SELECT generation, last_seq FROM scopes WHERE id = ?", (scope,)
        ).fetchone()
        return Head(*found) if found else Head(-1, 0)

    # Records

    def add(self, scope: int, row: Row, passages: Sequence[Passage], writes: bytes | None) -> int:
        """Store a record with everything that belongs to it; returns its seq (`row.seq` unused)."""
        metadata = None if row.metadata is None else json.dumps(row.metadata, ensure_ascii=False)
        cursor = self.db.execute(
            "INSERT INTO records (scope, id, text, speaker, time, metadata, surprise, written,"
            " reason, duplicate_of, successor_of) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(scope, row.id, row.text, row.speaker, row.time, metadata, row.surprise),
                *(row.written, row.reason, row.duplicate_of, row.successor_of),
            ),
        )
        seq = int(cursor.lastrowid or 0)
        for passage in passages:
            self._add_passage(scope, seq, passage)
        if writes is not None:
            self.db.execute("INSERT INTO neural_writes VALUES (?, ?, ?)", (seq, scope, writes))
        self.db.execute("UPDATE scopes SET last_seq = ? WHERE id = ?", (seq, scope))
        return seq

    def _add_passage(self, scope: int, seq: int, passage: Passage) -> None:
        cursor = self.db.execute(
            "INSERT INTO passages (scope, seq, num_terms, flags, vectors) VALUES (?, ?, ?, ?, ?)",
            (scope, seq, len(passage.terms), passage.flags, passage.vectors),
        )
        number = cursor.lastrowid
        self.db.execute("INSERT INTO passage_tokens VALUES (?, ?)", (number, passage.tokens))
        body = lexicon_body(scope, passage.terms)
        self.db.execute("INSERT INTO lexicon (rowid, body) VALUES (?, ?)", (number, body))

    def find(self, scope: int, record_id: str) -> Row | None:
        """A record by its id."""
        found = self.db.execute(
            f"SELECT {_ROW} FROM records WHERE scope = ? AND id = ?", (scope, record_id)
        ).fetchone()
        return None if found is None else _row(found)

    def rows(self, scope: int, seqs: Sequence[int]) -> dict[int, Row]:
        """Records by their seq."""
        found: dict[int, Row] = {}
        for begin in range(0, len(seqs), 500):
            part = list(seqs[begin : begin + 500])
            marks = ",".join("?" * len(part))
            query = f"SELECT {_ROW} FROM records WHERE scope = ? AND seq IN ({marks})"
            found.update({r[0]: _row(r) for r in self.db.execute(query, (scope, *part))})
        return found

    def all_rows(self, scope: int, before: int | None = None) -> Iterator[Row]:
        """Every record of a scope in the order of writing, or those with a time before `before`."""
        query = f"SELECT {_ROW} FROM records WHERE scope = ?"
        arguments: tuple[int, ...] = (scope,)
        if before is not None:
            query, arguments = query + " AND time < ?", (scope, before)
        for found in self.db.execute(query + " ORDER BY seq", arguments):
            yield _row(found)

    def successor_id(self, scope: int, seq: int) -> str | None:
        """The id of the record that updates this one."""
        query = "SELECT id FROM records WHERE scope = ? AND successor_of = ? ORDER BY seq LIMIT 1"
        found = self.db.execute(query, (scope, seq)).fetchone()
        return None if found is None else str(found[0])

    # What the index and the neural memory load

    def index_entries(self, scope: int, after_seq: int) -> list[tuple[Any, ...]]:
        """The passages of the records after `after_seq`, in the order of `index.Entry`."""
        return self.db.execute(
            "SELECT p.id, p.seq, p.num_terms, p.flags, p.vectors, r.time, r.speaker, r.written,"
            " r.duplicate_of, r.successor_of, r.surprise"
            " FROM passages p JOIN records r ON r.seq = p.seq"
            " WHERE p.scope = ? AND r.scope = ? AND p.seq > ? ORDER BY p.seq, p.id",
            (scope, scope, after_seq),
        ).fetchall()

    def blocks(self, scope: int) -> Iterator[bytes]:
        """The blocks of the index in order."""
        query = "SELECT data FROM index_blocks WHERE scope = ? ORDER BY last_seq"
        for (data,) in self.db.execute(query, (scope,)):
            yield data

    def rows_in_blocks(self, scope: int) -> int:
        """How many passages the blocks hold."""
        query = "SELECT sum(num_rows) FROM index_blocks WHERE scope = ?"
        return int(self.db.execute(query, (scope,)).fetchone()[0] or 0)

    def blocks_until(self, scope: int) -> int:
        """The newest record that is in a block; 0 if none is."""
        query = "SELECT max(last_seq) FROM index_blocks WHERE scope = ?"
        return int(self.db.execute(query, (scope,)).fetchone()[0] or 0)

    def save_block(self, scope: int, last_seq: int, num_rows: int, data: bytes) -> None:
        """Add a block behind the others; inside `writing()`."""
        values = (scope, last_seq, num_rows, data)
        self.db.execute("INSERT INTO index_blocks VALUES (?, ?, ?, ?)", values)

    def token_vectors(self, passages: Sequence[int]) -> dict[int, bytes]:
        """The content-word vectors of some passages."""
        found: dict[int, bytes] = {}
        for begin in range(0, len(passages), 500):
            part = list(passages[begin : begin + 500])
            marks = ",".join("?" * len(part))
            query = f"SELECT passage, vectors FROM passage_tokens WHERE passage IN ({marks})"
            found.update(dict(self.db.execute(query, part)))
        return found

    def postings(self, scope: int, term: str) -> NDArray[np.int64]:
        """The passages that hold a term, each as often as the term stands in it."""
        query = "SELECT doc FROM lexicon_terms WHERE term = ?"
        found = self.db.execute(query, (lexicon_term(scope, term),)).fetchall()
        return np.fromiter(chain.from_iterable(found), dtype=np.int64, count=len(found))

    def document_count(self, scope: int, term: str) -> int:
        """In how many passages of the scope a term stands."""
        query = "SELECT doc FROM lexicon_counts WHERE term = ?"
        found = self.db.execute(query, (lexicon_term(scope, term),)).fetchone()
        return 0 if found is None else int(found[0])

    def neural_writes(self, scope: int, after: int, until: int) -> Iterator[tuple[int, bytes]]:
        """What was written into the neural memory by the records in (after, until], in order."""
        return iter(
            self.db.execute(
                "SELECT seq, vectors FROM neural_writes WHERE scope = ? AND seq > ? AND seq <= ?"
                " ORDER BY seq",
                (scope, after, until),
            ).fetchall()
        )

    def newest_snapshot(self, scope: int, until: int) -> tuple[int, bytes] | None:
        """The last snapshot that is not newer than `until`."""
        return self.db.execute(
            "SELECT seq, state FROM snapshots WHERE scope = ? AND seq <= ?"
            " ORDER BY seq DESC LIMIT 1",
            (scope, until),
        ).fetchone()

    def save_snapshot(self, scope: int, seq: int, state: bytes, keep: int) -> None:
        """Keep a snapshot; of the older ones the newest, and beyond `keep` every second goes."""
        self.db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (scope, seq, state))
        query = "SELECT seq FROM snapshots WHERE scope = ? ORDER BY seq"
        kept = [r[0] for r in self.db.execute(query, (scope,))]
        if len(kept) > keep:
            # Spread over the whole history: forgetting an old record replays from near it.
            gaps = [(kept[i + 1] - kept[i - 1], kept[i]) for i in range(1, len(kept) - 1)]
            victim = min(gaps)[1]
            self.db.execute("DELETE FROM snapshots WHERE scope = ? AND seq = ?", (scope, victim))

    # Persistent texts

    def persistent_texts(self, scope: int) -> list[str]:
        """The texts that stand in every prompt of a scope."""
        query = "SELECT text FROM persistent_texts WHERE scope = ? ORDER BY position"
        return [str(r[0]) for r in self.db.execute(query, (scope,))]

    def set_persistent_texts(self, scope: int, texts: Sequence[str]) -> None:
        """Replace them; inside `writing()`."""
        self.db.execute("DELETE FROM persistent_texts WHERE scope = ?", (scope,))
        rows = [(scope, position, text) for position, text in enumerate(texts)]
        self.db.executemany("INSERT INTO persistent_texts VALUES (?, ?, ?)", rows)

    def counts(self, scope: int) -> dict[str, int]:
        """How much a scope holds."""
        one = "SELECT count(*) FROM {} WHERE scope = ?"
        found = {
            name: int(self.db.execute(one.format(name), (scope,)).fetchone()[0])
            for name in ("records", "passages", "neural_writes", "snapshots")
        }
        for name, where in (
            ("duplicates", "duplicate_of IS NOT NULL"),
            ("successors", "successor_of IS NOT NULL"),
        ):
            query = f"SELECT count(*) FROM records WHERE scope = ? AND {where}"
            found[name] = int(self.db.execute(query, (scope,)).fetchone()[0])
        return found


def lexicon_term(scope: int, term: str) -> str:
    """A term of one scope as the lexical index knows it."""
    return f"s{scope}x{term}"


def lexicon_body(scope: int, terms: Sequence[str]) -> str:
    """The indexed form of a passage: FTS5's tokenizer leaves these words as they are."""
    return " ".join(lexicon_term(scope, term) for term in terms)


def explain(error: Exception, path: Path, action: str) -> str:
    """What a user can do about an error of SQLite or the file system."""
    text = str(error)
    if "not a database" in text or "malformed" in text or "corrupt" in text:
        return (
            f"{path} is damaged or not a store of titans ({text}): nothing was changed; "
            "restore a copy, or choose another path"
        )
    if "full" in text:
        return f"{path} cannot be written: the disk is full; nothing was stored, free some space"
    if "readonly" in text or "read-only" in text.lower():
        return f"{path} cannot be {action}: it is read-only ({text}); choose a path you may write"
    if "locked" in text or "busy" in text:
        return (
            f"{path} cannot be {action}: another process has held it for {BUSY_SECONDS:.0f} s; "
            "try again when it is done"
        )
    return f"{path} cannot be {action} ({text}): check the path, its permissions and the disk"


def _row(found: tuple[Any, ...]) -> Row:
    metadata = None if found[5] is None else json.loads(found[5])
    seq, name, text, speaker, when = found[:5]
    reason, duplicate, successor = found[8:]
    judged = float(found[6]), bool(found[7])
    return Row(seq, name, text, speaker, when, metadata, *judged, reason, duplicate, successor)
