"""Language modelling: bits per byte and perplexity by context length, and by position in it.

A text is cut into windows of each length, and every window is read from a fresh state. Longer
windows hold the same text, so a falling figure is what the longer context is worth. Windows of the
longest length are also scored by position, in octaves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from titans.data.corpus import Corpus, find_files
from titans.errors import ConfigError, DataError
from titans.settings import Count, Whole
from titans.tasks.score import Score, mean_score
from titans.tasks.task import Cell, IntArray, Outcome, Subject, Task, batch_for, require_text


@dataclass(frozen=True, kw_only=True)
class LanguageModelling(Task):
    """Cross-entropy of a text."""

    lengths: tuple[Count, ...] = (256, 512, 1_024, 2_048)
    """Lengths of the windows in the model's own tokens; each must divide the longest."""
    samples: Whole = 50
    """Windows of the longest length, spread evenly over the whole text; shorter lengths read the
    same tokens. 0: all of it."""
    text: Path | None = None
    """A text or JSONL file (also .gz), or a folder of them (required)."""
    tail_bytes: Whole = 0
    """Only the last so many bytes of the text: enwik8's test part is its last 5,000,000. 0: all."""

    name = "lm"
    example = "--model checkpoints/bytes-mac --text README.md --lengths 256,2k"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text is None:
            raise ConfigError("language modelling needs a text: give --text PATH")
        longest = max(self.lengths)
        if any(longest % length for length in self.lengths) or min(self.lengths) < 2:
            raise ConfigError(
                f"every length must divide the longest ({longest}), so that all of them read the "
                f"same tokens; got {sorted(self.lengths)}"
            )

    def options(self) -> dict[str, object]:
        """The options as a record states them."""
        return {**super().options(), "windows": self.samples, "spread": True}

    def check_data(self) -> None:
        """List the files of the text."""
        super().check_data()
        assert self.text is not None, "checked at construction"
        find_files(self.text)

    def bind(self, subject: Subject) -> "BoundLanguageModelling":
        """The task with its text in the subject's tokens: only then its cells are known."""
        assert self.text is not None, "checked at construction"
        require_text(subject, self.name)
        content = "".join(Corpus(files=find_files(self.text)).documents())
        if self.tail_bytes:
            content = content.encode()[-self.tail_bytes :].decode(errors="ignore")
        return BoundLanguageModelling(self, subject.encode(content))


@dataclass(frozen=True)
class BoundLanguageModelling(Task):
    """`LanguageModelling` on the tokens of one model."""

    task: LanguageModelling
    tokens: IntArray

    name = "lm"

    def options(self) -> dict[str, object]:
        """The options as a record states them, and how many tokens the text has."""
        return {**self.task.options(), "tokens": self.used}

    @cached_property
    def windows(self) -> IntArray:
        """The windows of the longest length, which every length reads."""
        longest = max(self.task.lengths)
        there = len(self.tokens) // longest
        if not there:
            raise DataError(
                f"the text has {len(self.tokens)} tokens, fewer than the longest length {longest}"
            )
        windows = self.tokens[: there * longest].reshape(there, longest)
        wanted = min(self.task.samples or there, there)
        # The middle of each of `wanted` equal parts: a text is not equally hard everywhere.
        return windows[(2 * np.arange(wanted) + 1) * there // (2 * wanted)]

    @property
    def used(self) -> int:
        """Tokens that every length reads."""
        return self.windows.size

    def cells(self) -> list[Cell]:
        """One per length."""
        return [
            Cell(samples=self.used // length, length=length, batch_size=batch_for(length))
            for length in sorted(self.task.lengths)
        ]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Nats, bytes and state of each window; nats and bytes by octave of the position, too."""
        windows = self.windows.reshape(-1, cell.length)[list(samples)]
        reading = subject.losses(windows)
        outcomes = []
        for window, row in zip(windows, reading.values.astype(np.float64), strict=True):
            outcome = {
                "nats": float(row.sum()),
                "bytes": float(subject.count_bytes(window[1:])),
                "state_bytes": reading.state_bytes,
            }
            for low, end in _octaves(cell.length):
                # The first token of a window is not predicted: token t has its loss at t - 1.
                outcome[f"nats@{low}"] = float(row[low - 1 : end - 1].mean())
                outcome[f"bytes@{low}"] = float(subject.count_bytes(window[low:end]))
            outcomes.append(outcome)
        return outcomes

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Bits per byte, perplexity per token and the size of the state that held the window.

        The longest length has the first two by position as well.
        """
        tokens = (cell.length - 1) * len(outcomes)
        bytes_per_token = math.fsum(outcome["bytes"] for outcome in outcomes) / tokens
        nats = [outcome["nats"] / (cell.length - 1) for outcome in outcomes]
        states = [outcome["state_bytes"] for outcome in outcomes]
        scores = [
            *_both(nats, bytes_per_token, cell.length, {}),
            mean_score(states, "state_bytes", length=cell.length),
        ]
        if cell.length == max(self.task.lengths):
            for low, end in _octaves(cell.length):
                there = [outcome[f"nats@{low}"] for outcome in outcomes]
                in_bytes = math.fsum(outcome[f"bytes@{low}"] for outcome in outcomes)
                share = in_bytes / ((end - low) * len(outcomes))
                scores += _both(there, share, cell.length, {"from": low, "to": end})
        return scores


def _octaves(length: int) -> list[tuple[int, int]]:
    """The positions [1, 2), [2, 4), [4, 8), ...; the last octave ends with the window."""
    lows = (1 << power for power in range((length - 1).bit_length()))
    return [(low, min(2 * low, length)) for low in lows]


def _both(
    nats: Sequence[float], bytes_per_token: float, length: int, detail: dict[str, int]
) -> list[Score]:
    """Bits per byte and perplexity; only perplexity if the tokens stand for no byte."""
    mean = mean_score(nats, "nats_per_token", length=length)
    perplexity = Score(
        metric="perplexity",
        value=math.exp(mean.value),
        low=math.exp(mean.low),
        high=math.exp(mean.high),
        samples=mean.samples,
        length=length,
        detail=dict(detail),
    )
    if not bytes_per_token:
        return [perplexity]
    to_bits = 1 / (math.log(2) * bytes_per_token)
    bits = mean_score([n * to_bits for n in nats], "bits_per_byte", length=length, detail=detail)
    return [bits, perplexity]
