"""Multi-query associative recall (MQAR, Zoology) and its variant with reassigned keys.

    k1 v1 k2 v2 ... kK vK  filler k2 filler filler k1 ...
                                  v2               v1        labels, at the query itself

Keys are tokens 1 .. V/2 - 1, values V/2 .. V - 1, token 0 is filler. Queries sit at even offsets
behind the pairs, near ones far more likely than distant ones (a power law).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from titans.errors import ConfigError
from titans.settings import Count
from titans.tasks.task import (
    Cell,
    IntArray,
    Outcome,
    Subject,
    Task,
    batch_for,
    config_errors,
    require_vocabulary,
)
from titans.tasks.tokens import (
    IGNORED,
    TokenBatch,
    answered_share,
    draw_distinct,
    draw_examples,
    smallest_in_order,
)


@dataclass(frozen=True, kw_only=True)
class MqarGenerator:
    """One segment of MQAR: one length, one number of pairs."""

    length: int = 64
    """Tokens per example, even."""
    num_pairs: int = 4
    """Distinct keys per example; each is asked once."""
    num_updates: int = 0
    """Keys that get a second value behind the first pairs; the last value counts."""
    vocab_size: int = 8_192
    """Half of it keys, half values."""
    power: float = 0.01
    """Exponent a of the query positions: P(slot i) ~ i^(a - 1). 1 is uniform."""
    random_filler: bool = True
    """Fill the gaps with random tokens (setting B) or with token 0 (setting A)."""

    def __post_init__(self) -> None:
        if self.length % 2:
            raise ValueError(f"MQAR length must be even, got {self.length}")
        if self.vocab_size <= self.length:
            raise ValueError(
                f"MQAR vocab_size ({self.vocab_size}) must be above the length ({self.length})"
            )
        if not 0 <= self.num_updates <= self.num_pairs:
            raise ValueError(
                f"MQAR num_updates must be 0..num_pairs ({self.num_pairs}), got {self.num_updates}"
            )
        needed = 4 * self.num_pairs + 2 * self.num_updates
        if self.num_pairs < 1 or self.length < needed:
            raise ValueError(
                f"MQAR with {self.num_pairs} pairs and {self.num_updates} updates "
                f"needs a length of at least {max(needed, 4)}, got {self.length}"
            )

    def batch(self, rng: np.random.Generator, size: int) -> TokenBatch:
        """`size` examples; accuracy is the mean over an example's queries, then over examples."""
        half = self.vocab_size // 2
        keys = draw_distinct(rng, size, 1, half, self.num_pairs)
        values = draw_distinct(rng, size, half, self.vocab_size, self.num_pairs)
        pairs = [_interleave(keys, values)]
        if self.num_updates:
            chosen = draw_distinct(rng, size, 0, self.num_pairs, self.num_updates)
            renewed = self._other_values(rng, np.take_along_axis(values, chosen, axis=1))
            pairs.append(_interleave(np.take_along_axis(keys, chosen, axis=1), renewed))
            values = values.copy()
            np.put_along_axis(values, chosen, renewed, axis=1)
        context = np.concatenate(pairs, axis=1)

        tokens = np.zeros((size, self.length), dtype=np.int64)
        tokens[:, : context.shape[1]] = context
        positions = context.shape[1] + 2 * self._draw_slots(rng, size, context.shape[1])
        np.put_along_axis(tokens, positions, keys, axis=1)
        labels = np.full_like(tokens, IGNORED)
        np.put_along_axis(labels, positions, values, axis=1)
        if self.random_filler:
            filler = rng.integers(0, self.vocab_size, tokens.shape)
            tokens = np.where(tokens == 0, filler, tokens)
        return TokenBatch(tokens, labels)

    def slot_probabilities(self) -> np.ndarray:
        """Chance of each query slot (pairs of positions behind the context) to be drawn first."""
        space = (self.length - 2 * (self.num_pairs + self.num_updates)) // 2
        weights = np.arange(1, space + 1, dtype=np.float64) ** (self.power - 1)
        return weights / weights.sum()

    def _draw_slots(self, rng: np.random.Generator, size: int, context: int) -> IntArray:
        # Weighted drawing without replacement, one by one, is the order in which exponential
        # clocks of those rates ring: all rows at once, no loop.
        clocks = rng.standard_exponential((size, (self.length - context) // 2))
        return smallest_in_order(clocks / self.slot_probabilities(), self.num_pairs)

    def _other_values(self, rng: np.random.Generator, old: IntArray) -> IntArray:
        """A uniform value that differs from the old one of the same key."""
        half = self.vocab_size // 2
        shift = rng.integers(1, self.vocab_size - half, old.shape)
        return half + (old - half + shift) % (self.vocab_size - half)


def _interleave(keys: IntArray, values: IntArray) -> IntArray:
    """k1 v1 k2 v2 ... per row."""
    return np.stack([keys, values], axis=2).reshape(len(keys), -1)


def _segments(*shapes: tuple[int, int], random_filler: bool) -> tuple[MqarGenerator, ...]:
    return tuple(
        MqarGenerator(length=length, num_pairs=pairs, random_filler=random_filler)
        for length, pairs in shapes
    )


SETTING_A = _segments((64, 4), (128, 8), (256, 16), (512, 64), random_filler=False)
"""Figure 2 of the Zoology paper: one model per segment, trained and tested on it."""

SETTING_B_TRAIN = _segments((64, 4), (128, 8), (256, 16), (256, 32), (256, 64), random_filler=True)
"""Setting B (Based and later), training: examples per segment in `SETTING_B_TRAIN_EXAMPLES`."""

SETTING_B_TRAIN_EXAMPLES = (100_000, 20_000, 20_000, 20_000, 20_000)

SETTING_B_TEST = _segments(
    (64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1_024, 256), random_filler=True
)
"""Setting B, test: 1,000 examples each; the score is the mean over the seven segments."""

FORGETTING_TEST = tuple(
    MqarGenerator(length=length, num_pairs=pairs, num_updates=updates)
    for length, pairs, updates in ((64, 8, 4), (128, 16, 8), (256, 32, 16), (512, 64, 32))
)
"""Keys reassigned: overwriting instead of mere storing. Half of the keys get a second value."""

SETTINGS = {"a": SETTING_A, "b": SETTING_B_TEST, "forgetting": FORGETTING_TEST}


@dataclass(frozen=True, kw_only=True)
class Mqar(Task):
    """Mean over an example's queries, then over examples; one cell per segment."""

    setting: Literal["a", "b", "forgetting"] = "b"
    """Setting of Zoology, or keys that get a second value (forgetting)."""
    samples: Count = 200
    """Examples of each segment; 1,000 are published."""
    lengths: tuple[Count, ...] = ()
    """Only the segments of these lengths; all of them when empty."""
    vocab_size: Count = 8_192
    """Below 8,192 the task is easier than the published one; the record says so."""

    name = "mqar"
    example = "--model runs/mqar-lmm --vocab-size 256 --lengths 64"
    means = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.setting not in SETTINGS:
            raise ConfigError(f"MQAR has the settings a, b and forgetting; got {self.setting!r}")
        if not self._segments():
            known = sorted({segment.length for segment in SETTINGS[self.setting]})
            raise ConfigError(f"setting {self.setting} of MQAR has only the lengths {known}")

    def cells(self) -> list[Cell]:
        """The segments of the setting."""
        return [
            Cell(
                samples=self.samples,
                length=length,
                detail={"pairs": pairs, "updates": updates},
                batch_size=batch_for(length),
            )
            for length, pairs, updates in self._segments()
        ]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Answers at the queries."""
        require_vocabulary(subject, self.vocab_size, self.name)
        pairs, updates = (int(str(cell.detail[name])) for name in ("pairs", "updates"))
        generator = self._segments()[cell.length, pairs, updates]
        drawn = draw_examples(lambda rng: generator.batch(rng, 1), cell, seed, samples)
        return answered_share(subject, drawn)

    def _segments(self) -> dict[tuple[int, int, int], MqarGenerator]:
        """The segments by length, pairs and updates."""
        with config_errors(self.name):
            return {
                (segment.length, segment.num_pairs, segment.num_updates): dataclasses.replace(
                    segment, vocab_size=self.vocab_size
                )
                for segment in SETTINGS[self.setting]
                if not self.lengths or segment.length in self.lengths
            }
