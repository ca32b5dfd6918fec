"""A bag of words as a vector of fixed width: the sum of one random unit direction per word.

Squared distances between two such vectors count the words in which two texts differ, each with its
weight. This is what makes the memory's loss an amount of unexpected content.
"""

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def sketch_words(weights: dict[str, float], dim: int) -> NDArray[np.float32]:
    """The sum of sqrt(weight) times the direction of each word."""
    total = np.zeros(dim, dtype=np.float32)
    for word in sorted(weights):
        total += np.float32(np.sqrt(weights[word])) * word_direction(word, dim)
    return total


@lru_cache(maxsize=20_000)
def word_direction(word: str, dim: int) -> NDArray[np.float32]:
    """A direction drawn from the word itself: the same in every process and version."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    drawn = np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(dim)
    return (drawn / np.sqrt(dim)).astype(np.float32)
