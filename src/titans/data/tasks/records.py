"""What a task hands out: batches of tokens with labels, and samples of text with an answer.

`labels[b, t]` is what the model must answer once it has read `tokens[b, :t + 1]`, or `IGNORE`.
Nothing is shifted. A model that shifts its labels by itself (Hugging Face causal models do:
logits at t are compared with labels at t + 1) wants `TokenBatch.shifted()`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IGNORE = -100
"""Label of a position that is not scored (the default `ignore_index` of cross-entropy)."""

IntArray = NDArray[np.int64]


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

    def shifted(self, filler: int = 0) -> "TokenBatch":
        """The same questions for a model that compares logits at t with labels at t + 1.

        Where the last token is scored, one `filler` token is appended to hold its label.
        """
        tokens, labels = self.tokens, self.labels
        if (labels[:, -1] != IGNORE).any():
            tokens = np.pad(tokens, ((0, 0), (0, 1)), constant_values=filler)
            labels = np.pad(labels, ((0, 0), (0, 1)), constant_values=IGNORE)
        moved = np.full_like(labels, IGNORE)
        moved[:, 1:] = labels[:, :-1]
        return TokenBatch(tokens, moved)


class TokenTask(Protocol):
    """A task made of tokens: any number of examples, each a function of the generator's state."""

    @property
    def vocab_size(self) -> int:
        """Tokens are 0 .. vocab_size - 1."""
        ...

    def batch(self, rng: np.random.Generator, size: int) -> TokenBatch:
        """`size` fresh examples."""
        ...


@dataclass(frozen=True, kw_only=True)
class TextSample:
    """A prompt and the strings that a right answer contains."""

    prompt: str
    """Everything the model reads, the beginning of the answer included where there is one."""
    answers: tuple[str, ...]
    """Strings that count."""
    depth: float
    """Where the needle lies: 0 is the start of the context, 1 its end."""
    num_tokens: int
    """Length of the sample as the task counts it, in the tokens of the given encoder."""


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
