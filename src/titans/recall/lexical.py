"""BM25 over one scope, from the postings of the FTS5 index: of each passage, and of it in context.

Scores are divided by the most a passage could reach for the query, so they lie in [0, 1] and mean
the same for every query. Frequencies are those of the scope alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from titans.recall.index import ScopeIndex
from titans.recall.store import Store

K1, B = 1.2, 0.75
WINDOW = 5
"""Passages before and after in which the other words of a question may stand."""
COMMON = 0.2
"""Above `MANY` passages, terms in more than this share of them are left out beside rarer ones."""
MANY = 20_000


@dataclass(frozen=True)
class LexicalScores:
    """Three scores in [0, 1] per passage of the scope."""

    own: NDArray[np.float32]
    """BM25 of the passage."""
    wide: NDArray[np.float32]
    """BM25 of the passage joined with its neighbours."""
    nearby: NDArray[np.float32]
    """The share of the query's information that stands within `WINDOW` passages."""


def lexical_scores(
    store: Store,
    scope: int,
    index: ScopeIndex,
    terms: Sequence[str],
    linked: NDArray[np.bool_],
) -> LexicalScores:
    """Score every passage of a scope.

    Args:
        linked: per passage whether it follows the one before it in the same session.
    """
    size = len(index)
    own, wide, nearby = (np.zeros(size, np.float32) for _ in range(3))
    counts = _term_counts(store, scope, index, terms)
    best = 0.0
    lengths = index.column("num_terms")
    wide_lengths = add_neighbours(lengths, linked)
    for count in counts:
        present = count > 0
        weight = idf(size, int(present.sum()))
        best += weight
        own += weight * _saturate(count, lengths)
        near = add_neighbours(count, linked)
        wide += idf(size, int((near > 0).sum())) * _saturate(near, wide_lengths)
        nearby += weight * _dilate(present)
    if best:
        own /= best * (K1 + 1)
        wide /= best * (K1 + 1)
        nearby /= best
    return LexicalScores(own, wide, nearby)


def idf(documents: int, containing: int) -> float:
    """The information of a term, never negative (Lucene's form)."""
    return math.log(1 + (documents - containing + 0.5) / (containing + 0.5))


def add_neighbours(
    values: NDArray[np.float32], linked: NDArray[np.bool_], weight: float = 1.0
) -> NDArray[np.float32]:
    """Each value plus `weight` times those before and after it in the same session."""
    total = values.copy()
    if len(values) > 1:
        inside = linked[1:].astype(np.float32)
        total[1:] += weight * values[:-1] * inside
        total[:-1] += weight * values[1:] * inside
    return total


def _term_counts(
    store: Store, scope: int, index: ScopeIndex, terms: Sequence[str]
) -> list[NDArray[np.float32]]:
    """How often each distinct term stands in every passage; terms nobody used are zero."""
    size = len(index)
    found = [index.rows_of(store.postings(scope, term)) for term in dict.fromkeys(terms)]
    if size > MANY and any(len(rows) <= COMMON * size for rows in found):
        found = [rows for rows in found if len(rows) <= COMMON * size]
    return [np.bincount(rows, minlength=size).astype(np.float32) for rows in found]


def _saturate(count: NDArray[np.float32], lengths: NDArray[np.float32]) -> NDArray[np.float32]:
    mean = max(float(lengths.mean()), 1e-6) if len(lengths) else 1.0
    score = count * (K1 + 1) / (count + K1 * (1 - B + B * lengths / mean) + 1e-9)
    return score.astype(np.float32)


def _dilate(present: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Whether a term stands within `WINDOW` passages on either side."""
    total = np.concatenate([[0], np.cumsum(present)])
    rows = np.arange(len(present))
    begin = np.maximum(rows - WINDOW, 0)
    end = np.minimum(rows + WINDOW + 1, len(present))
    return (total[end] > total[begin]).astype(np.float32)
