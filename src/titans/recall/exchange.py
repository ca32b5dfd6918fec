"""Export and import as JSON lines: one record per line, in the order of writing.

What is exported is what was said: vectors and neural memory are made again on import.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TextIO

from titans.errors import DataError, StoreError
from titans.files import parse_json
from titans.recall.checks import FIELDS, checked_record
from titans.recall.memory import BULK_CHARS, BULK_RECORDS, TextMemory
from titans.recall.records import Record
from titans.recall.text.words import parse_time


def export_records(memory: TextMemory, file: TextIO) -> int:
    """Write the scope's persistent texts and records; returns the number of records.

    Nothing is written before everything is read: a store that is damaged or does not know the scope
    is an error.
    """
    count = 0
    for line, is_record in exporting(memory):
        file.write(line)
        count += is_record
    return count


def exporting(memory: TextMemory) -> Generator[tuple[str, bool], None, None]:
    """The lines of an export, and whether each is a record; everything is read before the first."""
    memory.store.check_sound()
    with memory.store.reading():
        names = memory.store.scopes()
    if memory.scope not in names:
        there = ", ".join(names) or "none yet"
        raise StoreError(f"{memory.store.name} has no scope {memory.scope!r}; there is: {there}")
    persistent, records = memory.persistent_texts, memory.records()
    for text in persistent:
        yield json.dumps({"persistent": text}, ensure_ascii=False) + "\n", False
    for record in records:
        values = record.as_dict()
        line = {name: values[name] for name in FIELDS if values[name] not in (None, 0)}
        yield json.dumps(line, ensure_ascii=False) + "\n", True


def import_records(
    memory: TextMemory,
    lines: Iterable[str],
    progress: Callable[[int], None] | None = None,
) -> int:
    """Remember every line; lines that are there already change nothing. Returns the number of new.

    A line with an id is there if the id is. A line without one is there if a record with the same
    text, speaker, time and metadata is, as far as the line gives them; two such lines in one file
    are two records. So a file may be imported again, whole or mended after an error.
    """
    steps = importing(memory, lines)
    while True:
        try:
            number = next(steps)
        except StopIteration as end:
            return end.value
        if progress is not None:
            progress(number)


def importing(
    memory: TextMemory,
    lines: Iterable[str],
    stamp: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values,
) -> Generator[int, None, int]:
    """`import_records` step by step: the number of each line when it is in.

    Args:
        stamp: makes the values of a record from those of its line.
    """
    known = _Contents(memory.records())
    batch = _Batch(memory)
    persistent = memory.persistent_texts
    added: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = _parse(line, number)
            if "persistent" in values:
                if values["persistent"] not in (*persistent, *added):
                    added.append(values["persistent"])
                continue
            yield from _add(batch, number, stamp(values), known)
        except DataError as error:
            yield from batch.store()  # what stands before it is in
            told = str(error)
            prefix = "" if told.startswith(f"line {number}") else f"line {number}: "
            raise DataError(f"{prefix}{told}") from error
    yield from batch.store()
    if added:
        memory.persistent_texts = [*persistent, *added]
    return batch.new


def _add(batch: "_Batch", number: int, values: dict[str, Any], known: "_Contents") -> Iterator[int]:
    """Take a line in; yields the numbers of lines that are stored by now."""
    record_id = values.get("id")
    if not record_id and known.claim(values):
        yield from batch.add(number, None)
        return
    checked_record(**values)
    if record_id and not batch.can_hold(record_id, values["text"]):
        yield from batch.store()
        batch.memory.remember(**values)  # says what is wrong
    yield from batch.add(number, values)


class _Batch:
    """Lines that are stored together."""

    def __init__(self, memory: TextMemory) -> None:
        self.memory, self.new = memory, 0
        self._lines: list[tuple[int, dict[str, Any] | None]] = []
        self._size = 0

    def can_hold(self, record_id: str, text: str) -> bool:
        """Whether no other text has this id."""
        waiting = [v["text"] for _, v in self._lines if v is not None and v.get("id") == record_id]
        found = self.memory.get(record_id)
        return all(other == text for other in waiting) and (found is None or found.text == text)

    def add(self, number: int, values: dict[str, Any] | None) -> Iterator[int]:
        """Add a line, None if it is there already; yields what is stored by now."""
        self._lines.append((number, values))
        self._size += 0 if values is None else len(values["text"])
        if len(self._lines) >= BULK_RECORDS or self._size >= BULK_CHARS:
            yield from self.store()

    def store(self) -> Iterator[int]:
        """Store what waits."""
        lines, self._lines, self._size = self._lines, [], 0
        if lines:
            records = [values for _, values in lines if values is not None]
            self.new += sum(record.is_new for record in self.memory.remember_many(records))
        yield from (number for number, _ in lines)


class _Contents:
    """The records of a scope by content. Each answers for one line of a file."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_text: dict[tuple[object, object], list[Record]] = {}
        for record in records:
            self._by_text.setdefault((record.text, record.speaker), []).append(record)

    def claim(self, values: dict[str, Any]) -> bool:
        """Whether a record with this content is left; it is taken out."""
        try:
            same = self._by_text.get((values["text"], values.get("speaker")), [])
        except TypeError:  # a list as the text: `remember` says what is wrong with it
            return False
        time = None if values.get("time") is None else parse_time(values["time"])
        for place, record in enumerate(same):
            if time in (None, record.time) and values.get("metadata") in (None, record.metadata):
                del same[place]
                return True
        return False


def _parse(line: str, number: int) -> dict[str, Any]:
    values = parse_json(line, f"line {number}")
    if not isinstance(values, dict):
        raise DataError(f'line {number} must be an object like {{"text": "..."}}')
    if set(values) == {"persistent"}:
        if not isinstance(values["persistent"], str):
            raise DataError(f"line {number}: a persistent text is a str, got {line[:60]!r}")
        return values
    unknown = sorted(set(values) - set(FIELDS))
    if "text" not in values or unknown:
        raise DataError(
            f"line {number} must have a text and otherwise only {', '.join(FIELDS)}; "
            f"unknown: {unknown or 'none'}"
        )
    return values
