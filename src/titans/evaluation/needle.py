"""Needles of tokens in noise, by length and depth: the benchmark of very small models."""

from collections.abc import Sequence
from dataclasses import dataclass

from titans.data.tasks.needle import NeedleTask
from titans.errors import ConfigError
from titans.evaluation.records import Score, accuracy_score, mean_score
from titans.evaluation.subject import Subject
from titans.evaluation.tasks import (
    Cell,
    Outcome,
    answered_share,
    batch_for,
    draw_examples,
    require_vocabulary,
)


@dataclass(frozen=True, kw_only=True)
class Needle:
    """Share of the needles that the model answers rightly."""

    lengths: tuple[int, ...] = (2_048, 4_096, 8_192, 16_384)
    samples: int = 100
    num_needles: int = 4
    num_keys: int = 32
    num_values: int = 32
    num_noise: int = 64
    distractors: bool = True
    depths: int = 0
    """0: needles lie anywhere. Else this many depths from 0 to 1, each a cell."""

    name = "needle"

    def __post_init__(self) -> None:
        for length in self.lengths:
            try:
                self.task(length)
            except ValueError as error:
                raise ConfigError(f"needle: {error}") from None

    def options(self) -> dict[str, object]:
        """The options as a record states them."""
        names = ("num_needles", "num_keys", "num_values", "num_noise", "distractors")
        return {name: getattr(self, name) for name in names}

    def task(self, length: int) -> NeedleTask:
        """The generator at one length."""
        return NeedleTask(
            length=length,
            num_needles=self.num_needles,
            num_keys=self.num_keys,
            num_values=self.num_values,
            num_noise=self.num_noise,
            distractors=self.distractors,
        )

    def cells(self) -> list[Cell]:
        """Depths within lengths."""
        steps = [i / max(self.depths - 1, 1) for i in range(self.depths)]
        return [
            Cell(
                samples=self.samples,
                length=length,
                detail={} if depth is None else {"depth": depth},
                batch_size=batch_for(length),
            )
            for length in sorted(self.lengths)
            for depth in (steps or [None])
        ]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Answers at the questions, read in one go."""
        assert cell.length is not None, "every cell of this task has a length"
        subject.check_length(cell.length)
        task = self.task(cell.length)
        require_vocabulary(subject, task.vocab_size, self.name)
        depth = cell.detail.get("depth")
        place = None if depth is None else float(depth)
        return answered_share(subject, draw_examples(task, cell, seed, samples, place))

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Accuracy, and the size of the state that held the needles."""
        place = {"length": cell.length, "detail": cell.detail}
        return [
            accuracy_score([outcome["accuracy"] for outcome in outcomes], **place),
            mean_score([outcome["state_bytes"] for outcome in outcomes], "state_bytes", **place),
        ]
