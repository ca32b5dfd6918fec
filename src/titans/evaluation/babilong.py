"""BABILong qa1 to qa10 by length, for models trained on the task: context, question, one answer.

Lengths are in the model's own tokens. Questions are those of bAbI's test files, drawn without
repetition; the few-shot prompts of the published leaderboard are not used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from titans.data.synthetic import babilong_prompt
from titans.data.tasks.babilong import (
    ANSWERS,
    BabilongTask,
    BabiQuestion,
    Background,
    find_babi_file,
    is_right,
    read_babi,
)
from titans.data.tasks.haystack import read_books
from titans.errors import ConfigError, DataError
from titans.evaluation.records import Score, accuracy_score, describe_path, mean_score
from titans.evaluation.subject import Subject
from titans.evaluation.tasks import GENERATED_TOGETHER, Cell, Outcome, batch_for, require_text

MAX_NEW_TOKENS = 20


@dataclass(frozen=True, kw_only=True)
class Babilong:
    """Accuracy by task and length."""

    lengths: tuple[int, ...] = (1_024, 2_048, 4_096, 8_192, 16_384)
    samples: int = 100
    tasks: tuple[str, ...] = ("qa1", "qa2", "qa3", "qa4", "qa5")
    babi: Path | None = None
    """Folder of bAbI's en-10k files."""
    background: Path | None = None
    """Books that the facts are scattered through."""
    split: str = "test"

    name = "babilong"

    def __post_init__(self) -> None:
        unknown = [task for task in self.tasks if task not in ANSWERS]
        if unknown:
            raise ConfigError(
                f"BABILong here has {', '.join(ANSWERS)}; it does not have {', '.join(unknown)}"
            )
        if self.babi is None or self.background is None:
            raise ConfigError("BABILong needs --babi (bAbI's en-10k) and --background (books)")

    def options(self) -> dict[str, object]:
        """The options as a record states them."""
        assert self.babi is not None, "checked at construction"
        files = [find_babi_file(self.babi, task, self.split) for task in self.tasks]
        return {
            "tasks": list(self.tasks),
            "babi": [describe_path(file) for file in files],
            "background": describe_path(self.background),
            "length_unit": "the model's own tokens",
        }

    def cells(self) -> list[Cell]:
        """Tasks within lengths."""
        return [
            Cell(
                samples=self.samples,
                length=length,
                detail={"task": task},
                batch_size=batch_for(length, GENERATED_TOGETHER),
            )
            for length in sorted(self.lengths)
            for task in self.tasks
        ]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Read context and question, answer greedily, look for the one right label."""
        assert cell.length is not None, "every cell of this task has a length"
        require_text(subject, self.name)
        subject.check_length(cell.length)
        name = str(cell.detail["task"])
        task = self._task(subject, name)
        order = self._order(subject, task, cell, seed)
        drawn = [
            task.sample(cell.rng(seed, sample), cell.length, order[sample]) for sample in samples
        ]
        prompts = [babilong_prompt(sample, subject.encode) for sample in drawn]
        readings = subject.generate(prompts, MAX_NEW_TOKENS)
        outputs = [subject.decode(reading.values) for reading in readings]
        return [
            {
                "accuracy": float(is_right(name, output, sample.question, sample.answer)),
                "state_bytes": reading.state_bytes,
            }
            for output, sample, reading in zip(outputs, drawn, readings, strict=True)
        ]

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Accuracy of one task at one length, and the size of the state that held the facts."""
        place = {"length": cell.length, "detail": cell.detail}
        return [
            accuracy_score([outcome["accuracy"] for outcome in outcomes], **place),
            mean_score([outcome["state_bytes"] for outcome in outcomes], "state_bytes", **place),
        ]

    def _task(self, subject: Subject, name: str) -> BabilongTask:
        def encode(text: str) -> list[int]:
            return subject.encode(text).tolist()

        return BabilongTask(
            questions=self._questions[name],
            background=Background(self._books, encode),
            encode=encode,
        )

    def _order(self, subject: Subject, task: BabilongTask, cell: Cell, seed: int) -> list[int]:
        """Which question each sample asks: those that fit, shuffled."""
        assert cell.length is not None, "every cell of this task has a length"
        known = self._usable.setdefault(subject, {})
        place = (str(cell.detail["task"]), cell.length)
        if place not in known:
            known[place] = task.usable(cell.length)
        usable = known[place]
        if len(usable) < cell.samples:
            raise DataError(
                f"{cell.detail['task']} has {len(usable)} questions whose facts fit in "
                f"{cell.length} tokens, fewer than the {cell.samples} samples asked for"
            )
        return np.random.default_rng([seed, cell.length]).permutation(usable).tolist()

    @cached_property
    def _usable(self) -> WeakKeyDictionary[Subject, dict[tuple[str, int], list[int]]]:
        """Questions that fit, by task and length: to know them, all facts must be tokenized.

        Kept apart for each subject, whose tokens decide, and only as long as it lives.
        """
        return WeakKeyDictionary()

    @cached_property
    def _books(self) -> list[str]:
        assert self.background is not None, "checked at construction"
        return read_books(self.background)

    @cached_property
    def _questions(self) -> dict[str, list[BabiQuestion]]:
        assert self.babi is not None, "checked at construction"
        return {task: read_babi(find_babi_file(self.babi, task, self.split)) for task in self.tasks}
