"""`TextMemory`: long-term memory for conversations. It learns as it reads, and asks no LLM.

    with TextMemory("memory.db", scope="ann") as memory:
        memory.remember("My dog is called Rex.", speaker="Ann")
        memory.recall("What is the name of Ann's dog?")

Each text is kept verbatim, indexed by words and vectors, and written into the weights of a neural
memory (neural.py) if it is surprising enough. A store may be open in several processes.
"""

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from titans.errors import DataError, StoreError
from titans.recall import forgetting
from titans.recall.chat import ChatSession
from titans.recall.checks import (
    FIELDS,
    as_filter,
    changed_marks,
    check_count,
    check_query,
    check_text,
    check_words,
    checked_record,
)
from titans.recall.config import RecallConfig, neural_from_json, neural_to_json
from titans.recall.encoder import Encoder, is_built_in, load_encoder
from titans.recall.generator import TextGenerator
from titans.recall.neural.memory import Observation, load_online_memory
from titans.recall.reader import ScopeReader
from titans.recall.records import (
    Recalled,
    Record,
    Turn,
    to_microseconds,
    to_record,
)
from titans.recall.replica import Replica
from titans.recall.search.assembly import Assembly
from titans.recall.search.fusion import load_fusion
from titans.recall.search.search import Hits, Searcher
from titans.recall.store import NO_MARKS, Filter, Scalar, Store, open_store
from titans.recall.text.passages import EncodedPassage, encode_many, encode_passages
from titans.recall.text.words import end_of_period
from titans.recall.writing import NewText, write_texts


class TextMemory(ScopeReader, AbstractContextManager["TextMemory"]):
    """A scope of a store: `remember`, `recall`, `turn`, `forget`.

    Args:
        place: the path of an SQLite file, made if it is not there; `postgresql://...`; or a store
            that is open, which is closed with the memory.
        scope: whose memory: a user, an agent, a conversation. Scopes never see each other.
        config: settings; by default those of the store, or the default preset for a new one.
        encoder: an encoder that is loaded already; by default the one `config` names.
    """

    def __init__(
        self,
        place: str | Path | Store,
        scope: str = "default",
        config: RecallConfig | None = None,
        *,
        encoder: Encoder | None = None,
    ) -> None:
        check_words(scope=scope)
        if not scope:
            raise ValueError("scope must not be empty")
        self._lock = threading.RLock()
        self.store = open_store(place) if isinstance(place, str | Path) else place
        try:
            self.config = _stored_config(self.store, config)
            if config is None and encoder is None and not is_built_in(self.config.encoder):
                raise StoreError(
                    f"{self.store.name} was written with the encoder {self.config.encoder!r}, "
                    "which is not built in. A store does not choose what is loaded: name it again "
                    f"with --encoder {self.config.encoder} (in Python: encoder or config)"
                )
            self.encoder = encoder or load_encoder(self.config.encoder)
            self.neural = load_online_memory(
                self.encoder.dim, self.config.neural, self.config.checkpoint
            )
            self._claim()
        except BaseException:
            self.store.close()
            raise
        self.scope = scope
        self._replica = Replica(self.store, scope, self.config, self.encoder, self.neural)
        self._searcher = Searcher(self._replica, load_fusion())

    def _claim(self) -> None:
        """Tie a new store to its encoder and neural configuration, or check that they fit."""
        wanted = {
            "encoder": f"{self.encoder.name}, {self.config.pooling}",
            "encoder_setting": self.config.encoder,
            "neural": neural_to_json(self.config.neural),
        }
        if all(self.store.setting(key) == value for key, value in wanted.items()):
            return
        with self.store.writing():
            for key, value in wanted.items():
                found = self.store.setting(key)
                if found is None:
                    self.store.set_setting(key, value)
                elif found != value and key != "encoder_setting":
                    raise StoreError(
                        f"{self.store.name} was written with {key} {found}, not {value}: open it "
                        "with the same, or export it and import it into a new store"
                    )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. Everything acknowledged is on disk already."""
        try:
            # How often something was recalled is worth no error.
            with self._lock, suppress(StoreError):
                self._save_recalls()
        finally:
            self.store.close()

    # Remember

    def remember(
        self,
        text: str,
        *,
        speaker: str | None = None,
        time: datetime | str | None = None,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        expires: datetime | str | None = None,
        importance: float = 0.0,
        pinned: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Record:
        """Store a text and write it into the neural memory if it is surprising.

        Args:
            time: when it was said; without a zone it is UTC; now by default.
            id: the same id and text again change nothing; with another text it is an error.
            metadata: anything JSON can hold.
            expires: from when on it is not recalled; `expire` then removes it permanently.
            importance: in [0, 1]; 1 multiplies the odds behind its scores by 2.7.
            pinned: it never expires.
            progress: called with (passages encoded, passages to encode) of a long text.
        """
        given = {"text": text, "speaker": speaker, "time": time, "id": id, "metadata": metadata}
        given |= {"expires": expires, "importance": importance, "pinned": pinned}
        checked_record(**given)
        with self._lock:
            there = self._find_same([given])
            if there:
                return there[0]
            pooling = self.config.pooling
            passages = encode_passages(self.encoder, pooling, speaker, text, progress)
            return self._write([_new_text(given, passages)])[0][0]

    def remember_many(
        self,
        records: Iterable[Mapping[str, Any]],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Record]:
        """Store several texts in their order; all are checked before the first is stored.

        Args:
            records: each with `text` and, if wanted, the other arguments of `remember`.
            progress: called with (records stored, records to store) after each transaction.
        """
        wanted = list(records)
        for number, values in enumerate(wanted, 1):
            if not isinstance(values, Mapping):
                raise DataError(f"record {number} must be a mapping with a text, got {values!r}")
            unknown = sorted(map(str, set(values) - set(FIELDS)))
            if unknown or "text" not in values:
                raise DataError(
                    f"record {number} must have a text and otherwise only {', '.join(FIELDS[1:])}; "
                    f"unknown: {', '.join(unknown) or 'none'}"
                )
            try:
                checked_record(**values)
            except DataError as error:
                raise DataError(f"record {number}: {error}") from error
        found: list[Record] = []
        for part in _parts(wanted):
            # Texts of equal length are encoded together, which is faster than one by one.
            with self._lock:
                there = self._find_same(part)
                missing = [values for i, values in enumerate(part) if i not in there]
                texts = [(values.get("speaker"), values["text"]) for values in missing]
                encoded = encode_many(self.encoder, self.config.pooling, texts)
            new = map(_new_text, missing, encoded)
            for begin in range(0, len(part), WRITTEN_TOGETHER):
                numbers = range(begin, min(begin + WRITTEN_TOGETHER, len(part)))
                with self._lock:
                    written = iter(self._write([next(new) for i in numbers if i not in there]))
                found += [there[i] if i in there else next(written)[0] for i in numbers]
                if progress is not None:
                    progress(len(found), len(wanted))
        return found

    def _find_same(self, part: Sequence[Mapping[str, Any]]) -> dict[int, Record]:
        """Of some records (by number) those that are there with their id and text."""
        if not any(values.get("id") for values in part):
            return {}
        with self.store.reading(self.scope):
            head = self.store.head(self.scope)
            found: dict[int, Record] = {}
            for number, values in enumerate(part):
                if head is None or not values.get("id"):
                    continue
                known = self.store.find(head.scope_id, values["id"])
                if known is not None and known.text == values["text"]:
                    links = self._linked_ids(head.scope_id, [known])
                    found[number] = to_record(known, links, is_new=False)
            return found

    def _write(self, texts: Sequence[NewText]) -> list[tuple[Record, Observation]]:
        if not texts:
            return []
        done = write_texts(self._replica, texts)
        assert self._replica.scope_id is not None
        links: dict[int, str] = {}
        if any(w.record.duplicate_of or w.record.successor_of for w in done):
            with self.store.reading(self.scope):
                links = self._linked_ids(self._replica.scope_id, [w.record for w in done])
        return [(to_record(w.record, links, is_new=w.is_new), w.observed) for w in done]

    # Recall

    def recall(
        self,
        query: str,
        k: int = 3,
        *,
        before: datetime | str | None = None,
        after: datetime | str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Scalar] | None = None,
        at: datetime | str | None = None,
        threshold: float | None = None,
        explain: bool = False,
    ) -> list[Recalled]:
        """The k records that answer a query best, best first.

        Args:
            before: only records from before this time (exclusive).
            after: only records from this time on (inclusive).
            metadata: only records whose metadata has these fields with these values.
            at: as known then: a time, or all of a day, month or year ("2024-05-31", "2024-05",
                "2024"). Later records do not exist, and "yesterday" is counted from it.
            threshold: only records whose `score` is at least this; 0 or None drops nothing.
            explain: say for each record what every feature contributed; this look does not count
                as a recall.
        """
        check_count(1, k=k)
        check_query(query, threshold)
        wanted = as_filter(before, after, speaker, metadata)
        today = None
        if at is not None:
            end = end_of_period(at)
            today = end.date()
            known = to_microseconds(end) + 1
            wanted = replace(wanted, before=min(known, wanted.before or known))
        with self._lock, self.store.reading(self.scope):
            self._replica.refresh()
            hits = self._searcher.search(query, wanted, today)
            found = Assembly(self._replica, explain).build(hits, k, threshold or 0.0, exclude=None)
            if not explain:
                self._replica.recalls.update(answer.id for answer in found)
            return found

    def search(self, query: str) -> Hits:
        """Every candidate passage with its features: what `recall` ranks (to fit or to study)."""
        with self._lock, self.store.reading(self.scope):
            self._replica.refresh()
            return self._searcher.search(query, Filter(), best=max(len(self._replica.index), 1))

    # Turn

    def turn(
        self,
        prompt: str,
        llm: TextGenerator,
        *,
        speaker: str | None = "user",
        on_text: Callable[[str], None] | None = None,
    ) -> Turn:
        """A conversation of one turn: remember the prompt, recall, let the model answer.

        A conversation of many is a `ChatSession`.

        Args:
            on_text: called with each piece of the answer as it comes.
        """
        return ChatSession(self, llm, speaker=speaker).turn(prompt, on_text)

    def attend(
        self,
        prompt: str,
        *,
        speaker: str | None = "user",
        metadata: dict[str, Any] | None = None,
        known: Collection[str] = (),
        only: Mapping[str, Scalar] | None = None,
    ) -> tuple[Record, list[Recalled]]:
        """Remember a prompt and recall what bears on it: what `turn` does before the model.

        The order is that of memory-as-context: read, attend, write, retrieve.

        Args:
            metadata: of the prompt.
            known: texts that need not be recalled.
            only: recall only records whose metadata has these fields with these values.
        """
        wanted, said = as_filter(None, None, None, only), frozenset(known)
        check_text(prompt, metadata)
        check_words(speaker=speaker)
        with self._lock:
            passages = encode_passages(self.encoder, self.config.pooling, speaker, prompt)
            now = to_microseconds(datetime.now(UTC))
            new = NewText(uuid.uuid4().hex, prompt, speaker, now, metadata, passages)
            ((record, observed),) = self._write([new])
            with self.store.reading(self.scope):
                self._replica.refresh()
                if self.config.retrieval == "memory":
                    hits = self._searcher.search_observed(observed, wanted)
                else:
                    hits = self._searcher.search(prompt, wanted)
                count = self.config.top_k
                memories = Assembly(self._replica, explain=False).build(
                    hits, count + len(said), self.config.threshold, exclude=record.id
                )
            found = [m for m in memories if m.text not in said][:count]
            self._replica.recalls.update(answer.id for answer in found)
        return record, found

    # Forget

    def forget(
        self,
        id: str | None = None,
        *,
        before: datetime | str | None = None,
        after: datetime | str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Scalar] | None = None,
        scope: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> forgetting.Forgotten:
        """Remove records permanently: their text, index entries, traces in files, and their part in
        the neural memory, which is computed again without them.

        Args:
            id: one record of this scope.
            before: the records of this scope from before this time (exclusive).
            after: those from this time on (inclusive).
            speaker: those that this speaker said.
            metadata: those whose metadata has these fields with these values.
            scope: a whole scope by its name.
            progress: called with (records replayed, records to replay).
        """
        wanted = as_filter(before, after, speaker, metadata)
        if sum((id is not None, wanted != Filter(), scope is not None)) != 1:
            raise ValueError("name exactly one of id, a filter (before, after, ...) and scope")
        check_words(id=id, scope=scope)
        with self._lock:
            if scope is not None:
                return forgetting.forget_scope(self.store, scope)
            return forgetting.forget_records(
                self._replica, wanted if id is None else id, progress=progress
            )

    def expire(
        self,
        before: datetime | str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> forgetting.Forgotten:
        """Forget permanently what has expired, as `forget` does. What is pinned stays.

        Args:
            before: also what was said before this time.
            progress: called with (records replayed, records to replay).
        """
        said = as_filter(before, None, None, None).before
        due = forgetting.Due(to_microseconds(datetime.now(UTC)), said)
        with self._lock:
            return forgetting.forget_records(self._replica, due, progress=progress)

    def mark(
        self,
        id: str,
        *,
        expires: datetime | str | None = None,
        importance: float | None = None,
        pinned: bool | None = None,
    ) -> Record:
        """Change how long a record is kept and how much it weighs; None leaves a mark as it is.

        Args:
            expires: "never" takes the expiry away.
        """
        changed_marks(NO_MARKS, expires, importance, pinned)
        check_words(id=id)
        with self._lock, self.store.writing(self.scope):
            scope_id, found = self._stored(id)
            marks = changed_marks(found.marks, expires, importance, pinned)
            self.store.set_marks(scope_id, found.seq, marks)
            found = replace(found, marks=marks)
            return to_record(found, self._linked_ids(scope_id, [found]), is_new=False)


BULK_RECORDS, BULK_CHARS = 256, 100_000
"""Of `remember_many`, records that are encoded at once: no more of them, and of their text."""
WRITTEN_TOGETHER = 32
"""Of these, in one transaction: other writers wait for it."""


def _new_text(given: Mapping[str, Any], passages: list[EncodedPassage]) -> NewText:
    """The arguments of `remember` as a mapping, checked already, and what the encoder gave."""
    when, marks = checked_record(**given)
    record_id = given.get("id") or uuid.uuid4().hex
    speaker, metadata = given.get("speaker"), given.get("metadata")
    return NewText(record_id, given["text"], speaker, when, metadata, passages, marks)


def _parts(records: list[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Records in their order, so many at a time as are encoded at once."""
    part: list[Mapping[str, Any]] = []
    size = 0
    for values in records:
        if part and (len(part) == BULK_RECORDS or size + len(values["text"]) > BULK_CHARS):
            yield part
            part, size = [], 0
        part.append(values)
        size += len(values["text"])
    if part:
        yield part


def _stored_config(store: Store, config: RecallConfig | None) -> RecallConfig:
    """The settings to open a store with: those given, else the store's own encoder and memory."""
    if config is not None:
        return config
    config = RecallConfig()
    neural, encoder = store.setting("neural"), store.setting("encoder_setting")
    if neural is not None and encoder is not None:
        parsed = neural_from_json(neural)
        config = config.change(encoder=encoder, neural=parsed)
        if parsed.roles == "self":
            config = config.change(retrieval="memory", gate_quantile=0.0)
    return config
