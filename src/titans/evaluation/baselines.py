"""Plain search, to measure the text memory against: BM25, and cosines of an encoder's vectors.

Both see a text with its speaker's name before it, and nothing of what stands around it.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from titans.recall.encoder import Encoder
from titans.recall.search.lexical import K1, B, idf
from titans.recall.text.words import terms

Baseline = Literal["bm25", "dense"]


class Bm25:
    """Okapi BM25 over stems without stop words."""

    def __init__(self, texts: Sequence[str]) -> None:
        documents = [terms(text) for text in texts]
        lengths = np.array([len(document) for document in documents], np.float64)
        self._norm = K1 * (1 - B + B * lengths / max(float(lengths.mean()), 1e-9))
        self._counts: dict[str, NDArray[np.float64]] = {}
        for number, document in enumerate(documents):
            for term in document:
                self._counts.setdefault(term, np.zeros(len(texts)))[number] += 1

    def scores(self, question: str) -> NDArray[np.float64]:
        """A score for each text."""
        total = np.zeros(len(self._norm))
        for term in set(terms(question)):
            if (count := self._counts.get(term)) is not None:
                weight = idf(len(count), int(np.count_nonzero(count)))
                total += weight * count * (K1 + 1) / (count + self._norm)
        return total


class Dense:
    """The cosine of a question's vector with that of each text."""

    def __init__(self, texts: Sequence[str], encoder: Encoder) -> None:
        self._encoder = encoder
        self._vectors = np.stack([self._vector(text) for text in texts])

    def _vector(self, text: str) -> NDArray[np.float32]:
        return self._encoder.encode([text])[0].pool("mean")

    def scores(self, question: str) -> NDArray[np.float64]:
        """A score for each text."""
        return (self._vectors @ self._vector(question)).astype(np.float64)


def with_speaker(speaker: str | None, text: str) -> str:
    """A text as a baseline sees it."""
    return f"{speaker}: {text}" if speaker else text


def load_baseline(kind: Baseline, texts: Sequence[str], encoder: Encoder) -> Bm25 | Dense:
    """A baseline over some texts."""
    return Bm25(texts) if kind == "bm25" else Dense(texts, encoder)
