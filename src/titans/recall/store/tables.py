"""Records and what belongs to them, in tables: what the stores of all databases share.

A record is written with its passages, postings and neural write in one transaction, so after a
crash it is there whole or not at all. Scopes share the tables and nothing else: every query names
its scope. A store knows no encoder and no memory: it keeps bytes.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titans.recall.store import deletion, inspection
from titans.recall.store.base import (
    NO_MARKS,
    Filter,
    Head,
    IndexEntry,
    Marks,
    StoredPassage,
    StoredRecord,
)
from titans.recall.store.rows import Rows
from titans.recall.store.seal import POSTING, SEALED, Value, are_sound

LAST_SEQ = 2**63 - 1
PASSAGES = 64
"""Of a long text, passages that are stored with one statement."""
POSTING_COLUMNS = ", ".join((*POSTING, "checksum"))


class Tables(Rows):
    """The operations of a store, but for opening, transactions and what a database alone can do."""

    # Scopes

    def head(self, scope: str) -> Head | None:
        """How far a scope has come; None if nothing was ever stored under this name."""
        found = self.only("scopes", "name = ?", scope)
        if found is None:
            return None
        number, _, *progress = found
        return Head(number, *progress)

    def create_scope(self, scope: str) -> int:
        """The number of a scope, new if need be."""
        found = self.head(scope)
        if found is not None:
            return found.scope_id
        number = next(self.new_numbers("scopes", 1))
        self.insert("scopes", number, scope, 0, 0, 0, 0)
        return number

    def scopes(self) -> list[str]:
        """The names of all scopes, sorted."""
        return [str(row[1]) for row in self.select("scopes", "TRUE ORDER BY name")]

    # Records

    def add_record(
        self,
        scope_id: int,
        record: StoredRecord,
        passages: Iterable[StoredPassage],
        neural_write: bytes | None,
    ) -> int:
        """Store a record with everything that belongs to it; returns its seq."""
        seq = next(self.new_numbers("records", 1))
        number, name, generation, _, num_records, marks = self.scope_row(scope_id)
        is_marked = record.marks != NO_MARKS
        marked = marks + is_marked
        self.insert("records", *sealed_record(scope_id, seq, record, marked if is_marked else 0))
        left = iter(passages)
        while part := list(islice(left, PASSAGES)):
            self._add_passages(scope_id, seq, part)
        if neural_write is not None:
            self.insert("neural_writes", seq, scope_id, neural_write)
        progress = (generation, seq, num_records + 1, marked)
        self.insert("scopes", number, name, *progress, replace=True)
        return seq

    def _add_passages(self, scope_id: int, seq: int, part: list[StoredPassage]) -> None:
        numbers = list(self.new_numbers("passages", len(part)))
        words = [Counter(passage.terms) for passage in part]
        self.insert_many(
            "passages",
            (
                (number, scope_id, seq, len(passage.terms), passage.flags, passage.vectors)
                for number, passage in zip(numbers, part, strict=True)
            ),
        )
        tokens = (passage.tokens for passage in part)
        self.insert_many("passage_tokens", zip(numbers, tokens, strict=True))
        more = Counter(term for counts in words for term in counts)
        known = {row[2]: row for row in self._terms(scope_id, list(more))}
        new = self.new_numbers("terms", len(more) - len(known))
        rows = {term: known.get(term) or (next(new), scope_id, term, 0) for term in more}
        self.insert_many(
            "terms", ((*row[:-1], row[-1] + more[term]) for term, row in rows.items()), replace=True
        )
        self.insert_many(
            "postings",
            (
                (rows[term][0], number, count)
                for number, counts in zip(numbers, words, strict=True)
                for term, count in counts.items()
            ),
        )

    def _terms(self, scope_id: int, terms: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        condition, values = self.among("term", terms)
        return self.select("terms", f"scope = ? AND {condition}", scope_id, *values)

    def _term(self, scope_id: int, term: str) -> tuple[Any, ...] | None:
        return next(self._terms(scope_id, [term]), None)

    def find(self, scope_id: int, record_id: str) -> StoredRecord | None:
        """A record by its id."""
        found = self.only("records", "scope = ? AND id = ?", scope_id, record_id)
        return None if found is None else stored_record(found)

    def records(self, scope_id: int, seqs: Sequence[int]) -> dict[int, StoredRecord]:
        """Records by their seq."""
        condition, values = self.among("seq", seqs)
        rows = self.select("records", f"scope = ? AND {condition}", scope_id, *values)
        return {record.seq: record for record in map(stored_record, rows)}

    def list_records(
        self,
        scope_id: int,
        wanted: Filter | None = None,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        beyond: int | None = None,
    ) -> Iterator[StoredRecord]:
        """The records of a scope, or those that are wanted, in the order of writing."""
        where, values = self._where(scope_id, wanted or Filter())
        if beyond is not None:
            where += f" AND seq {'<' if newest_first else '>'} ?"
            values.append(beyond)
        where += f" ORDER BY seq {'DESC' if newest_first else 'ASC'}"
        is_all = len(values) == 1 and limit is None
        if limit is not None:
            where += " LIMIT ?"
            values.append(limit)
        count = 0
        for row in self.select("records", where, *values):
            count += 1
            yield stored_record(row)
        if is_all and count != self.scope_row(scope_id)[-2]:
            raise self.damage(f"records of scope {scope_id} are missing")

    def find_seqs(self, scope_id: int, wanted: Filter) -> list[int]:
        """The seqs of the records that are wanted, rising."""
        where, values = self._where(scope_id, wanted)
        found = self.execute(f"SELECT seq FROM records WHERE {where} ORDER BY seq", *values)
        return [int(row[0]) for row in found]

    def _where(self, scope_id: int, wanted: Filter) -> tuple[str, list[Any]]:
        """The condition in SQL for the records of a scope that are wanted, and its values."""
        conditions: list[str] = ["scope = ?"]
        values: list[Any] = [scope_id]
        for condition, value in (
            ("time < ?", wanted.before),
            ("time >= ?", wanted.after),
            ("speaker = ?", wanted.speaker),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        for name, value in wanted.metadata:
            condition, more = self.has_field(name, value)
            conditions.append(condition)
            values += more
        return " AND ".join(conditions), values

    def set_marks(self, scope_id: int, seq: int, marks: Marks) -> None:
        """Mark a record; the scope's number of marks rises."""
        *progress, number = self.scope_row(scope_id)
        self.insert("scopes", *progress, number + 1, replace=True)
        found = self.records(scope_id, [seq])[seq]
        row = sealed_record(scope_id, seq, replace(found, marks=marks), number + 1)
        self.insert("records", *row, replace=True)

    def marks(self, scope_id: int, after: int) -> dict[int, Marks]:
        """By seq, the marks that were set when the scope's number of marks was above `after`."""
        rows = self.select("records", "scope = ? AND marked > ? AND marked > 0", scope_id, after)
        return {record.seq: record.marks for record in map(stored_record, rows)}

    def count_recalls(self, scope_id: int, recalls: Mapping[int, int]) -> None:
        """Add to how often records were recalled, by seq; those that are gone are left out."""
        for seq, count in recalls.items():
            for row in list(self.select("records", "scope = ? AND seq = ?", scope_id, seq)):
                *kept, before, marked = row
                assert isinstance(before, int)
                self.insert("records", *kept, before + count, marked, replace=True)

    # What the index and the neural memory load

    def index_entries(
        self, scope_id: int, after_seq: int, until: int | None = None
    ) -> list[IndexEntry]:
        """The passages of the records in (after_seq, until], in the order of writing."""
        found: list[IndexEntry] = []
        where = "scope = ? AND seq > ? AND seq <= ? ORDER BY seq"
        values = (scope_id, after_seq, LAST_SEQ if until is None else until)
        rows = self.select("records", where, *values)
        record: StoredRecord | None = None
        for passage in self.select("passages", f"{where}, id", *values):
            named: dict[str, Any] = dict(zip(SEALED["passages"], passage, strict=True))
            while record is None or record.seq != named["seq"]:
                following = next(rows, None)
                if following is None:
                    raise self.damage(f"passage {named['id']} belongs to no record")
                record = stored_record(following)
            found.append(
                IndexEntry(
                    passage=named["id"],
                    seq=record.seq,
                    num_terms=named["num_terms"],
                    flags=named["flags"],
                    vectors=named["vectors"],
                    time=record.time,
                    speaker=record.speaker,
                    written=record.written,
                    duplicate_of=record.duplicate_of,
                    successor_of=record.successor_of,
                    surprise=record.surprise,
                )
            )
        return found

    def blocks(self, scope_id: int) -> Iterator[bytes]:
        """The blocks of the index in order."""
        where, last = "scope = ? AND last_seq > ? ORDER BY last_seq LIMIT 1", 0
        # One at a time: together they may be too large.
        while (found := self.only("index_blocks", where, scope_id, last)) is not None:
            last = int(found[1])
            yield _bytes(found[-1])

    def rows_in_blocks(self, scope_id: int) -> int:
        """How many passages the blocks hold."""
        query = "SELECT sum(num_rows) FROM index_blocks WHERE scope = ?"
        return int(self.execute(query, scope_id).fetchone()[0] or 0)

    def block_ends(self, scope_id: int) -> list[int]:
        """The newest record in each block, rising."""
        query = "SELECT last_seq FROM index_blocks WHERE scope = ? ORDER BY last_seq"
        return [int(row[0]) for row in self.execute(query, scope_id).fetchall()]

    def save_block(self, scope_id: int, last_seq: int, num_rows: int, data: bytes) -> None:
        """Add a block of the index."""
        self.insert("index_blocks", scope_id, last_seq, num_rows, data)

    def token_vectors(self, scope_id: int, passages: Sequence[int]) -> dict[int, bytes]:
        """The content-word vectors of some passages."""
        condition, values = self.among("passage", passages)
        where = f"{condition} AND (SELECT scope FROM passages WHERE id = passage) = ?"
        return dict(self.select("passage_tokens", where, *values, scope_id))

    def postings(self, scope_id: int, term: str) -> NDArray[np.int64]:
        """The passages that hold a term, rising, each as often as the term occurs in it."""
        found = self._term(scope_id, term)
        if found is None:
            return np.empty(0, np.int64)
        term_id, *_, num_passages = found
        query = f"SELECT {POSTING_COLUMNS} FROM postings WHERE term = ? ORDER BY passage"
        rows = np.array(self.execute(query, term_id).fetchall(), np.int64).reshape(-1, 4)
        if len(rows) != num_passages or not are_sound(rows):
            raise self.damage(f"where a word stands (term {term_id}) is not what was written")
        return np.repeat(rows[:, 1], rows[:, 2])

    def document_count(self, scope_id: int, term: str) -> int:
        """In how many passages of the scope a term occurs."""
        found = self._term(scope_id, term)
        return 0 if found is None else int(found[-1])

    def neural_write(self, scope_id: int, seq: int) -> bytes | None:
        """What a record has written into the neural memory; None if it was not written."""
        found = self.only("neural_writes", "scope = ? AND seq = ?", scope_id, seq)
        return None if found is None else _bytes(found[2])

    def replace_neural_write(self, scope_id: int, seq: int, data: bytes) -> None:
        """Log another write for a record."""
        self.insert("neural_writes", seq, scope_id, data, replace=True)

    def neural_writes(self, scope_id: int, after: int, until: int) -> Iterator[tuple[int, bytes]]:
        """The seq and write of the records in (after, until], in order."""
        where = "scope = ? AND seq > ? AND seq <= ? ORDER BY seq"
        for row in self.select("neural_writes", where, scope_id, after, until):
            yield int(row[0]), _bytes(row[2])

    def count_neural_writes(self, scope_id: int, after: int, until: int) -> int:
        """How many those are."""
        query = "SELECT count(*) FROM neural_writes WHERE scope = ? AND seq > ? AND seq <= ?"
        return int(self.execute(query, scope_id, after, until).fetchone()[0])

    def snapshots(self, scope_id: int) -> Iterator[tuple[int, bytes]]:
        """Every state that is kept, with the seq of the record after which it was taken."""
        for row in self.select("snapshots", "scope = ? ORDER BY seq", scope_id):
            yield int(row[1]), _bytes(row[2])

    def newest_snapshot(self, scope_id: int, until: int) -> tuple[int, bytes] | None:
        """The last one that is not newer than `until`."""
        where = "scope = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
        found = self.only("snapshots", where, scope_id, until)
        return None if found is None else (int(found[1]), _bytes(found[2]))

    def save_snapshot(self, scope_id: int, seq: int, state: bytes, keep: int) -> None:
        """Keep a state; beyond `keep`, one goes, so that the others are spread over the history."""
        self.insert("snapshots", scope_id, seq, state, replace=True)
        query = "SELECT seq FROM snapshots WHERE scope = ? ORDER BY seq"
        kept = [r[0] for r in self.execute(query, scope_id)]
        if len(kept) > keep:
            # Spread over the whole history: forgetting an old record replays from near it.
            gaps = [(kept[i + 1] - kept[i - 1], kept[i]) for i in range(1, len(kept) - 1)]
            victim = min(gaps)[1]
            self.execute("DELETE FROM snapshots WHERE scope = ? AND seq = ?", scope_id, victim)

    # Persistent texts

    def persistent_texts(self, scope_id: int) -> list[str]:
        """The texts in every prompt of a scope."""
        rows = self.select("persistent_texts", "scope = ? ORDER BY position", scope_id)
        return [str(row[2]) for row in rows]

    def set_persistent_texts(self, scope_id: int, texts: Sequence[str]) -> None:
        """Replace them."""
        self.execute("DELETE FROM persistent_texts WHERE scope = ?", scope_id)
        for position, text in enumerate(texts):
            self.insert("persistent_texts", scope_id, position, text)

    def counts(self, scope_id: int) -> dict[str, int]:
        """How many rows of each kind a scope holds."""
        one = "SELECT count(*) FROM {} WHERE scope = ?"
        found = {
            name: int(self.execute(one.format(name), scope_id).fetchone()[0])
            for name in ("records", "passages", "neural_writes", "snapshots")
        }
        for name, where in (
            ("duplicates", "duplicate_of IS NOT NULL"),
            ("successors", "successor_of IS NOT NULL"),
        ):
            query = f"SELECT count(*) FROM records WHERE scope = ? AND {where}"
            found[name] = int(self.execute(query, scope_id).fetchone()[0])
        return found

    # Integrity

    def damages(self, progress: Callable[[str], None] | None = None) -> Iterator[str]:
        """Everything that cannot have been written like this, a line each."""
        return inspection.damages(self, progress)

    # Deletion

    def delete_records(self, scope_id: int, seqs: Sequence[int]) -> None:
        """Remove records with all that belongs to them, and have traces removed."""
        deletion.delete_records(self, scope_id, seqs)
        self.request_scrub()

    def delete_scope(self, scope_id: int) -> None:
        """Remove a scope with everything in it, and have traces removed."""
        deletion.delete_scope(self, scope_id)
        self.request_scrub()


def sealed_record(scope_id: int, seq: int, record: StoredRecord, marked: int) -> tuple[Value, ...]:
    """A record as its columns, in the order of `SEALED`.

    Args:
        marked: the scope's number of marks when its own were set; 0 if they never were.
    """
    metadata = None
    if record.metadata is not None:
        metadata = json.dumps(record.metadata, ensure_ascii=False)
    return (
        *(seq, scope_id, record.id, record.text, record.speaker, record.time, metadata),
        *(float(record.surprise), bool(record.written), record.reason),
        *(record.duplicate_of, record.successor_of, record.marks.expires),
        *(float(record.marks.importance), bool(record.marks.pinned), record.recalls, marked),
    )


def stored_record(found: tuple[Any, ...]) -> StoredRecord:
    """The inverse of `sealed_record`."""
    named = dict(zip(SEALED["records"], found, strict=True))
    del named["scope"], named["marked"]
    named["metadata"] = None if named["metadata"] is None else json.loads(named["metadata"])
    named["written"] = bool(named["written"])
    expires, importance, pinned = (named.pop(name) for name in ("expires", "importance", "pinned"))
    return StoredRecord(**named, marks=Marks(expires, importance, bool(pinned)))


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value
