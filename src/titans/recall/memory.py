"""`TextMemory`: long-term memory for conversations. It learns as it reads, and asks no LLM.

    with TextMemory("memory.db", scope="ann") as memory:
        memory.remember("My dog is called Rex.", speaker="Ann")
        memory.recall("What is the name of Ann's dog?")

Each text is kept verbatim, indexed by words and vectors, and written into the weights of a neural
memory (neural.py) if it is surprising enough. A store may be open in several processes.
"""

import json
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from titans.errors import DataError, StoreError
from titans.recall import forget as forgetting
from titans.recall.blocks import save_blocks
from titans.recall.config import RecallConfig, neural_from_json, neural_to_json
from titans.recall.encoder import Encoder, load_encoder
from titans.recall.features import make_query
from titans.recall.fusion import load_fusion
from titans.recall.generator import TextGenerator, answer
from titans.recall.index import BARE, Entry
from titans.recall.links import SUCCESSOR_COSINE, Statement, judge_link
from titans.recall.neural import CONTEXT, NeuralScope, Observation
from titans.recall.prompt import build_prompt
from titans.recall.records import (
    Recalled,
    Record,
    Turn,
    to_microseconds,
    to_record,
)
from titans.recall.results import Assembly
from titans.recall.scope import OpenScope
from titans.recall.search import Filter, Hits, Searcher
from titans.recall.store import Row, Store
from titans.recall.text import STOP_WORDS, parse_time, stem, words
from titans.recall.views import View, make_views

LINK_CANDIDATES = 8
"""Nearest texts that a new one is compared with, to link it."""


class TextMemory(AbstractContextManager["TextMemory"]):
    """A scope of a store: `remember`, `recall`, `turn`, `forget`.

    Args:
        path: the SQLite file; made if it is not there.
        scope: whose memory: a user, an agent, a conversation. Scopes never see each other.
        config: settings; by default those of the store, or the default preset for a new one.
        encoder: an encoder that is loaded already; by default the one `config` names.
    """

    def __init__(
        self,
        path: str | Path,
        scope: str = "default",
        config: RecallConfig | None = None,
        *,
        encoder: Encoder | None = None,
    ) -> None:
        if not scope:
            raise ValueError("scope must not be empty")
        self._lock = threading.RLock()
        self.store = Store(path)
        try:
            self.config = _stored_config(self.store, config)
            self.encoder = encoder or load_encoder(self.config.encoder)
            self.neural = NeuralScope(self.encoder.dim, self.config.neural, self.config.checkpoint)
            self._claim()
        except BaseException:
            self.store.close()
            raise
        self._fusion = load_fusion(self.config.use_memory)
        self.scope = scope
        self._scope = OpenScope(self.store, scope, self.config, self.encoder, self.neural)

    def _claim(self) -> None:
        """Tie a new store to its encoder and neural configuration, or check that they fit."""
        wanted = {
            "encoder": f"{self.encoder.name}, {self.config.pooling}",
            "encoder_setting": self.config.encoder,
            "neural": neural_to_json(self.config.neural),
        }
        if all(self.store.get_meta(key) == value for key, value in wanted.items()):
            return
        with self.store.writing():
            for key, value in wanted.items():
                found = self.store.get_meta(key)
                if found is None:
                    self.store.set_meta(key, value)
                elif found != value and key != "encoder_setting":
                    raise StoreError(
                        f"{self.store.path} was written with {key} {found}, not {value}: open it "
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
    ) -> Record:
        """Store a text and write it into the neural memory if it is surprising.

        Args:
            time: when it was said; without a zone it is UTC; now by default.
            id: the same id and text again change nothing; with another text it is an error.
            metadata: anything JSON can hold.
        """
        _check_text(text, metadata)
        for name, value in (("speaker", speaker), ("id", id)):
            if value is not None and not isinstance(value, str):
                raise DataError(f"{name} must be a str, got {value!r}")
        when = to_microseconds(parse_time(time or datetime.now(UTC)))
        record_id = id or uuid.uuid4().hex
        with self._lock:
            known = self._known(record_id, text) if id else None
            if known is not None:
                return known
            views = make_views(self.encoder, self.config.pooling, speaker, text)
            return self._store(record_id, text, speaker, when, metadata, views)[0]

    def _known(self, record_id: str, text: str) -> Record | None:
        """A record with this id, if there is one; another text under it is an error."""
        with self.store.reading():
            scope = self.store.scope_id(self.scope)
            row = None if scope is None else self.store.find(scope, record_id)
            if scope is None or row is None:
                return None
            if row.text != text:
                raise DataError(
                    f"id {record_id!r} holds another text in scope {self.scope!r}; "
                    "records are not changed: use a new id, or forget the old record first"
                )
            return to_record(row, self._linked_ids(scope, [row]), is_new=False)

    def _store(
        self,
        record_id: str,
        text: str,
        speaker: str | None,
        when: int,
        metadata: dict[str, Any] | None,
        views: list[View],
    ) -> tuple[Record, Observation]:
        """The part of `remember` that excludes other writers: look, decide, write, commit."""
        scope = self._scope
        with self.store.writing():
            scope.id = self.store.create_scope(self.scope)
            scope.refresh()
            if self.store.find(scope.id, record_id) is not None:
                raise DataError(f"id {record_id!r} was stored by another process just now")
            save_blocks(self.store, scope.id, scope.index)
            observed = self._observe(views, text, when)
            duplicate, successor = self._links(views, speaker, text)
            written, reason = self._judge(observed.surprise, duplicate is not None)
            row = Row(
                *(0, record_id, text, speaker, when, metadata, observed.surprise),
                *(written, reason, duplicate, successor),
            )
            data = observed.write.to_bytes() if written else None
            seq = self.store.add(scope.id, row, [view.to_passage() for view in views], data)
            state = self.neural.absorb(scope.state, observed.write) if written else None
            if written and scope.writes_since_snapshot + 1 >= self.config.snapshot_every:
                assert state is not None
                snapshot = self.neural.dump(state)
                self.store.save_snapshot(scope.id, seq, snapshot, self.config.keep_snapshots)
            # By query, not from memory: the index holds what a reader of the store would hold.
            entries = [Entry(*e) for e in self.store.index_entries(scope.id, seq - 1)]
        before = scope.writes_since_snapshot
        scope.advance(entries, [view.terms for view in views], state)
        if before + 1 >= self.config.snapshot_every and written:
            scope.writes_since_snapshot = 0
        links = self._linked_ids(scope.id, [row])
        return to_record(row, links), observed

    def _observe(self, views: list[View], text: str, when: int) -> Observation:
        """Meet the text: its vector, surprise, and what it would write."""
        pooled = F.normalize(torch.stack([view.bare for view in views]).mean(0), dim=-1)
        stems = {stem(word): word for word in words(text) if word not in STOP_WORDS}
        around = self._scope.surroundings(stems, when)
        return self.neural.observe(pooled.half().float(), self._scope.state, around)

    def _judge(self, surprise: float, is_duplicate: bool) -> tuple[bool, str]:
        """Whether to write to the neural memory, and why."""
        if is_duplicate:
            return False, "says what another record says"
        gate = self._scope.gate()
        if gate and surprise <= gate:
            return False, f"surprise {surprise:.3g} is at or below the gate {gate:.3g}"
        if not gate:
            return True, f"surprise {surprise:.3g}; the gate is open"
        return True, f"surprise {surprise:.3g} is above the gate {gate:.3g}"

    def _links(
        self, views: list[View], speaker: str | None, text: str
    ) -> tuple[int | None, int | None]:
        """The seq of the record that this text repeats, and of the one that it updates."""
        index, scope = self._scope.index, self._scope.id
        if len(views) != 1 or not len(index) or scope is None:
            return None, None
        rows, cosines = index.nearest(views[0].bare.numpy(), LINK_CANDIDATES, quick=True)
        rows, cosines = rows[cosines >= SUCCESSOR_COSINE], cosines[cosines >= SUCCESSOR_COSINE]
        new = Statement(text, speaker, views[0].tokens)
        stored = self.store.rows(scope, [int(s) for s in index.column("seq")[rows]])
        passages = [int(p) for p in index.column("passage")[rows]]
        tokens = self.store.token_vectors(passages)
        for row, cosine, passage in zip(rows, cosines, passages, strict=True):
            seq = int(index.column("seq")[row])
            old_tokens = np.frombuffer(tokens[passage], np.int8).reshape(-1, new.tokens.shape[1])
            old = Statement(stored[seq].text, stored[seq].speaker, old_tokens)
            link = judge_link(new, old, float(cosine), self.config.duplicate_threshold)
            if link == "duplicate":
                return int(index.column("group")[row]), None
            if link == "successor" and not index.column("replaced")[row]:
                return None, seq
        return None, None

    # Recall

    def recall(
        self,
        query: str,
        k: int = 3,
        *,
        before: datetime | str | None = None,
        after: datetime | str | None = None,
        speaker: str | None = None,
        threshold: float | None = None,
        explain: bool = False,
    ) -> list[Recalled]:
        """The k records that answer a query best, best first.

        Args:
            before: only records from before this time (exclusive).
            after: only records from this time on (inclusive).
            threshold: only records whose `score` is at least this; 0 or None drops nothing.
            explain: say for each record what every feature contributed.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if not query.strip():
            raise ValueError("query is empty: ask something")
        if threshold is not None and not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1], got {threshold}")
        wanted = Filter(
            before=None if before is None else to_microseconds(parse_time(before)),
            after=None if after is None else to_microseconds(parse_time(after)),
            speaker=speaker,
        )
        with self._lock, self.store.reading():
            self._scope.refresh()
            hits = self._search(query, wanted)
            return self._assembly(explain).build(hits, k, threshold or 0.0, exclude=None)

    def search(self, query: str) -> Hits:
        """Every candidate passage with its features: what `recall` ranks (to fit or to study)."""
        with self._lock, self.store.reading():
            self._scope.refresh()
            return self._search(query, Filter())

    def _search(self, query: str, wanted: Filter) -> Hits:
        scope = self._scope
        allowed = wanted.mask(scope.index)
        if not len(scope.index) or scope.id is None:
            return Hits.nothing()
        if self.config.retrieval == "memory":
            return self._search_memory(query, allowed)
        encoded = make_query(self.encoder, self.config.pooling, query, list(scope.index.speakers))
        answer = self._memory_answer(encoded.first_person)
        return Searcher(scope, self._fusion).search(encoded, answer, allowed)

    def _memory_answer(self, question: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """What the context head answers to a question, of unit length; None if it knows nothing."""
        if not self.config.use_memory or self.config.neural.roles != "associative":
            return None
        scope = self._scope
        read = self.neural.read(torch.from_numpy(question), scope.state, scope.centre())
        found = read[CONTEXT]
        size = float(found.norm())
        return (found / size).numpy() if size > 1e-6 else None

    def _search_memory(self, query: str, allowed: NDArray[np.bool_] | None) -> Hits:
        """The classic retrieval: cosine of o = y * M(y) with every stored vector s."""
        view = make_views(self.encoder, self.config.pooling, None, query)[0]
        observed = self._observe([view], query, 0)
        return self._nearest_to(observed, allowed)

    def _nearest_to(self, observed: Observation, allowed: NDArray[np.bool_] | None) -> Hits:
        index = self._scope.index
        o = self.neural.search_vector(observed.y, self._scope.state)
        bare = torch.from_numpy(index.column("vectors")[:, BARE]).float()
        with torch.no_grad():
            stored = self.neural.block.embed(bare)
            cosine = F.cosine_similarity(stored, o[None], dim=-1).numpy()
        rows = np.arange(len(index)) if allowed is None else np.flatnonzero(allowed)
        order = rows[np.argsort(-cosine[rows], kind="stable")]
        return Hits.by_memory(order, np.clip(cosine[order], 0, 1))

    def _assembly(self, explain: bool = False) -> Assembly:
        return Assembly(self.store, self._scope, self._fusion, explain)

    # Turn

    def turn(
        self,
        prompt: str,
        llm: TextGenerator,
        *,
        speaker: str | None = "user",
        on_text: Callable[[str], None] | None = None,
    ) -> Turn:
        """One turn of conversation: remember the prompt, recall, let the model answer.

        The order is that of memory-as-context: read, attend, write, retrieve, answer.

        Args:
            on_text: called with each piece of the answer as it comes.
        """
        _check_text(prompt, None)
        with self._lock:
            views = make_views(self.encoder, self.config.pooling, speaker, prompt)
            now = to_microseconds(datetime.now(UTC))
            record, observed = self._store(uuid.uuid4().hex, prompt, speaker, now, None, views)
            with self.store.reading():
                self._scope.refresh()
                if self.config.retrieval == "memory":
                    hits = self._nearest_to(observed, None)
                else:
                    hits = self._search(prompt, Filter())
                memories = self._assembly().build(
                    hits, self.config.top_k, self.config.threshold, exclude=record.id
                )
                scope = self._scope.id
                persistent = [] if scope is None else self.store.persistent_texts(scope)
        enriched = build_prompt(persistent, memories, prompt)
        said = answer(llm, enriched, on_text)
        if self.config.remember_answers and said.strip():
            self.remember(said, speaker="assistant")
        return Turn(prompt, enriched, said, record, memories)

    # Forget

    def forget(
        self,
        id: str | None = None,
        *,
        before: datetime | str | None = None,
        scope: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> forgetting.Forgotten:
        """Remove records for good: their text, index entries, traces in files, and their part in
        the neural memory, which is computed again without them.

        Args:
            id: one record of this scope.
            before: all records of this scope from before this time.
            scope: a whole scope by its name.
            progress: called with (records replayed, records to replay).
        """
        if sum(x is not None for x in (id, before, scope)) != 1:
            raise ValueError("name exactly one of id, before and scope")
        with self._lock:
            if scope is not None:
                return forgetting.forget_scope(self.store, scope)
            until = None if before is None else to_microseconds(parse_time(before))
            return forgetting.forget_records(
                self.store, self._scope, record_id=id, before=until, progress=progress
            )

    # Looking around

    def get(self, id: str) -> Record | None:
        """A record by its id."""
        with self._lock, self.store.reading():
            scope = self.store.scope_id(self.scope)
            row = None if scope is None else self.store.find(scope, id)
            if scope is None or row is None:
                return None
            return to_record(row, self._linked_ids(scope, [row]), is_new=False)

    def records(self) -> list[Record]:
        """Every record of the scope in the order of writing."""
        with self._lock, self.store.reading():
            scope = self.store.scope_id(self.scope)
            rows = [] if scope is None else list(self.store.all_rows(scope))
            ids = {row.seq: row.id for row in rows}
            return [to_record(row, ids, is_new=False) for row in rows]

    def stats(self) -> dict[str, Any]:
        """How much the scope holds and how surprised it was."""
        with self._lock, self.store.reading():
            self._scope.refresh()
            scope = self._scope.id
            counts = self.store.counts(scope) if scope is not None else {"records": 0}
            surprise = self._scope.index.column("surprise")
            return {
                "store": str(self.store.path),
                "scope": self.scope,
                "scopes": len(self.store.scopes()),
                "encoder": self.store.get_meta("encoder"),
                **counts,
                "mean_surprise": float(surprise.mean()) if len(surprise) else None,
                "gate": self._scope.gate(),
                "neural_state_bytes": sum(w.nbytes for w in self._scope.state.weights),
                "file_bytes": sum(p.stat().st_size for p in forgetting.files_of(self.store.path)),
            }

    @property
    def persistent_texts(self) -> list[str]:
        """Texts that stand in every prompt of this scope."""
        with self._lock, self.store.reading():
            scope = self.store.scope_id(self.scope)
            return [] if scope is None else self.store.persistent_texts(scope)

    @persistent_texts.setter
    def persistent_texts(self, texts: Sequence[str]) -> None:
        for text in texts:
            _check_text(text, None)
        with self._lock, self.store.writing():
            self.store.set_persistent_texts(self.store.create_scope(self.scope), texts)

    def _linked_ids(self, scope: int, rows: list[Row]) -> dict[int, str]:
        linked = {s for r in rows for s in (r.duplicate_of, r.successor_of) if s is not None}
        return {seq: row.id for seq, row in self.store.rows(scope, sorted(linked)).items()}


def _stored_config(store: Store, config: RecallConfig | None) -> RecallConfig:
    """The settings to open a store with: those given, else the store's own encoder and memory."""
    if config is not None:
        return config
    config = RecallConfig()
    neural, encoder = store.get_meta("neural"), store.get_meta("encoder_setting")
    if neural is not None and encoder is not None:
        parsed = neural_from_json(neural)
        config = config.change(encoder=encoder, neural=parsed)
        if parsed.roles == "self":
            config = config.change(retrieval="memory", gate_quantile=0.0)
    return config


def _check_text(text: str, metadata: dict[str, Any] | None) -> None:
    if not isinstance(text, str):
        raise DataError(f"text must be a str, got {type(text).__name__}")
    if not text.strip():
        raise DataError("text is empty: there is nothing to remember")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"text is not valid Unicode: {error}") from error
    if metadata is not None:
        if not isinstance(metadata, dict):
            raise DataError(f"metadata must be a dict, got {type(metadata).__name__}")
        try:
            json.dumps(metadata)
        except (TypeError, ValueError) as error:
            raise DataError(f"metadata must be JSON-serialisable: {error}") from error
