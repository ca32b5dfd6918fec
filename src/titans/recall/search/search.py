"""From a query to ranked passages: choose candidates, compute features, fuse them.

Up to `EXACT_ROWS` passages every one is a candidate. Above, candidates are the nearest by vector
(exact cosines after a narrow first pass) and by words; measured in benchmarks/recall.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
from numpy.typing import NDArray

from titans.recall.neural.memory import Observation
from titans.recall.records import to_microseconds
from titans.recall.replica import Replica
from titans.recall.search.confidence import BEST as CONFIDENCE_BEST
from titans.recall.search.confidence import Words, load_confidence, signals
from titans.recall.search.features import (
    BASE,
    FEATURES,
    RARE_COUNT,
    Evidence,
    Query,
    feature_matrix,
    make_query,
    query_stems,
    window_matrix,
    window_rows,
)
from titans.recall.search.fusion import (
    ASKED_AGAIN_PENALTY,
    IMPORTANCE_WEIGHT,
    RECENCY_WEIGHT,
    REPLACED_PENALTY,
    Fusion,
    prior_shift,
)
from titans.recall.search.index import BARE, ScopeIndex
from titans.recall.search.lexical import idf, lexical_scores
from titans.recall.store import Filter
from titans.recall.text.acts import acts_of
from titans.recall.text.names import introduces
from titans.recall.text.passages import IS_OUTSIDE, encode_passages
from titans.recall.text.words import terms
from titans.recall.vectors import unit, widen

EXACT_ROWS = 1024
CANDIDATES = 256
"""Of each kind, above `EXACT_ROWS` passages."""
BEST = 64
"""Candidates whose surroundings are looked at word by word."""
AROUND = [FEATURES.index(name) for name in ("lexical_wide", "lexical_close", "lexical_nearby")]
"""Columns of the features that count the words of neighbours."""
MAX_INTRODUCTIONS = 32
"""A word in more passages than this is not looked up as a name that somebody gave."""
COMMON = 0.1
"""Above `MANY` passages, terms in more than this share of them are left out beside rarer ones."""
MANY = 20_000
ONLY_ASKS, SAME_QUESTION = 0.9, 0.7
"""The least features `idle`, and `bare` and `late`, of a question that was asked before."""
MONTH = 30 * 24 * 3600e6


@dataclass(frozen=True)
class Hits:
    """Ranked passages: rows of the index, best first, with all that led to their scores."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    features: NDArray[np.float32]
    """`[rows, features]`; no columns if the neural memory alone decided."""
    contributions: NDArray[np.float32]
    """Of each feature to the sum behind the score."""
    recency: NDArray[np.float32]
    importance: NDArray[np.float32]
    allowed: NDArray[np.bool_] | None = None
    """Per passage of the scope whether it may be returned; None if every one may."""
    signals: NDArray[np.float64] | None = None
    """What the confidence is made of; None if it cannot be told."""

    @property
    def confidence(self) -> float | None:
        """How likely it is that the question is answered at all."""
        return None if self.signals is None else load_confidence().of(self.signals)

    @classmethod
    def nothing(cls) -> "Hits":
        """No passage at all."""
        return cls.by_memory(np.empty(0, np.int64), np.empty(0, np.float32))

    @classmethod
    def by_memory(cls, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> "Hits":
        """Passages ranked by the neural memory alone."""
        empty = np.empty((len(rows), 0), np.float32)
        nothing = np.zeros(len(rows), np.float32)
        return cls(rows, scores, empty, empty, nothing, nothing)


@dataclass(frozen=True)
class Searcher:
    """One scope, open for searching; used inside a read transaction."""

    replica: Replica
    fusion: Fusion

    def search(
        self, question: str, wanted: Filter, today: date | None = None, best: int = BEST
    ) -> Hits:
        """Rank the passages of the records that are wanted.

        Args:
            today: what "yesterday" in the question is counted from.
            best: how many candidates are looked at with all that surrounds them.
        """
        replica = self.replica
        if not len(replica.index) or replica.scope_id is None:
            return Hits.nothing()
        allowed = allowed_rows(replica, wanted)
        if replica.config.retrieval == "memory":
            passages = encode_passages(replica.encoder, replica.config.pooling, None, question)
            return self.search_by_memory(replica.observe(question, passages[:1], 0), allowed)
        speakers = list(replica.index.speakers)
        query = make_query(
            *(replica.encoder, replica.config.pooling, question, speakers, self._holders),
            today or datetime.now(UTC).date(),
        )
        return self._fuse(query, allowed, best)

    def _holders(self, word: str) -> set[str] | None:
        """Who gave a word as their name; None if no passage holds it."""
        replica = self.replica
        assert replica.scope_id is not None
        rows = np.zeros(0, np.int64)
        for term in terms(word)[:1]:
            rows = np.unique(self.index.rows_of(replica.store.postings(replica.scope_id, term)))
        if not len(rows):
            return None
        seqs = np.unique(self.index.column("seq")[rows[:MAX_INTRODUCTIONS]])
        records = replica.records(seqs.tolist()).values()
        return {r.speaker for r in records if r.speaker is not None and introduces(r.text, word)}

    def search_observed(self, observed: Observation, wanted: Filter) -> Hits:
        """Rank the passages that are wanted by what the neural memory says to a text."""
        return self.search_by_memory(observed, allowed_rows(self.replica, wanted))

    def search_by_memory(self, observed: Observation, allowed: NDArray[np.bool_] | None) -> Hits:
        """The classic retrieval: cosine of o = y * M(y) with every stored vector s."""
        index, neural = self.replica.index, self.replica.neural
        o = neural.search_vector(observed.y, self.replica.state)
        cosine = neural.embed(widen(index.column("vectors")[:, BARE])) @ unit(o)
        rows = np.arange(len(index)) if allowed is None else np.flatnonzero(allowed)
        order = rows[np.argsort(-cosine[rows], kind="stable")]
        return Hits.by_memory(order, np.clip(cosine[order], 0, 1))

    @property
    def index(self) -> ScopeIndex:
        """The passages of the scope."""
        return self.replica.index

    def _fuse(self, query: Query, allowed: NDArray[np.bool_] | None, best: int) -> Hits:
        """Choose candidates, compute their features, weigh them.

        Args:
            allowed: per passage whether it may be returned.
            best: how many candidates are looked at with all that surrounds them.
        """
        postings = self._postings(query.terms)
        evidence = self._evidence(query, postings)
        rows = self._candidates(query, evidence, allowed)
        if not len(rows):
            return Hits.nothing()
        histories = self._histories(rows, allowed)
        latest = [history[-1] for history in histories]
        rows = np.union1d(rows, np.array(latest, np.int64))
        features = np.zeros((len(rows), len(FEATURES)), np.float32)
        features[:, : len(BASE)] = feature_matrix(
            self.index, query, evidence, rows, self.replica.token_vectors(rows)
        )
        contributions = self.fusion.first.contributions(features)
        logits = contributions.sum(1) + self.fusion.first.bias
        outside = query.is_outside | (self.index.column("flags")[rows] & IS_OUTSIDE > 0)
        if not query.is_outside:
            # What is said around a text in another language does not speak for it.
            features[np.ix_(outside, np.array(AROUND))] = 0
        contributions[outside] = self.fusion.words.contributions(features[outside])
        logits[outside] = contributions[outside].sum(1) + self.fusion.words.bias
        inside = np.flatnonzero(~outside)
        chosen = np.sort(inside[np.argsort(-logits[inside], kind="stable")[:best]])
        if len(chosen):
            needed = window_rows(rows[chosen], evidence.layout)
            features[chosen, len(BASE) :] = window_matrix(
                self.index,
                query,
                evidence,
                rows[chosen],
                needed,
                self.replica.token_vectors(needed),
            )
            contributions[chosen] = self.fusion.full.contributions(features[chosen])
            logits[chosen] = contributions[chosen].sum(1) + self.fusion.full.bias
            others = ~outside
            others[chosen] = False
            # What was not looked at closely stands behind what was.
            logits[others] = np.minimum(logits[others], logits[chosen].min())
        recency = self._recency(rows)
        if acts_of(query.text).asks >= ONLY_ASKS:
            logits -= ASKED_AGAIN_PENALTY * _asks_the_same(features)
        importance = self.index.column("importance")[rows]
        logits += RECENCY_WEIGHT * recency + IMPORTANCE_WEIGHT * importance
        logits += prior_shift(len(self.index))
        for history in histories:
            self._lead_by_the_latest(history, rows, logits, evidence.exact)
        scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
        order = np.argsort(-scores, kind="stable")
        return Hits(
            *(rows[order], scores[order], features[order], contributions[order]),
            *(recency[order], importance[order], allowed),
            None if query.is_outside else self._signals(rows, logits, features, order, postings),
        )

    def _signals(
        self,
        rows: NDArray[np.int64],
        logits: NDArray[np.float32],
        features: NDArray[np.float32],
        order: NDArray[np.int64],
        postings: Mapping[str, NDArray[np.int64]],
    ) -> NDArray[np.float64]:
        """What the confidence is made of, from the first records, each by its best passage."""
        groups = self.index.column("group")[rows[order]]
        best = order[np.sort(np.unique(groups, return_index=True)[1])[:CONFIDENCE_BEST]]
        size = len(self.index)
        words = Words(postings, {word: idf(size, self.replica.count(word)) for word in postings})
        return signals(logits[best], features[best[0]], words, rows[best])

    def _histories(
        self, rows: NDArray[np.int64], allowed: NDArray[np.bool_] | None
    ) -> list[NDArray[np.int64]]:
        """The rows that state each fact that was updated, oldest first, of those allowed."""
        found = self.index.histories(rows).values()
        if allowed is not None:
            found = [history[allowed[history]] for history in found]
        return [history for history in found if len(history) > 1]

    def _lead_by_the_latest(
        self,
        history: NDArray[np.int64],
        rows: NDArray[np.int64],
        logits: NDArray[np.float32],
        exact: NDArray[np.float32],
    ) -> None:
        """Give the latest statement of a fact the best score that any of them has, less to those
        before it: a question finds the wording that is nearest, and is answered by the latest.

        A question that holds a name or number of an earlier one asks for that one.
        """
        if exact[history].max() > exact[history[-1]]:
            return
        groups = self.index.column("group")
        stated = history[np.isin(history, rows)]
        places = np.searchsorted(rows, stated)
        is_latest = groups[stated] == groups[history[-1]]
        best = logits[places].max()
        now = places[is_latest]
        logits[now] += best - logits[now].max()
        before = places[~is_latest]
        logits[before] = np.minimum(logits[before], best) - REPLACED_PENALTY

    def _evidence(self, query: Query, postings: Mapping[str, NDArray[np.int64]]) -> Evidence:
        replica, size = self.replica, len(self.index)
        assert replica.scope_id is not None
        layout = replica.layout()
        return Evidence(
            lexical=lexical_scores(list(postings.values()), layout),
            idf={stem: idf(size, replica.count(stem)) for stem in query_stems(query)},
            layout=layout,
            exact=self._exact([rows for term, rows in postings.items() if term in query.rare]),
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
        length = float(np.linalg.norm(asked))
        near = self.index.nearest(asked / np.float32(length or 1.0), CANDIDATES, allowed)[0]
        lexical = evidence.lexical
        by_words = [
            _top(lexical.own, CANDIDATES, allowed),
            _top(lexical.wide + lexical.nearby, CANDIDATES, allowed),
            _top(evidence.exact, CANDIDATES, allowed),
        ]
        return np.unique(np.concatenate([near, *by_words]))

    def _recency(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """1 for the newest of the candidates, 1/2 a month before it."""
        time = self.index.column("time")
        age = np.maximum(time[rows].max() - time[rows], 0) / MONTH
        return (1 / (1 + age)).astype(np.float32)


def _asks_the_same(features: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Per candidate whether it tells nothing, and is like the query as a whole and by word."""
    idle, bare, late = (features[:, FEATURES.index(name)] for name in ("idle", "bare", "late"))
    return (idle >= ONLY_ASKS) & (np.minimum(bare, late) >= SAME_QUESTION)


def allowed_rows(replica: Replica, wanted: Filter) -> NDArray[np.bool_] | None:
    """Per passage whether its record is wanted and has not expired; None if that holds for all."""
    index = replica.index
    expired = index.expired(to_microseconds(datetime.now(UTC)))
    if wanted == Filter() and expired is None:
        return None
    time = index.column("time")
    allowed = np.ones(len(index), np.bool_) if expired is None else ~expired
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
