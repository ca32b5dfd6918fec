"""What a benchmark is: cells to fill, a way to measure some samples of one, and to sum them up.

A cell is one number of a table (a length, a depth, a segment). Each of its samples has its own
seed, made of (seed, cell, sample), so that a run can stop and go on, or change its batch size,
without changing a result.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from titans.data.tasks.records import IGNORE, TokenBatch, TokenTask
from titans.errors import DataError
from titans.evaluation.records import Score, Value
from titans.evaluation.subject import ModelSubject, Subject

Outcome = dict[str, float]
"""What one sample gave, by name."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number to be measured."""

    samples: int
    length: int | None = None
    detail: dict[str, Value] = field(default_factory=dict)
    batch_size: int = 1
    """Samples that are best measured together."""

    @property
    def key(self) -> str:
        """A name that tells this cell from the others of its task."""
        parts = [f"{name}={value}" for name, value in self.detail.items()]
        return ",".join([str(self.length), *parts])

    @property
    def cost(self) -> int:
        """Tokens of one sample: what the progress bar counts."""
        return self.length or 1

    def rng(self, seed: int, sample: int) -> np.random.Generator:
        """The generator of one sample."""
        return np.random.default_rng([seed, zlib.crc32(self.key.encode()), sample])


class Task(Protocol):
    """A benchmark with its options."""

    name: str

    def options(self) -> dict[str, object]:
        """The options as a record states them."""
        ...

    def cells(self) -> list[Cell]:
        """Everything to be measured, cheapest first."""
        ...

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """The outcome of each of these samples."""
        ...

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """What the cell's outcomes amount to."""
        ...


@runtime_checkable
class UnboundTask(Protocol):
    """A benchmark whose cells depend on the model's tokens."""

    def bind(self, subject: Subject) -> Task:
        """The task for one subject."""
        ...


TOGETHER_TOKENS = 1 << 23
"""Tokens of all samples that are measured together: what an interrupted run may lose."""


def batch_for(length: int, least: int = 1) -> int:
    """Samples to read side by side: fewer of them the longer they are, but not below `least`
    while these stay within `TOGETHER_TOKENS`."""
    length = max(length, 1)
    least = max(1, min(least, TOGETHER_TOKENS // length))
    return max(least, min(64, (1 << 15) // length))


GENERATED_TOGETHER = 20
"""Prompts that are read side by side, also long ones: a state does not grow, and small models read
twenty at eight times the speed of one."""


def require_vocabulary(subject: Subject, needed: int, task: str) -> None:
    """Refuse a model that has no token for a part of the task, or whose tokens spell text."""
    if subject.vocab_size < needed:
        raise DataError(
            f"{task} uses tokens 0..{needed - 1}, but {subject.name} has a vocabulary of "
            f"{subject.vocab_size}: use a model trained on this task, or set the task's sizes"
        )
    has_tokenizer = isinstance(subject, ModelSubject) and subject.tokenizer is not None
    if has_tokenizer and _spells_text(subject):
        raise DataError(
            f"{task} is made of tokens of its own, but {subject.name} has a tokenizer of text: "
            "use a model trained on this task (without a tokenizer, or with the task's words)"
        )


PROBE = "One of the magic numbers for keen-owl is: 1234567, he said; isn't it?"


def require_text(subject: Subject, task: str) -> None:
    """Refuse a model whose tokens cannot spell text, such as one of the needle task's words."""
    if not _spells_text(subject):
        spelled = subject.decode(subject.encode(PROBE))
        raise DataError(
            f"{task} is made of text, but the tokenizer of {subject.name} cannot spell it "
            f"({PROBE[:24]!r} becomes {spelled[:24]!r}): use a model with a tokenizer of text"
        )


def _spells_text(subject: Subject) -> bool:
    """Whether text survives the model's tokens, its case and its spaces apart."""
    spelled = subject.decode(subject.encode(PROBE))
    return spelled.lower().split() == PROBE.lower().split()


def draw_examples(
    task: TokenTask, cell: Cell, seed: int, samples: Sequence[int], depth: float | None = None
) -> TokenBatch:
    """One example per sample, each from its own generator."""
    drawn = []
    for sample in samples:
        rng = cell.rng(seed, sample)
        if depth is None:
            drawn.append(task.batch(rng, 1))
        else:
            drawn.append(task.at_depth(rng, 1, depth))  # type: ignore[attr-defined]
    return TokenBatch(
        np.concatenate([batch.tokens for batch in drawn]),
        np.concatenate([batch.labels for batch in drawn]),
    )


def answered_share(subject: Subject, batch: TokenBatch) -> list[Outcome]:
    """Per example, the share of its scored positions that the model answers rightly."""
    reading = subject.predict(batch.tokens)
    asked = batch.labels != IGNORE
    right = (reading.values == batch.labels) & asked
    shares = right.sum(axis=1) / asked.sum(axis=1)
    return [{"accuracy": float(share), "state_bytes": reading.state_bytes} for share in shares]
