"""BM25 over one scope, from the postings of the FTS5 index: of each passage, and of it in context.

Scores are divided by the most a passage could reach for the query, so they lie in [0, 1] and mean
the same for every query. Frequencies are those of the scope alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from titans.recall.search.index import ScopeIndex

K1, B = 1.2, 0.75
CLOSE, WINDOW = 2, 5
"""Passages before and after in which the other words of a question may stand."""


@dataclass(frozen=True)
class Layout:
    """How the passages of a scope lie, whatever the query: made once for each size of the index."""

    size: int
    """Passages in the scope."""
    linked: NDArray[np.bool_]
    """Per passage whether it follows the one before it in the same session."""
    own_norm: NDArray[np.float32]
    """BM25's length normalisation of each passage, K1 (1 - B + B length / mean length)."""
    wide_norm: NDArray[np.float32]
    """The same of each passage joined with its neighbours."""


@dataclass(frozen=True)
class LexicalScores:
    """Scores in [0, 1] per passage of the scope."""

    own: NDArray[np.float32]
    """BM25 of the passage."""
    wide: NDArray[np.float32]
    """BM25 of the passage joined with its neighbours."""
    close: NDArray[np.float32]
    """The share of the query's information that stands within `CLOSE` passages."""
    nearby: NDArray[np.float32]
    """The same within `WINDOW` passages."""


def make_layout(index: ScopeIndex, gap_hours: float) -> Layout:
    """The layout of a scope whose sessions end after `gap_hours` of silence."""
    time, lengths = index.column("time"), index.column("num_terms")
    linked = np.zeros(len(time), np.bool_)
    linked[1:] = np.abs(np.diff(time)) <= gap_hours * 3600e6
    wide = add_neighbours(lengths, linked)
    return Layout(len(index), linked, _length_norm(lengths), _length_norm(wide))


def lexical_scores(postings: Sequence[NDArray[np.int64]], layout: Layout) -> LexicalScores:
    """Score every passage of a scope.

    Args:
        postings: for each term the rows in which it stands, a row as often as it stands in it.
    """
    touched = np.zeros(layout.size, np.bool_)
    for rows in postings:
        touched[rows] = True
    # Passages further from every term than the window have a score of zero and are left out. Twice
    # the window: what is left out then lies beyond the reach of the terms on either side.
    touched = _dilate(touched, 2 * WINDOW)
    kept = np.flatnonzero(touched)
    place = np.cumsum(touched) - 1
    scores = np.zeros((4, layout.size), np.float32)
    scores[:, kept] = _scores([place[rows] for rows in postings], _crop(layout, kept))
    return LexicalScores(*scores)


def _crop(layout: Layout, kept: NDArray[np.int64]) -> Layout:
    """The layout of some rows; what stood before a gap is not linked to what stands behind it."""
    linked = layout.linked[kept]
    linked[1:] &= np.diff(kept) == 1
    return Layout(layout.size, linked, layout.own_norm[kept], layout.wide_norm[kept])


def _scores(postings: Sequence[NDArray[np.int64]], layout: Layout) -> NDArray[np.float32]:
    """The scores of `LexicalScores` in its order."""
    own, wide, close, nearby = scores = np.zeros((4, len(layout.linked)), np.float32)
    best = 0.0
    for rows in postings:
        count = np.bincount(rows, minlength=len(own)).astype(np.float32)
        present = count > 0
        weight = idf(layout.size, int(np.count_nonzero(present)))
        best += weight
        own += _saturate(count, layout.own_norm, weight)
        near = add_neighbours(count, layout.linked)
        wide += _saturate(near, layout.wide_norm, idf(layout.size, int(np.count_nonzero(near))))
        closely = _dilate(present, CLOSE)
        close += np.float32(weight) * closely
        nearby += np.float32(weight) * _dilate(closely, WINDOW - CLOSE)
    if best:
        own /= best * (K1 + 1)
        wide /= best * (K1 + 1)
        close /= best
        nearby /= best
    return scores


def idf(documents: int, containing: int) -> float:
    """The information of a term, never negative (Lucene's form)."""
    return math.log(1 + (documents - containing + 0.5) / (containing + 0.5))


def add_neighbours(values: NDArray[np.float32], linked: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Each value plus those before and after it in the same session."""
    total = values.copy()
    if len(values) > 1:
        inside = linked[1:]
        total[1:] += values[:-1] * inside
        total[:-1] += values[1:] * inside
    return total


def _length_norm(lengths: NDArray[np.float32]) -> NDArray[np.float32]:
    mean = max(float(lengths.mean()), 1e-6) if len(lengths) else 1.0
    norm = K1 * (1 - B) + (K1 * B / mean) * lengths
    return norm.astype(np.float32)


def _saturate(
    count: NDArray[np.float32], norm: NDArray[np.float32], weight: float
) -> NDArray[np.float32]:
    score = count / (count + norm)
    score *= weight * (K1 + 1)
    return score.astype(np.float32, copy=False)


def _dilate(present: NDArray[np.bool_], window: int) -> NDArray[np.bool_]:
    """Whether there is one within `window` rows on either side."""
    found, reach = present, 0
    while reach < window:
        step = min(reach + 1, window - reach)
        wider = found.copy()
        wider[step:] |= found[:-step]
        wider[:-step] |= found[step:]
        found, reach = wider, reach + step
    return found
