"""What a scope holds, looked up without a question: records, chains of updates, a summary."""

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from titans.errors import DataError
from titans.recall.checks import as_filter, check_count, check_text, check_words
from titans.recall.neural.memory import OnlineMemory
from titans.recall.overview import history, summarise
from titans.recall.records import Record, Summary, to_microseconds, to_record
from titans.recall.replica import Replica
from titans.recall.store import Scalar, Store, StoredRecord


class ScopeReader:
    """The part of `TextMemory` that looks around in its scope."""

    store: Store
    scope: str
    neural: OnlineMemory
    _lock: threading.RLock
    _replica: Replica

    def get(self, id: str) -> Record | None:
        """A record by its id."""
        check_words(id=id)
        with self._lock, self.store.reading(self.scope):
            head = self.store.head(self.scope)
            found = None if head is None else self.store.find(head.scope_id, id)
            if head is None or found is None:
                return None
            return to_record(found, self._linked_ids(head.scope_id, [found]), is_new=False)

    def history(self, id: str) -> list[Record]:
        """How what a record states has changed: its statements, oldest first."""
        with self._lock, self.store.reading(self.scope):
            self._replica.refresh()
            return history(self._replica, self._stored(id)[1].seq)

    def summary(self, count: int = 5) -> Summary:
        """What stands out: the most surprising, most recalled and most updated records.

        Args:
            count: how many of each, at most.
        """
        check_count(1, count=count)
        with self._lock:
            self._save_recalls()
            with self.store.reading(self.scope):
                self._replica.refresh()
                return summarise(self._replica, count, to_microseconds(datetime.now(UTC)))

    def _save_recalls(self) -> None:
        if self._replica.recalls:
            with self.store.writing(self.scope):
                self._replica.save_recalls()

    def _stored(self, id: str) -> tuple[int, StoredRecord]:
        """The number of the scope and a record in it."""
        head = self.store.head(self.scope)
        found = None if head is None else self.store.find(head.scope_id, id)
        if head is None or found is None:
            raise DataError(f"there is no record {id!r} in scope {self.scope!r}")
        return head.scope_id, found

    def records(
        self,
        *,
        before: datetime | str | None = None,
        after: datetime | str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Scalar] | None = None,
        newest_first: bool = False,
        limit: int | None = None,
        beyond: str | None = None,
    ) -> list[Record]:
        """The records of the scope in the order of writing: all, or those that are wanted.

        Args:
            before: only records from before this time (exclusive).
            after: only records from this time on (inclusive).
            metadata: only records whose metadata has these fields with these values.
            newest_first: in the reverse order.
            limit: no more than this many.
            beyond: the id of a record; only those that come after it in this order (for pages).
        """
        wanted = as_filter(before, after, speaker, metadata)
        check_words(beyond=beyond)
        if limit is not None:
            check_count(0, limit=limit)
        with self._lock, self.store.reading(self.scope):
            head = self.store.head(self.scope)
            if head is None:
                return []
            last = None if beyond is None else self.store.find(head.scope_id, beyond)
            if beyond is not None and last is None:
                raise DataError(f"there is no record {beyond!r} to go on from: list from the start")
            listed = self.store.list_records(
                head.scope_id,
                wanted,
                newest_first=newest_first,
                limit=limit,
                beyond=None if last is None else last.seq,
            )
            found = list(listed)
            ids = self._linked_ids(head.scope_id, found)
            return [to_record(record, ids, is_new=False) for record in found]

    def stats(self) -> dict[str, Any]:
        """How much the scope holds and how surprised it was."""
        with self._lock, self.store.reading(self.scope):
            self._replica.refresh()
            number = self._replica.scope_id
            counts = self.store.counts(number) if number is not None else {"records": 0}
            surprise = self._replica.index.column("surprise")
            return {
                "store": str(self.store.name),
                "scope": self.scope,
                "scopes": len(self.store.scopes()),
                "encoder": self.store.setting("encoder"),
                **counts,
                "mean_surprise": float(surprise.mean()) if len(surprise) else None,
                "gate": self._replica.gate(),
                "neural_state_bytes": self.neural.size(self._replica.state),
                "file_bytes": self.store.size,
            }

    @property
    def persistent_texts(self) -> list[str]:
        """Texts that stand in every prompt of this scope."""
        with self._lock, self.store.reading(self.scope):
            head = self.store.head(self.scope)
            return [] if head is None else self.store.persistent_texts(head.scope_id)

    @persistent_texts.setter
    def persistent_texts(self, texts: Sequence[str]) -> None:
        for text in texts:
            check_text(text, None)
        with self._lock, self.store.writing(self.scope):
            self.store.set_persistent_texts(self.store.create_scope(self.scope), texts)

    def _linked_ids(self, scope_id: int, records: list[StoredRecord]) -> dict[int, str]:
        linked = {s for r in records for s in (r.duplicate_of, r.successor_of) if s is not None}
        found = self.store.records(scope_id, sorted(linked))
        return {seq: record.id for seq, record in found.items()}
