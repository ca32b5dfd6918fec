"""The store in one SQLite file for many scopes, safe for several processes.

A record is written with its passages, postings and neural write in one transaction, so after a
crash it is there whole or not at all. Scopes are rows of one file and share nothing else: every
query names its scope. The store knows no encoder and no memory: it keeps bytes.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titans.recall.store import deletion
from titans.recall.store.base import Head, Passage, Row
from titans.recall.store.connection import Connection
from titans.recall.store.seal import SEALED


class SQLiteStore(Connection):
    """An open store. Not for several threads at once: the caller holds a lock."""

    # Scopes

    def head(self, name: str) -> Head | None:
        """How far a scope has come; None if nothing was ever stored under this name."""
        query = "SELECT id, generation, last_seq FROM scopes WHERE name = ?"
        found = self.db.execute(query, (name,)).fetchone()
        return None if found is None else Head(*found)

    def create_scope(self, name: str) -> int:
        """The number of a scope, new if need be; inside `writing()`."""
        self.db.execute("INSERT OR IGNORE INTO scopes (name) VALUES (?)", (name,))
        found = self.head(name)
        assert found is not None
        return found.id

    def scopes(self) -> list[str]:
        """The names of all scopes."""
        return [str(r[0]) for r in self.db.execute("SELECT name FROM scopes ORDER BY name")]

    # Records

    def add(self, scope: int, row: Row, passages: Sequence[Passage], writes: bytes | None) -> int:
        """Store a record with everything that belongs to it; returns its seq (`row.seq` unused)."""
        seq = self._next("records")
        self.insert("records", *sealed_record(scope, seq, row))
        for passage in passages:
            self._add_passage(scope, seq, passage)
        if writes is not None:
            self.insert("neural_writes", seq, scope, writes)
        self.db.execute("UPDATE scopes SET last_seq = ? WHERE id = ?", (seq, scope))
        return seq

    def _next(self, table: str) -> int:
        """The next number of a table that never uses one again."""
        found = self.db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
        return int((found.fetchone() or (0,))[0]) + 1

    def _add_passage(self, scope: int, seq: int, passage: Passage) -> None:
        number = self._next("passages")
        terms = passage.terms
        self.insert("passages", number, scope, seq, len(terms), passage.flags, passage.vectors)
        self.insert("passage_tokens", number, passage.tokens)
        for term, count in Counter(terms).items():
            self.db.execute(
                "INSERT INTO terms (scope, term, num_passages) VALUES (?, ?, 1)"
                " ON CONFLICT (scope, term) DO UPDATE SET num_passages = num_passages + 1",
                (scope, term),
            )
            self.db.execute(
                "INSERT INTO postings SELECT id, ?, ? FROM terms WHERE scope = ? AND term = ?",
                (number, count, scope, term),
            )

    def find(self, scope: int, record_id: str) -> Row | None:
        """A record by its id."""
        found = next(self.select("records", "scope = ? AND id = ?", scope, record_id), None)
        return None if found is None else _row(found)

    def rows(self, scope: int, seqs: Sequence[int]) -> dict[int, Row]:
        """Records by their seq."""
        found: dict[int, Row] = {}
        for part in _parts(seqs):
            where = f"scope = ? AND seq IN ({_marks(part)})"
            rows = map(_row, self.select("records", where, scope, *part))
            found.update({row.seq: row for row in rows})
        return found

    def all_rows(self, scope: int, before: int | None = None) -> Iterator[Row]:
        """Every record of a scope in the order of writing, or those with a time before `before`."""
        if before is None:
            return map(_row, self.select("records", "scope = ? ORDER BY seq", scope))
        where = "scope = ? AND time < ? ORDER BY seq"
        return map(_row, self.select("records", where, scope, before))

    def successor_id(self, scope: int, seq: int) -> str | None:
        """The id of the record that updates this one."""
        query = "SELECT id FROM records WHERE scope = ? AND successor_of = ? ORDER BY seq LIMIT 1"
        found = self.db.execute(query, (scope, seq)).fetchone()
        return None if found is None else str(found[0])

    # What the index and the neural memory load

    def index_entries(self, scope: int, after_seq: int) -> list[tuple[Any, ...]]:
        """The passages of the records after `after_seq`, in the order of `index.Entry`."""
        found: list[tuple[Any, ...]] = []
        where = "scope = ? AND seq > ? ORDER BY seq, id"
        rows = self.select("records", "scope = ? AND seq > ? ORDER BY seq", scope, after_seq)
        row: Row | None = None
        for number, _, seq, *kept in self.select("passages", where, scope, after_seq):
            while row is None or row.seq != seq:
                following = next(rows, None)
                if following is None:
                    raise self.damage(f"passage {number} belongs to no record")
                row = _row(following)
            judged = row.written, row.duplicate_of, row.successor_of, row.surprise
            found.append((number, seq, *kept, row.time, row.speaker, *judged))
        return found

    def blocks(self, scope: int) -> Iterator[bytes]:
        """The blocks of the index in order."""
        for row in self.select("index_blocks", "scope = ? ORDER BY last_seq", scope):
            yield _bytes(row[-1])

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
        self.insert("index_blocks", scope, last_seq, num_rows, data)

    def token_vectors(self, passages: Sequence[int]) -> dict[int, bytes]:
        """The content-word vectors of some passages."""
        found: dict[int, bytes] = {}
        for part in _parts(passages):
            for row in self.select("passage_tokens", f"passage IN ({_marks(part)})", *part):
                found[int(row[0] or 0)] = _bytes(row[1])
        return found

    def postings(self, scope: int, term: str) -> NDArray[np.int64]:
        """The passages that hold a term, each as often as the term stands in it."""
        found = self.db.execute(
            "SELECT passage, count FROM postings WHERE term ="
            " (SELECT id FROM terms WHERE scope = ? AND term = ?) ORDER BY passage",
            (scope, term),
        ).fetchall()
        pairs = np.array(found, np.int64).reshape(-1, 2)
        return np.repeat(pairs[:, 0], pairs[:, 1])

    def document_count(self, scope: int, term: str) -> int:
        """In how many passages of the scope a term stands."""
        query = "SELECT num_passages FROM terms WHERE scope = ? AND term = ?"
        found = self.db.execute(query, (scope, term)).fetchone()
        return 0 if found is None else int(found[0])

    def neural_write(self, scope: int, seq: int) -> bytes | None:
        """What a record has written into the neural memory; None if it was not written."""
        found = next(self.select("neural_writes", "scope = ? AND seq = ?", scope, seq), None)
        return None if found is None else _bytes(found[2])

    def replace_neural_write(self, scope: int, seq: int, data: bytes) -> None:
        """Log another write for a record; inside `writing()`."""
        self.insert("neural_writes", seq, scope, data, replace=True)

    def neural_writes(self, scope: int, after: int, until: int) -> list[tuple[int, bytes]]:
        """What was written into the neural memory by the records in (after, until], in order."""
        where = "scope = ? AND seq > ? AND seq <= ? ORDER BY seq"
        rows = self.select("neural_writes", where, scope, after, until)
        return [(int(row[0] or 0), _bytes(row[2])) for row in rows]

    def newest_snapshot(self, scope: int, until: int) -> tuple[int, bytes] | None:
        """The last snapshot that is not newer than `until`."""
        where = "scope = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
        found = next(self.select("snapshots", where, scope, until), None)
        return None if found is None else (int(found[1] or 0), _bytes(found[2]))

    def save_snapshot(self, scope: int, seq: int, state: bytes, keep: int) -> None:
        """Keep a snapshot; of the older ones the newest, and beyond `keep` every second goes."""
        self.insert("snapshots", scope, seq, state, replace=True)
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
        rows = self.select("persistent_texts", "scope = ? ORDER BY position", scope)
        return [str(row[2]) for row in rows]

    def set_persistent_texts(self, scope: int, texts: Sequence[str]) -> None:
        """Replace them; inside `writing()`."""
        self.db.execute("DELETE FROM persistent_texts WHERE scope = ?", (scope,))
        for position, text in enumerate(texts):
            self.insert("persistent_texts", scope, position, text)

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

    # Deletion

    def delete_records(self, scope: int, seqs: Sequence[int]) -> None:
        """Remove records with all that belongs to them, and mend the links of those that stay.

        Inside `writing()`. Snapshots and blocks that hold any of them go as well; afterwards the
        file is rewritten without traces.
        """
        deletion.delete_records(self, scope, seqs)
        self.request_scrub()

    def delete_scope(self, scope: int) -> None:
        """Remove a scope with everything in it; inside `writing()`."""
        deletion.delete_scope(self, scope)
        self.request_scrub()


def sealed_record(scope: int, seq: int, row: Row) -> tuple[Any, ...]:
    """A record as its columns, in the order of `SEALED`."""
    metadata = None if row.metadata is None else json.dumps(row.metadata, ensure_ascii=False)
    return (
        *(seq, scope, row.id, row.text, row.speaker, row.time, metadata, float(row.surprise)),
        *(int(row.written), row.reason, row.duplicate_of, row.successor_of),
    )


def _row(found: tuple[Any, ...]) -> Row:
    """The inverse of `sealed_record`."""
    named = dict(zip(SEALED["records"], found, strict=True))
    named.pop("scope")
    metadata = None if named["metadata"] is None else json.loads(named["metadata"])
    return Row(**{**named, "metadata": metadata, "written": bool(named["written"])})


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """So many at a time as SQLite takes in one query."""
    return (numbers[begin : begin + 500] for begin in range(0, len(numbers), 500))


def _marks(part: Sequence[int]) -> str:
    return ",".join("?" * len(part))
