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
from collections.abc import Callable, Collection, Sequence
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
from titans.recall.chat import ChatSession
from titans.recall.config import RecallConfig, neural_from_json, neural_to_json
from titans.recall.encoder import Encoder, is_built_in, load_encoder
from titans.recall.features import make_query
from titans.recall.fusion import load_fusion
from titans.recall.generator import TextGenerator
from titans.recall.index import BARE
from titans.recall.neural import CONTEXT, NeuralScope, Observation
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
from titans.recall.store import Row, SQLiteStore
from titans.recall.store.connection import files_of
from titans.recall.text import parse_time
from titans.recall.views import make_views
from titans.recall.writing import NewText, observe_text, refuse_other_text, write_text


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
        self.store = SQLiteStore(path)
        try:
            self.config = _stored_config(self.store, config)
            if config is None and encoder is None and not is_built_in(self.config.encoder):
                raise StoreError(
                    f"{self.store.path} was written with the encoder {self.config.encoder!r}, "
                    "which is not built in. A store does not choose what is loaded: name it again "
                    f"with --encoder {self.config.encoder} (in Python: encoder or config)"
                )
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
            new = NewText(record_id, text, speaker, when, metadata, views)
            return self._write(new)[0]

    def _known(self, record_id: str, text: str) -> Record | None:
        """A record with this id, if there is one; another text under it is an error."""
        with self.store.reading():
            head = self.store.head(self.scope)
            row = None if head is None else self.store.find(head.id, record_id)
            if head is None or row is None:
                return None
            refuse_other_text(row, text, self.scope)
            return to_record(row, self._linked_ids(head.id, [row]), is_new=False)

    def _write(self, new: NewText) -> tuple[Record, Observation]:
        done = write_text(self._scope, new)
        assert self._scope.id is not None
        links = self._linked_ids(self._scope.id, [done.row])
        return to_record(done.row, links, is_new=done.is_new), done.observed

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
        observed = observe_text(self._scope, query, [view], 0)
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
        """A conversation of one turn: remember the prompt, recall, let the model answer.

        A conversation of many is a `ChatSession`.

        Args:
            on_text: called with each piece of the answer as it comes.
        """
        return ChatSession(self, llm, speaker=speaker).turn(prompt, on_text)

    def attend(
        self, prompt: str, *, speaker: str | None = "user", known: Collection[str] = ()
    ) -> tuple[Record, list[Recalled]]:
        """Remember a prompt and recall what bears on it: what `turn` does before the model.

        The order is that of memory-as-context: read, attend, write, retrieve.

        Args:
            known: texts that need not be recalled.
        """
        _check_text(prompt, None)
        with self._lock:
            views = make_views(self.encoder, self.config.pooling, speaker, prompt)
            now = to_microseconds(datetime.now(UTC))
            new = NewText(uuid.uuid4().hex, prompt, speaker, now, None, views)
            record, observed = self._write(new)
            with self.store.reading():
                self._scope.refresh()
                if self.config.retrieval == "memory":
                    hits = self._nearest_to(observed, None)
                else:
                    hits = self._search(prompt, Filter())
                wanted = self.config.top_k
                memories = self._assembly().build(
                    hits, wanted + len(known), self.config.threshold, exclude=record.id
                )
        return record, [m for m in memories if m.text not in known][:wanted]

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
            head = self.store.head(self.scope)
            row = None if head is None else self.store.find(head.id, id)
            if head is None or row is None:
                return None
            return to_record(row, self._linked_ids(head.id, [row]), is_new=False)

    def records(self) -> list[Record]:
        """Every record of the scope in the order of writing."""
        with self._lock, self.store.reading():
            head = self.store.head(self.scope)
            rows = [] if head is None else list(self.store.all_rows(head.id))
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
                "file_bytes": sum(p.stat().st_size for p in files_of(self.store.path)),
            }

    @property
    def persistent_texts(self) -> list[str]:
        """Texts that stand in every prompt of this scope."""
        with self._lock, self.store.reading():
            head = self.store.head(self.scope)
            return [] if head is None else self.store.persistent_texts(head.id)

    @persistent_texts.setter
    def persistent_texts(self, texts: Sequence[str]) -> None:
        for text in texts:
            _check_text(text, None)
        with self._lock, self.store.writing():
            self.store.set_persistent_texts(self.store.create_scope(self.scope), texts)

    def _linked_ids(self, scope: int, rows: list[Row]) -> dict[int, str]:
        linked = {s for r in rows for s in (r.duplicate_of, r.successor_of) if s is not None}
        return {seq: row.id for seq, row in self.store.rows(scope, sorted(linked)).items()}


def _stored_config(store: SQLiteStore, config: RecallConfig | None) -> RecallConfig:
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
