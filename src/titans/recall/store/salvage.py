"""Reading what is sound from a damaged SQLite store, whatever else is in its way.

Nothing but tables and checksums is believed: every row is read by its number, around pages that
cannot be read, and counts only if its checksum fits.
"""

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titans.errors import StoreError
from titans.recall.store.base import StoredRecord
from titans.recall.store.connection import SQLITE_ERRORS, explain
from titans.recall.store.seal import SEALED, is_sound
from titans.recall.store.tables import stored_record

Row = tuple[Any, ...]
LATER: dict[str, Row] = {"records": (None, 0.0, 0, 0, 0), "scopes": (0,)}
"""What the last columns hold in a store that was damaged before it had them."""


@dataclass(frozen=True)
class SalvagedRecord:
    """A record whose text is sound, with what is left of the rest."""

    scope_id: int
    record: StoredRecord
    passages: list[tuple[int, bytes, bytes]]
    """Of each sound passage in order: flags, vectors, vectors of its words."""
    neural_write: bytes | None


class Salvage:
    """All sound rows of a damaged file that the text memory cannot make again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path, isolation_level=None)
        try:
            self.db.execute("PRAGMA cell_size_check = ON")
            tables = {row[0] for row in self.db.execute("SELECT name FROM sqlite_schema")}
            has_checksums = set(SEALED) <= tables
            for table in SEALED if has_checksums else ():
                # If a damaged schema hides a column, no row can be read, wherever it is.
                self.db.execute(f"{self._query(table)[0]} LIMIT 0")
        except SQLITE_ERRORS as error:
            self.db.close()
            raise StoreError(
                f"{path} cannot be read at all ({error}): restore a copy; `titans import` "
                "reads what `titans export` wrote"
            ) from error
        if not has_checksums:
            self.db.close()
            raise StoreError(f"{path} has no checksums to tell what is sound: restore a copy")
        self.settings: dict[str, str] = dict(self._sound_settings())
        self.scopes: dict[int, Row] = {row[0]: row for row in self._sound("scopes")}
        self.texts = sorted(self._sound("persistent_texts"))
        """(scope, position, text)."""

    def step_aside(self) -> Path:
        """Keep the file under another name as well, and others out of it until `close`."""
        try:
            # Another file must not meet this one's log: it would be taken for its own.
            self.db.execute("PRAGMA journal_mode = DELETE")
            self.db.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise StoreError(explain(error, self.path, "repaired")) from error
        except SQLITE_ERRORS:
            pass  # too damaged to be locked
        kept = self.path.with_name(f"{self.path.name}.damaged")
        while kept.exists():
            kept = kept.with_name(f"{kept.name}+")
        os.link(self.path, kept)
        return kept

    def close(self) -> None:
        """Let go of the file."""
        self.db.close()

    def records(self) -> Iterator[SalvagedRecord]:
        """The sound records in the order of writing."""
        passages: dict[int, list[int]] = defaultdict(list)
        for number, _, seq, *_ in self._sound("passages"):
            passages[seq].append(number)
        for row in self._sound("records"):
            record = stored_record(row)
            sound: list[tuple[int, bytes, bytes]] = []
            for number in passages[record.seq]:
                passage, tokens = self._one("passages", number), self._one("passage_tokens", number)
                if passage is not None and tokens is not None:
                    sound.append((passage[-2], passage[-1], tokens[-1]))
            write = self._one("neural_writes", record.seq)
            yield SalvagedRecord(row[1], record, sound, None if write is None else write[-1])

    def _one(self, table: str, number: int) -> Row | None:
        return next(self._sound(table, number, number + 1), None)

    def _sound(self, table: str, begin: int = 0, end: int = 2**62) -> Iterator[Row]:
        """The sound rows with a number in [begin, end), around those that cannot be read."""
        query, later = self._query(table)
        query += " WHERE rowid >= ? AND rowid < ?"
        ranges = [(begin, end)]
        while ranges:
            begin, end = ranges.pop()
            try:
                for number, *row in self.db.execute(f"{query} ORDER BY rowid", (begin, end)):
                    begin = number + 1
                    if is_sound(row):
                        yield (*row[:-1], *later)
            except (*SQLITE_ERRORS, OverflowError):
                if end - begin > 1:
                    middle = (begin + end) // 2
                    ranges += [(middle, end), (begin, middle)]

    def _query(self, table: str) -> tuple[str, Row]:
        """Asks for the sealed columns of a table; and what those are that an old file lacks."""
        later = LATER.get(table, ()) if self._is_older(table) else ()
        columns = SEALED[table][: len(SEALED[table]) - len(later)]
        number = "0" if table == "meta" else "rowid"
        names = ", ".join((number, *columns, "checksum"))
        return f"SELECT {names} FROM {table} NOT INDEXED", later

    def _is_older(self, table: str) -> bool:
        there = {row[1] for row in self.db.execute(f"PRAGMA table_info({table})")}
        return SEALED[table][-1] not in there

    def _sound_settings(self) -> Iterator[Row]:
        """Settings have no numbers: all at once, or none."""
        with suppress(*SQLITE_ERRORS):
            rows = self.db.execute("SELECT key, value, checksum FROM meta").fetchall()
            yield from (row[:-1] for row in rows if is_sound(row))
