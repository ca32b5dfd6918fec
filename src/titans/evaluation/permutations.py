"""State tracking: the running product of random permutations (S3, S5), by length."""

from collections.abc import Sequence
from dataclasses import dataclass

from titans.data.tasks.permutations import PermutationTask
from titans.errors import ConfigError
from titans.evaluation.records import Score, accuracy_score
from titans.evaluation.subject import Subject
from titans.evaluation.tasks import Cell, Outcome, batch_for, draw_examples, require_vocabulary


@dataclass(frozen=True, kw_only=True)
class Permutations:
    """Accuracy over all positions, and at the last one, where everything counts."""

    lengths: tuple[int, ...] = (16, 32, 64, 128, 256)
    samples: int = 500
    degree: int = 3

    name = "permutations"

    def __post_init__(self) -> None:
        for length in self.lengths:
            try:
                PermutationTask(length=length, degree=self.degree)
            except ValueError as error:
                raise ConfigError(f"permutations: {error}") from None

    def options(self) -> dict[str, object]:
        """The options as a record states them."""
        return {"degree": self.degree}

    def cells(self) -> list[Cell]:
        """One per length."""
        return [
            Cell(
                samples=self.samples,
                length=length,
                detail={"group": f"S{self.degree}"},
                batch_size=batch_for(length),
            )
            for length in sorted(self.lengths)
        ]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """The product named after every element."""
        assert cell.length is not None, "every cell of this task has a length"
        subject.check_length(cell.length)
        task = PermutationTask(length=cell.length, degree=self.degree)
        require_vocabulary(subject, task.vocab_size, self.name)
        batch = draw_examples(task, cell, seed, samples)
        right = subject.predict(batch.tokens).values == batch.labels
        return [{"accuracy": float(row.mean()), "last": float(row[-1])} for row in right]

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Both accuracies."""
        place = {"length": cell.length, "detail": cell.detail}
        return [
            accuracy_score([outcome["accuracy"] for outcome in outcomes], **place),
            accuracy_score([o["last"] for o in outcomes], metric="last_accuracy", **place),
        ]
