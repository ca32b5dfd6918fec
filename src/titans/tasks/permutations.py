"""State tracking: compose permutations as they arrive, and name the product after each.

S3 is solvable, S5 is not: constant-depth models without a true recurrence cannot follow S5 at any
length. Element i of the group is token i + 1; token 0 is padding. Element 0 is the identity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Annotated

import numpy as np

from titans.settings import Count, Range
from titans.tasks.score import Score, Value, accuracy_score
from titans.tasks.task import (
    Cell,
    IntArray,
    Outcome,
    Subject,
    Task,
    config_errors,
    require_vocabulary,
)
from titans.tasks.tokens import TokenBatch, draw_examples


@dataclass(frozen=True, kw_only=True)
class PermutationGenerator:
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


@dataclass(frozen=True, kw_only=True)
class Permutations(Task):
    """Accuracy over all positions, and at the last one, where everything counts."""

    lengths: tuple[Count, ...] = (16, 32, 64, 128, 256)
    """Elements per example."""
    samples: Count = 200
    """Examples of each length."""
    degree: Annotated[int, Range(2, 6)] = 3
    """Points that are permuted: 3 (six elements), 5 (120 elements), or any from 2 to 6."""

    name = "permutations"
    example = "--model runs/state-tracking-lmm --degree 3 --lengths 8,16,32"

    def __post_init__(self) -> None:
        super().__post_init__()
        for length in self.lengths:
            self._generator(length)

    def details(self) -> list[dict[str, Value]]:
        """The group."""
        return [{"group": f"S{self.degree}"}]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """The product named after every element."""
        generator = self._generator(cell.length)
        require_vocabulary(subject, generator.vocab_size, self.name)
        batch = draw_examples(lambda rng: generator.batch(rng, 1), cell, seed, samples)
        right = subject.predict(batch.tokens).values == batch.labels
        return [{"accuracy": float(row.mean()), "last": float(row[-1])} for row in right]

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Both accuracies."""
        return [
            accuracy_score(
                [outcome[name] for outcome in outcomes],
                metric=metric,
                length=cell.length,
                detail=cell.detail,
            )
            for name, metric in (("accuracy", "accuracy"), ("last", "last_accuracy"))
        ]

    def _generator(self, length: int) -> PermutationGenerator:
        with config_errors(self.name):
            return PermutationGenerator(length=length, degree=self.degree)
