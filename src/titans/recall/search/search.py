"""From a query to ranked passages: choose candidates, compute features, fuse them.

Up to `EXACT_ROWS` passages every one is a candidate. Above, candidates are the nearest by vector
(exact cosines after a narrow first pass), by words and by what the neural memory answers; measured
in benchmarks/recall.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from titans.recall.neural.memory import CONTEXT, Observation
from titans.recall.replica import Replica
from titans.recall.search.features import (
    RARE_COUNT,
    Evidence,
    Query,
    feature_matrix,
    make_query,
    query_stems,
)
from titans.recall.search.fusion import RECENCY_WEIGHT, REPLACED_PENALTY, FusionWeights, prior_shift
from titans.recall.search.index import BARE, ScopeIndex
from titans.recall.search.lexical import idf, lexical_scores
from titans.recall.store import Filter
from titans.recall.text.passages import encode_passages

EXACT_ROWS = 1024
CANDIDATES = 256
"""Of each kind, above `EXACT_ROWS` passages."""
COMMON = 0.1
"""Above `MANY` passages, terms in more than this share of them are left out beside rarer ones."""
MANY = 20_000
MONTH = 30 * 24 * 3600e6


@dataclass(frozen=True)
class Hits:
    """Ranked passages: rows of the index, best first, with all that led to their scores."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    features: NDArray[np.float32]
    """`[rows, features]`; no columns if the neural memory alone decided."""
    recency: NDArray[np.float32]

    @classmethod
    def nothing(cls) -> "Hits":
        """No passage at all."""
        return cls.by_memory(np.empty(0, np.int64), np.empty(0, np.float32))

    @classmethod
    def by_memory(cls, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> "Hits":
        """Passages ranked by the neural memory alone."""
        empty = np.empty((len(rows), 0), np.float32)
        return cls(rows, scores, empty, np.zeros(len(rows), np.float32))


@dataclass(frozen=True)
class Searcher:
    """One scope, open for searching; used inside a read transaction."""

    replica: Replica
    fusion: FusionWeights

    def search(self, question: str, wanted: Filter) -> Hits:
        """Rank the passages of the records that are wanted."""
        replica = self.replica
        if not len(replica.index) or replica.scope_id is None:
            return Hits.nothing()
        allowed = allowed_rows(replica, wanted)
        if replica.config.retrieval == "memory":
            passages = encode_passages(replica.encoder, replica.config.pooling, None, question)
            return self.search_by_memory(replica.observe(question, passages[:1], 0), allowed)
        speakers = list(replica.index.speakers)
        query = make_query(replica.encoder, replica.config.pooling, question, speakers)
        return self._fuse(query, self._memory_answer(query.first_person), allowed)

    def search_observed(self, observed: Observation, wanted: Filter) -> Hits:
        """Rank the passages that are wanted by what the neural memory says to a text."""
        return self.search_by_memory(observed, allowed_rows(self.replica, wanted))

    def search_by_memory(self, observed: Observation, allowed: NDArray[np.bool_] | None) -> Hits:
        """The classic retrieval: cosine of o = y * M(y) with every stored vector s."""
        index, neural = self.replica.index, self.replica.neural
        o = neural.search_vector(observed.y, self.replica.state)
        bare = torch.from_numpy(index.column("vectors")[:, BARE]).float()
        with torch.no_grad():
            stored = neural.turn.embed(bare)
            cosine = F.cosine_similarity(stored, o[None], dim=-1).numpy()
        rows = np.arange(len(index)) if allowed is None else np.flatnonzero(allowed)
        order = rows[np.argsort(-cosine[rows], kind="stable")]
        return Hits.by_memory(order, np.clip(cosine[order], 0, 1))

    def _memory_answer(self, question: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """What the context head answers to a question, of unit length; None if it knows nothing."""
        replica = self.replica
        if not replica.config.use_memory or replica.config.neural.roles != "associative":
            return None
        read = replica.neural.read(torch.from_numpy(question), replica.state, replica.centre())
        found = read[CONTEXT]
        size = float(found.norm())
        return (found / size).numpy() if size > 1e-6 else None

    @property
    def index(self) -> ScopeIndex:
        """The passages of the scope."""
        return self.replica.index

    def _fuse(
        self, query: Query, memory: NDArray[np.float32] | None, allowed: NDArray[np.bool_] | None
    ) -> Hits:
        """Choose candidates, compute their features, weigh them.

        Args:
            memory: what the neural memory answers to the query, of unit length; None without it.
            allowed: per passage whether it may be returned.
        """
        evidence = self._evidence(query, memory)
        rows = self._candidates(query, evidence, allowed)
        if not len(rows):
            return Hits.nothing()
        passages = [int(p) for p in self.index.column("passage")[rows]]
        assert self.replica.scope_id is not None
        tokens = self.replica.store.token_vectors(self.replica.scope_id, passages)
        features = feature_matrix(
            self.index, query, evidence, rows, [tokens[passage] for passage in passages]
        )
        recency = self._recency(rows)
        logits = self.fusion.logits(features) + RECENCY_WEIGHT * recency
        logits += np.float32(prior_shift(len(self.index)))
        logits -= REPLACED_PENALTY * self.index.column("replaced")[rows]
        scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
        order = np.argsort(-scores, kind="stable")
        return Hits(rows[order], scores[order], features[order], recency[order])

    def _evidence(self, query: Query, memory: NDArray[np.float32] | None) -> Evidence:
        replica, size = self.replica, len(self.index)
        assert replica.scope_id is not None
        layout = replica.layout()
        postings = self._postings(query.terms)
        return Evidence(
            lexical=lexical_scores(list(postings.values()), layout),
            idf={stem: idf(size, replica.count(stem)) for stem in query_stems(query)},
            layout=layout,
            exact=self._exact([rows for term, rows in postings.items() if term in query.rare]),
            memory=memory,
            centre=self.index.mean,
        )

    def _postings(self, terms: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """The rows in which each distinct term stands, a row as often as the term stands in it."""
        replica, size = self.replica, len(self.index)
        assert replica.scope_id is not None
        distinct = list(dict.fromkeys(terms))
        if size > MANY:
            # Reading where a common word stands takes longest and says least.
            rare = [term for term in distinct if replica.count(term) <= COMMON * size]
            distinct = rare or distinct
        return {
            t: self.index.rows_of(replica.store.postings(replica.scope_id, t)) for t in distinct
        }

    def _exact(self, postings: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Per passage the share of some words that it holds, those left out that many hold."""
        found = np.zeros(len(self.index), np.float32)
        holders = [rows for rows in map(np.unique, postings) if 0 < len(rows) <= RARE_COUNT]
        for rows in holders:
            found[rows] += np.float32(1 / len(holders))
        return found

    def _candidates(
        self, query: Query, evidence: Evidence, allowed: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        size = len(self.index)
        everything = np.arange(size) if allowed is None else np.flatnonzero(allowed)
        if len(everything) <= EXACT_ROWS:
            return everything
        # Each pass over the vectors takes milliseconds: both forms of the question share one.
        asked = query.vector + query.first_person
        directions = [(asked / np.linalg.norm(asked)).astype(np.float32)]
        if evidence.memory is not None:
            directions.append(evidence.memory)
        near = [self.index.nearest(d, CANDIDATES, allowed)[0] for d in directions]
        lexical = evidence.lexical
        by_words = [
            _top(lexical.own, CANDIDATES, allowed),
            _top(lexical.wide + lexical.nearby, CANDIDATES, allowed),
            _top(evidence.exact, CANDIDATES, allowed),
        ]
        return np.unique(np.concatenate([*near, *by_words]))

    def _recency(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """1 for the newest record of the scope, 1/2 a month before it."""
        time = self.index.column("time")
        age = (time.max() - time[rows]) / MONTH
        return (1 / (1 + age)).astype(np.float32)


def allowed_rows(replica: Replica, wanted: Filter) -> NDArray[np.bool_] | None:
    """Per passage whether its record is wanted; None if every one is."""
    if wanted == Filter():
        return None
    index = replica.index
    time = index.column("time")
    allowed = np.ones(len(index), np.bool_)
    if wanted.before is not None:
        allowed &= time < wanted.before
    if wanted.after is not None:
        allowed &= time >= wanted.after
    if wanted.speaker is not None:
        allowed &= index.column("speaker") == index.speakers.get(wanted.speaker, -2)
    if wanted.metadata and replica.scope_id is not None:
        # Only the store has the metadata.
        allowed &= np.isin(index.column("seq"), replica.store.find_seqs(replica.scope_id, wanted))
    return allowed


def _top(
    scores: NDArray[np.float32], count: int, allowed: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """The rows of the highest scores above zero."""
    if allowed is not None:
        scores = np.where(allowed, scores, 0)
    rows = np.flatnonzero(scores)
    if len(rows) <= count:
        return rows
    return rows[np.argpartition(scores[rows], len(rows) - count)[-count:]]
