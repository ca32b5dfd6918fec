"""Tasks made of tokens: batches with labels, how they are drawn, and how answers are scored.

`labels[b, t]` is what the model must answer once it has read `tokens[b, :t + 1]`, or `IGNORED`.
Nothing is shifted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from titans.tasks.task import Cell, IntArray, Outcome, Subject

IGNORED = -100
"""Label of a position that is not scored (the default `ignore_index` of cross-entropy)."""


@dataclass(frozen=True)
class TokenBatch:
    """Tokens and what to answer at each of them, both [batch, time]."""

    tokens: IntArray
    labels: IntArray

    def __post_init__(self) -> None:
        if self.tokens.shape != self.labels.shape or self.tokens.ndim != 2:
            raise ValueError(
                "tokens and labels must be of one shape [batch, time]; "
                f"got {self.tokens.shape} and {self.labels.shape}"
            )


class TokenGenerator(Protocol):
    """Makes any number of examples, each a function of the random generator's state."""

    @property
    def vocab_size(self) -> int:
        """Tokens are 0 .. vocab_size - 1."""
        ...

    def batch(self, rng: np.random.Generator, size: int) -> TokenBatch:
        """`size` fresh examples."""
        ...


def draw_distinct(rng: np.random.Generator, size: int, low: int, high: int, count: int) -> IntArray:
    """`count` distinct integers of low .. high - 1 per row, in random order: [size, count]."""
    if count > high - low:
        raise ValueError(
            f"cannot draw {count} distinct tokens from {high - low} ({low}..{high - 1})"
        )
    return low + smallest_in_order(rng.random((size, high - low)), count)


def smallest_in_order(scores: NDArray[np.float64], count: int) -> IntArray:
    """Columns of the `count` smallest scores of each row, smallest first: [rows, count]."""
    if count < scores.shape[1]:
        chosen = np.argpartition(scores, count - 1, axis=1)[:, :count]
    else:
        chosen = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    order = np.argsort(np.take_along_axis(scores, chosen, axis=1), axis=1)
    return np.take_along_axis(chosen, order, axis=1).astype(np.int64)


def draw_examples(
    draw: Callable[[np.random.Generator], TokenBatch], cell: Cell, seed: int, samples: Sequence[int]
) -> TokenBatch:
    """One example per sample, each from its own generator."""
    drawn = [draw(cell.rng(seed, sample)) for sample in samples]
    return TokenBatch(
        np.concatenate([batch.tokens for batch in drawn]),
        np.concatenate([batch.labels for batch in drawn]),
    )


def answered_share(subject: Subject, batch: TokenBatch) -> list[Outcome]:
    """Per example, the share of its scored positions that the model answers rightly."""
    reading = subject.predict(batch.tokens)
    asked = batch.labels != IGNORED
    right = (reading.values == batch.labels) & asked
    shares = right.sum(axis=1) / asked.sum(axis=1)
    return [{"accuracy": float(share), "state_bytes": reading.state_bytes} for share in shares]
