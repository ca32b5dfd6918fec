"""A scope as one process holds it: index and neural state, caught up with what others wrote.

The store is the truth; a replica is a copy of what searching and writing need of it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titans.errors import StoreError
from titans.recall.config import RecallConfig
from titans.recall.encoder import Encoder
from titans.recall.neural.memory import Observation, OnlineMemory, Surroundings, Write
from titans.recall.search.blocks import load_index
from titans.recall.search.index import ScopeIndex
from titans.recall.search.lexical import Layout, make_layout
from titans.recall.store import IndexEntry, Store, StoredRecord
from titans.recall.text.passages import EncodedPassage, pool_passages
from titans.recall.text.words import STOP_WORDS, fold, stem, words

PRIOR_STRENGTH = 20.0
"""How many texts the language's own word frequencies count for."""
MIN_FOR_CENTRE = 16
"""Texts before their mean is worth subtracting."""
MIN_FOR_GATE = 16
"""Texts before the gate has something to compare with; until then all are written."""


class Replica:
    """Index and neural state of one scope; `refresh` before use, inside a transaction."""

    def __init__(
        self,
        store: Store,
        scope: str,
        config: RecallConfig,
        encoder: Encoder,
        neural: OnlineMemory,
    ) -> None:
        self.store, self.scope, self.config = store, scope, config
        self.encoder, self.neural = encoder, neural
        self.scope_id: int | None = None
        """The scope's number in the store; None if it is not there."""
        self._generation = 0
        self.recalls: Counter[str] = Counter()
        """By id, how often records were recalled, as far as the store does not know of it."""
        self.reset()

    def reset(self) -> None:
        """Know nothing of the scope, until the next refresh."""
        self.index = ScopeIndex(self.encoder.dim)
        self._marks = 0
        self._state: Any = None
        self._state_seq = 0
        self.writes_since_snapshot = 0
        # Counting a common word in a large scope takes milliseconds; words come again and again.
        self._counts: dict[str, int] = {}
        self._layout: Layout | None = None

    def refresh(self) -> None:
        """Take in what was written or forgotten since the last look, by whomever.

        The scope may have been forgotten and made anew under its name, so it is looked up each
        time: what is kept here is valid for one number and one generation only.
        """
        head = self.store.head(self.scope)
        found = (None, 0) if head is None else (head.scope_id, head.generation)
        if found != (self.scope_id, self._generation):
            self.reset()
            self.scope_id, self._generation = found
        if head is not None and head.last_seq > self.index.last_seq:
            self._counts.clear()
            load_index(self.store, head.scope_id, self.index)
        if head is not None and head.num_records != self.index.num_records:
            found = f"{head.num_records} records, {self.index.num_records} were found"
            raise self._damage(f"scope {self.scope!r} has {found}")
        if head is not None and head.marks != self._marks:
            self.index.mark(self.store.marks(head.scope_id, self._marks))
            self._marks = head.marks

    def _damage(self, found: str) -> StoreError:
        return StoreError(
            f"{self.store.name} is damaged: {found}; `titans memory repair` keeps what is sound"
        )

    def records(self, seqs: Sequence[int]) -> dict[int, StoredRecord]:
        """Records of the index by their seq; each of them must be there."""
        assert self.scope_id is not None
        found = self.store.records(self.scope_id, seqs)
        if missing := set(seqs) - found.keys():
            raise self._damage(f"record {min(missing)} of scope {self.scope!r} is missing")
        return found

    def token_vectors(self, rows: NDArray[np.int64]) -> list[bytes]:
        """The vectors of the words of some passages of the index."""
        assert self.scope_id is not None
        passages = [int(passage) for passage in self.index.column("passage")[rows]]
        found = self.store.token_vectors(self.scope_id, passages)
        if missing := set(passages) - found.keys():
            raise self._damage(f"the words of passage {min(missing)} are missing")
        return [found[passage] for passage in passages]

    def save_recalls(self) -> None:
        """Tell the store what was recalled; inside `store.writing()`."""
        if self.scope_id is not None:
            found = {id: self.store.find(self.scope_id, id) for id in self.recalls}
            recalls = {r.seq: self.recalls[id] for id, r in found.items() if r is not None}
            self.store.count_recalls(self.scope_id, recalls)
        self.recalls.clear()

    @property
    def state(self) -> Any:
        """The neural state after the newest record."""
        if self._state is None:
            self._load_snapshot(self.index.last_seq)
        assert self._state is not None
        if self.scope_id is not None and self._state_seq < self.index.last_seq:
            state, count = self._state, 0
            for _, data in self.store.neural_writes(
                self.scope_id, self._state_seq, self.index.last_seq
            ):
                state = self.neural.absorb(state, self._write_from(data))
                count += 1
            if count != self._num_written(self._state_seq):
                raise self._damage("what the neural memory has learned is not all there")
            self.writes_since_snapshot += count
            self._state, self._state_seq = state, self.index.last_seq
        return self._state

    def _num_written(self, after: int) -> int:
        """How many records after this one were written to the neural memory."""
        seqs = self.index.column("seq")
        begin = np.searchsorted(seqs, after, "right")
        return len(np.unique(seqs[begin:][self.index.column("written")[begin:]]))

    def _load_snapshot(self, until: int) -> None:
        found = None if self.scope_id is None else self.store.newest_snapshot(self.scope_id, until)
        self._state_seq = 0 if found is None else found[0]
        self._state = (
            self.neural.initial_state() if found is None else self.neural.restore(found[1])
        )
        self.writes_since_snapshot = 0

    def _write_from(self, data: bytes) -> Write:
        return Write.from_bytes(data, self.neural.config.num_heads)

    def advance(self, entries: list[IndexEntry], terms: list[list[str]], state: Any) -> None:
        """Take in a record that this process has just stored.

        Args:
            terms: the stems of each passage.
            state: the neural state after the write, if there was one.
        """
        for term in (term for passage in terms for term in set(passage)):
            if term in self._counts:
                self._counts[term] += 1
        before = self.state
        self.index.extend(entries)
        self._state = before if state is None else state
        self._state_seq = self.index.last_seq
        self.writes_since_snapshot += state is not None

    def layout(self) -> Layout:
        """How the passages lie: sessions and lengths."""
        if self._layout is None or self._layout.size != len(self.index):
            self._layout = make_layout(self.index, self.config.session_gap_hours)
        return self._layout

    def gate(self) -> float:
        """The surprise at or below which a text is not written: a quantile of the latest ones."""
        recent = self.index.column("surprise")[-self.config.gate_window :]
        if len(recent) < MIN_FOR_GATE or not self.config.gate_quantile:
            return 0.0
        return float(np.quantile(recent, self.config.gate_quantile))

    def centre(self) -> NDArray[np.float32] | None:
        """The mean of the scope's vectors, once there are enough of them."""
        if len(self.index) < MIN_FOR_CENTRE or self.neural.config.dim is not None:
            return None
        return self.index.mean

    def observe(self, text: str, passages: Sequence[EncodedPassage], time: int) -> Observation:
        """Meet a text without writing it: its vector, surprise, and what it would write."""
        pooled = pool_passages(np.stack([passage.bare for passage in passages]))
        stems = {stem(word): word for word in words(text) if word not in STOP_WORDS}
        return self.neural.observe(pooled, self.state, self.surroundings(stems, time))

    def surroundings(self, stems: dict[str, str], time: int) -> Surroundings:
        """What the neural memory needs to know about a text beyond its vector.

        Args:
            stems: stem -> a word of the text that has it.
            time: of the text, in microseconds.
        """
        gap = self.config.session_gap_hours * 3600e6
        times = self.index.column("time")[-2:]
        recent: list[NDArray[np.float32]] = []
        for back, then in enumerate(reversed(times.tolist()), 1):
            if abs(time - then) > gap:
                break
            recent.insert(0, self.neural.embed(self.index.bare(-back)))
            time = then
        return Surroundings(self._information(stems), tuple(recent), self.centre())

    def _information(self, stems: dict[str, str]) -> dict[str, float]:
        """The surprisal of each stem in nats, by its use in the scope and in the language."""
        read = len(self.index) + PRIOR_STRENGTH
        found: dict[str, float] = {}
        for name, word in stems.items():
            seen = self.count(name)
            prior = PRIOR_STRENGTH / (self.encoder.word_rank(word) + 20)
            found[name] = max(-math.log((seen + prior) / read), 0.0)
        return found

    def count(self, name: str) -> int:
        """In how many passages of the scope a stem stands."""
        if self.scope_id is None:
            return 0
        name = fold(name)
        if name not in self._counts:
            self._counts[name] = self.store.document_count(self.scope_id, name)
        return self._counts[name]
