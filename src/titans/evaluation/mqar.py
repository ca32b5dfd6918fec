"""MQAR by segment: settings A and B of Zoology, and keys that are reassigned (forgetting)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from titans.data.tasks.mqar import FORGETTING_TEST, SETTING_A, SETTING_B_TEST, MqarTask
from titans.errors import ConfigError
from titans.evaluation.records import Score, accuracy_score
from titans.evaluation.subject import Subject
from titans.evaluation.tasks import (
    Cell,
    Outcome,
    answered_share,
    batch_for,
    draw_examples,
    require_vocabulary,
)

Setting = Literal["a", "b", "forgetting"]
SETTINGS: dict[str, tuple[MqarTask, ...]] = {
    "a": SETTING_A,
    "b": SETTING_B_TEST,
    "forgetting": FORGETTING_TEST,
}


@dataclass(frozen=True, kw_only=True)
class Mqar:
    """Mean over an example's queries, then over examples; one cell per segment."""

    setting: Setting = "b"
    samples: int = 1_000
    lengths: tuple[int, ...] = ()
    """Only the segments of these lengths; all of them when empty."""
    vocab_size: int = 8_192
    """Below 8,192 the task is easier than the published one; the record says so."""

    name = "mqar"

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise ConfigError(f"MQAR has the settings a, b and forgetting; got {self.setting!r}")
        try:
            segments = self._segments()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if not segments:
            known = sorted({segment.length for segment in SETTINGS[self.setting]})
            raise ConfigError(f"setting {self.setting} of MQAR has only the lengths {known}")

    def options(self) -> dict[str, object]:
        """The options as a record states them."""
        return {"setting": self.setting, "vocab_size": self.vocab_size}

    def cells(self) -> list[Cell]:
        """The segments of the setting."""
        return [
            Cell(
                samples=self.samples,
                length=segment.length,
                detail={"pairs": segment.num_pairs, "updates": segment.num_updates},
                batch_size=batch_for(segment.length),
            )
            for segment in self._segments()
        ]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Answers at the queries."""
        require_vocabulary(subject, self.vocab_size, self.name)
        segment = next(s for s in self._segments() if _detail(s) == (cell.length, cell.detail))
        return answered_share(subject, draw_examples(segment, cell, seed, samples))

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Accuracy of one segment."""
        values = [outcome["accuracy"] for outcome in outcomes]
        return [accuracy_score(values, length=cell.length, detail=cell.detail)]

    def _segments(self) -> list[MqarTask]:
        return [
            dataclasses.replace(segment, vocab_size=self.vocab_size)
            for segment in SETTINGS[self.setting]
            if not self.lengths or segment.length in self.lengths
        ]


def _detail(segment: MqarTask) -> tuple[int, dict[str, int]]:
    return segment.length, {"pairs": segment.num_pairs, "updates": segment.num_updates}
