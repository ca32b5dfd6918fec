"""Texts under keys that can be replaced, on a text memory, whose records never change.

A key has two places, used in turn. A new text is stored in the free place before the old one is
forgotten, so a crash leaves the old text, the new one, or both; of both the later one holds.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from titans.errors import DataError
from titans.recall import Record, TextMemory


@dataclass(frozen=True)
class Document:
    """What is kept under a key."""

    key: str
    value: Any
    created: datetime
    revision: int
    """How often it was replaced."""
    record: Record
    """The record that holds it, with the time of the last change."""


class Documents:
    """The documents among the records of a text memory; other records are left alone."""

    def __init__(self, memory: TextMemory) -> None:
        self.memory = memory

    def get(self, key: str) -> Document | None:
        """The document under a key."""
        places = (_place(key, 0), _place(key, 1))
        found = [d for d in map(as_document, map(self.memory.get, places)) if d is not None]
        return max(found, key=lambda document: document.revision, default=None)

    def put(self, key: str, text: str, value: Any) -> None:
        """Store a document, in place of the one before.

        Args:
            text: what it is searched by.
            value: what is kept; anything JSON can hold.
        """
        while True:
            before = self.get(key)
            revision = 0 if before is None else before.revision + 1
            place = _place(key, revision)
            self._forget(place)  # what a crash has left
            now = datetime.now(UTC)
            created = (now if before is None else before.created).isoformat()
            metadata = {"key": key, "revision": revision, "created": created, "value": value}
            try:
                if self.memory.remember(text, id=place, time=now, metadata=metadata).is_new:
                    break
            except DataError:
                if self.memory.get(place) is None:
                    raise
            # Another process has put something there in the meantime: this comes after it.
        if before is not None:
            self._forget(before.record.id)

    def delete(self, key: str) -> bool:
        """Forget the document under a key; False if there is none."""
        records = [self.memory.get(_place(key, number)) for number in (0, 1)]
        # The older first: a crash must not bring back what was replaced.
        found = sorted(filter(None, map(as_document, records)), key=lambda d: d.revision)
        for document in found:
            self._forget(document.record.id)
        return bool(found)

    def _forget(self, id: str) -> None:
        """Forget a record, if it is there."""
        if self.memory.get(id) is not None:
            with suppress(DataError):  # another process was faster
                self.memory.forget(id)

    def all(self) -> Iterator[Document]:
        """All documents, those that were written first first."""
        latest: dict[str, Document] = {}
        for record in self.memory.records():
            document = as_document(record)
            if document is not None:
                held = latest.pop(document.key, document)
                latest[document.key] = max(held, document, key=lambda d: d.revision)
        yield from latest.values()

    def search(self, query: str, k: int) -> Iterator[tuple[Document, float]]:
        """The documents among the k records that answer a query best, with their scores."""
        seen: set[str] = set()
        for answer in self.memory.recall(query, k):
            document = as_document(self.memory.get(answer.id))
            if document is not None and document.key not in seen:
                seen.add(document.key)
                latest = self.get(document.key)
                if latest is not None:
                    yield latest, answer.score


def as_document(record: Record | None) -> Document | None:
    """The document that a record holds, if it holds one."""
    match None if record is None else record.metadata:
        case {"key": str(key), "revision": int(revision), "created": str(created), "value": value}:
            if record is not None and record.id == _place(key, revision):
                return Document(key, value, datetime.fromisoformat(created), revision, record)
    return None


def _place(key: str, revision: int) -> str:
    return f"{revision % 2}:{key}"
