"""State tracking: compose permutations as they arrive, and name the product after each.

S3 is solvable, S5 is not: constant-depth models without a true recurrence cannot follow S5 at any
length. Element i of the group is token i + 1; token 0 is padding. Element 0 is the identity.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np

from titans.data.tasks.records import IntArray, TokenBatch


@dataclass(frozen=True, kw_only=True)
class PermutationTask:
    """Uniform elements of the symmetric group on `degree` points, and their running product."""

    length: int = 32
    """Elements per example."""
    degree: int = 3
    """3 (six elements) or 5 (120 elements); any degree up to 6 works."""

    def __post_init__(self) -> None:
        if not 2 <= self.degree <= 6:
            raise ValueError(f"degree must be 2..6, got {self.degree}")
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")

    @property
    def vocab_size(self) -> int:
        """Padding and the elements."""
        return len(elements(self.degree)) + 1

    def batch(self, rng: np.random.Generator, size: int) -> TokenBatch:
        """`size` examples; the label at t is p_t after ... after p_1 (p_1 acts first)."""
        table = composition_table(self.degree)
        steps = rng.integers(0, len(table), (size, self.length))
        products = np.empty_like(steps)
        products[:, 0] = steps[:, 0]
        for t in range(1, self.length):
            products[:, t] = table[steps[:, t], products[:, t - 1]]
        return TokenBatch(steps + 1, products + 1)


@lru_cache
def elements(degree: int) -> tuple[tuple[int, ...], ...]:
    """The permutations of 0 .. degree - 1 in lexicographic order, the identity first."""
    return tuple(permutations(range(degree)))


@lru_cache
def composition_table(degree: int) -> IntArray:
    """`table[a, b]` is the index of a after b: x -> a(b(x))."""
    index = {element: number for number, element in enumerate(elements(degree))}
    rows = [
        [index[tuple(a[point] for point in b)] for b in elements(degree)] for a in elements(degree)
    ]
    return np.array(rows, dtype=np.int64)
