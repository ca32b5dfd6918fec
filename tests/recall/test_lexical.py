"""Lexical scores against the formulas, written out passage by passage."""

from itertools import pairwise

import numpy as np
import pytest

from titans.recall.search.index import ScopeIndex
from titans.recall.search.lexical import K1, WINDOW, B, idf, lexical_scores, make_layout

HOUR = 3_600_000_000


def index_of(times: list[int], lengths: list[int]) -> ScopeIndex:
    index = ScopeIndex(8)
    index.reserve(len(times))
    index._size = len(times)
    index.column("time")[:] = times
    index.column("num_terms")[:] = lengths
    return index


def expected(counts: np.ndarray, times: list[int], lengths: list[int]) -> np.ndarray:
    """`counts[term, passage]` -> own, wide, nearby of each passage."""
    size = len(times)
    session = np.cumsum([0, *(abs(b - a) > 6 * HOUR for a, b in pairwise(times))])
    joined = [
        [j for j in (i - 1, i, i + 1) if 0 <= j < size and session[j] == session[i]]
        for i in range(size)
    ]
    wide_lengths = [sum(lengths[j] for j in near) for near in joined]
    found = np.zeros((3, size))
    best = sum(idf(size, int((c > 0).sum())) for c in counts)
    for c in counts:
        near = [sum(c[j] for j in joined[i]) for i in range(size)]
        weight, wide_weight = idf(size, int((c > 0).sum())), idf(size, int(np.sign(near).sum()))
        for i in range(size):
            norm = K1 * (1 - B + B * lengths[i] / np.mean(lengths))
            wide_norm = K1 * (1 - B + B * wide_lengths[i] / np.mean(wide_lengths))
            found[0, i] += weight * c[i] / (c[i] + norm) / best
            found[1, i] += wide_weight * near[i] / (near[i] + wide_norm) / best
            inside = c[max(i - WINDOW, 0) : i + WINDOW + 1].any()
            found[2, i] += weight * inside / best
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 60, 300])
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_scores_are_those_of_the_formulas(size: int, share: float):
    rng = np.random.default_rng(size)
    times = np.cumsum(rng.choice([HOUR, 9 * HOUR], size, p=[0.8, 0.2])).tolist()
    lengths = rng.integers(1, 30, size).tolist()
    counts = rng.poisson(share, (3, size))
    counts[0, size // 2] = 2
    postings = [np.repeat(np.arange(size), c) for c in counts]
    layout = make_layout(index_of(times, lengths), 6.0)
    scores = lexical_scores(postings, layout)
    wanted = expected(counts, times, lengths)
    for got, want in zip((scores.own, scores.wide, scores.nearby), wanted, strict=True):
        assert np.allclose(got, want, atol=1e-6)


def test_a_query_without_known_words_scores_zero():
    layout = make_layout(index_of([0, 1, 2], [3, 3, 3]), 6.0)
    for postings in ([], [np.empty(0, np.int64)]):
        scores = lexical_scores(postings, layout)
        assert not scores.own.any() and not scores.wide.any() and not scores.nearby.any()
