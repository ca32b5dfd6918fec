"""Needles of tokens: (marker, key, value) hidden in noise, asked for at the end.

    noise .. MARK k1 v1 .. noise .. MARK k2 v2 .. noise  ASK k2 v2 ASK k1 v1
                                                             ^v2      ^v1     labels

The smallest task that has the shape of a needle in a haystack: usable at vocabularies of a few
dozen tokens and, since the noise can be any stream of tokens, inside real text as well.
"""

from dataclasses import dataclass

import numpy as np

from titans.data.tasks.records import IGNORE, IntArray, TokenBatch, draw_distinct

MARK = 1
"""Stands before a needle."""
ASK = 2
"""Stands before a question."""
FIRST_KEY = 3
"""Keys start here, values follow them, noise tokens follow the values; 0 is padding."""


@dataclass(frozen=True, kw_only=True)
class NeedleTask:
    """Sequences of exactly `length` tokens with `num_needles` needles, all of them asked."""

    length: int = 256
    """Tokens per example, questions and answers included."""
    num_needles: int = 4
    """Needles per example, with distinct keys."""
    num_keys: int = 32
    """Size of the key vocabulary."""
    num_values: int = 32
    """Size of the value vocabulary; chance level is its inverse."""
    num_noise: int = 64
    """Tokens that occur in the noise only."""
    distractors: bool = True
    """Let keys and values occur in the noise too, so that only the marker tells a needle."""

    def __post_init__(self) -> None:
        if min(self.num_needles, self.num_keys, self.num_values) < 1 or self.num_noise < 0:
            raise ValueError("num_needles, num_keys, num_values must be at least 1, num_noise 0")
        if self.num_noise == 0 and not self.distractors:
            raise ValueError("num_noise=0 leaves nothing to make noise of; set distractors=True")
        if self.num_needles > self.num_keys:
            raise ValueError(
                f"num_needles ({self.num_needles}) must not exceed num_keys ({self.num_keys})"
            )
        if self.length < 6 * self.num_needles:
            raise ValueError(
                f"{self.num_needles} needles and their questions need a length of at least "
                f"{6 * self.num_needles}, got {self.length}"
            )

    @property
    def vocab_size(self) -> int:
        """Padding, the two marks, keys, values, noise."""
        return self.first_noise + self.num_noise

    @property
    def first_value(self) -> int:
        """The lowest value token."""
        return FIRST_KEY + self.num_keys

    @property
    def first_noise(self) -> int:
        """The lowest token that is noise only."""
        return self.first_value + self.num_values

    @property
    def context_length(self) -> int:
        """Tokens before the first question."""
        return self.length - 3 * self.num_needles

    def batch(self, rng: np.random.Generator, size: int) -> TokenBatch:
        """`size` examples with needles at uniform places, no two of them overlapping."""
        starts = self._draw_starts(rng, size)
        return self._assemble(rng, self._noise(rng, size), starts)

    def at_depth(self, rng: np.random.Generator, size: int, depth: float) -> TokenBatch:
        """`size` examples whose needles start at `depth` (0 first place, 1 last), side by side."""
        if not 0 <= depth <= 1:
            raise ValueError(f"depth must be within 0..1, got {depth}")
        last = self.context_length - 3 * self.num_needles
        first = round(depth * last)
        starts = np.broadcast_to(first + 3 * np.arange(self.num_needles), (size, self.num_needles))
        return self._assemble(rng, self._noise(rng, size), starts.astype(np.int64))

    def _noise(self, rng: np.random.Generator, size: int) -> IntArray:
        low = FIRST_KEY if self.distractors else self.first_noise
        return rng.integers(low, self.vocab_size, (size, self.context_length))

    def _draw_starts(self, rng: np.random.Generator, size: int) -> IntArray:
        # Distinct places in the context as it would be if each needle were one token long,
        # then every needle moves by the two tokens of each needle before it.
        slots = self.context_length - 2 * self.num_needles
        places = np.sort(draw_distinct(rng, size, 0, slots, self.num_needles), axis=1)
        return places + 2 * np.arange(self.num_needles)

    def _assemble(self, rng: np.random.Generator, noise: IntArray, starts: IntArray) -> TokenBatch:
        size = len(noise)
        keys = draw_distinct(rng, size, FIRST_KEY, self.first_value, self.num_needles)
        values = rng.integers(self.first_value, self.first_noise, keys.shape)
        for offset, part in enumerate((np.full_like(keys, MARK), keys, values)):
            np.put_along_axis(noise, starts + offset, part, axis=1)
        order = draw_distinct(rng, size, 0, self.num_needles, self.num_needles)
        asked = np.take_along_axis(keys, order, axis=1)
        answers = np.take_along_axis(values, order, axis=1)
        questions = np.stack([np.full_like(asked, ASK), asked, answers], axis=2)
        tokens = np.concatenate([noise, questions.reshape(size, -1)], axis=1)
        labels = np.full_like(tokens, IGNORE)
        labels[:, self.context_length + 1 :: 3] = answers
        return TokenBatch(tokens, labels)
