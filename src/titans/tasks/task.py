"""What a benchmark is: cells to fill, a way to measure some samples of one, and to sum them up.

A cell is one number of a table (a length, a depth, a segment). Each of its samples has its own
seed, made of (seed, cell, sample), so that a run can stop and go on, or change its batch size,
without changing a result.
"""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from titans.errors import ConfigError, DataError
from titans.files import describe_path
from titans.settings import check_ranges
from titans.tasks.score import Score, Value, accuracy_score, mean_score

IntArray = NDArray[np.int64]
Outcome = dict[str, float]
"""What one sample gave, by name."""


@dataclass(frozen=True)
class Reading:
    """What came out of reading, and how large the state was at the end of it."""

    values: NDArray[Any]
    state_bytes: int


class Subject(Protocol):
    """What a task needs of a model."""

    name: str
    vocab_size: int

    def encode(self, text: str) -> IntArray:
        """Text as tokens, without any marks around it."""
        ...

    def decode(self, tokens: IntArray) -> str:
        """Tokens as text."""
        ...

    def count_bytes(self, tokens: IntArray) -> int:
        """Bytes of text that the tokens stand for, also where they cut a character."""
        ...

    def check_length(self, length: int) -> None:
        """Raise `DataError` if this model cannot read so much."""
        ...

    def predict(self, tokens: IntArray) -> Reading:
        """The likeliest next token after each token, [batch, time]."""
        ...

    def losses(self, tokens: IntArray) -> Reading:
        """Cross-entropy in nats of each token but the first, [batch, time - 1]."""
        ...

    def generate(self, prompts: Sequence[IntArray], max_new_tokens: int) -> list[Reading]:
        """The greedy continuation of each prompt, up to the end-of-text token."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number to be measured."""

    samples: int
    length: int = 0
    """Tokens of a sample; 0 if the task does not count them."""
    detail: dict[str, Value] = field(default_factory=dict)
    batch_size: int = 1
    """Samples that are best measured together."""

    @property
    def key(self) -> str:
        """A name that no other cell of its task has."""
        parts = [f"{name}={value}" for name, value in self.detail.items()]
        return ",".join([str(self.length), *parts])

    @property
    def cost(self) -> int:
        """Tokens of one sample: what the progress bar counts."""
        return self.length or 1

    def rng(self, seed: int, sample: int) -> np.random.Generator:
        """The generator of one sample."""
        return np.random.default_rng([seed, zlib.crc32(self.key.encode()), sample])


class Task:
    """A benchmark with its options: a frozen dataclass, each field a flag of `titans eval NAME`.

    A field's docstring is the flag's help, its type the flag's form, its `Range` the flag's limits.
    """

    name: ClassVar[str]
    example: ClassVar[str] = ""
    """A typical use: what follows `titans eval NAME`."""
    means: ClassVar[tuple[str, ...]] = ("state_bytes",)
    """Outcomes beside the accuracy of which a record has the mean."""
    together: ClassVar[int] = 1
    """Samples that are read side by side however long they are, if memory allows."""
    unit: ClassVar[str] = "tok"
    """What the progress bar counts."""
    reads_with_model: ClassVar[bool] = True
    """Whether a checkpoint is measured; else the task has a subject of its own."""

    def __post_init__(self) -> None:
        """Refuse lists that are empty or name something twice, and numbers out of range."""
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            if isinstance(value, tuple) and value != option.default:
                _check_list(f"--{option.name.replace('_', '-')}", value)
        check_ranges(self, "--")

    def options(self) -> dict[str, object]:
        """The options as a record states them; its scores have the lengths, samples and depths."""
        return {
            option.name: _stated(getattr(self, option.name))
            for option in dataclasses.fields(self)  # type: ignore[arg-type]
            if option.name not in ("lengths", "samples", "depths")
        }

    def own_subject(self) -> Any:
        """What is measured if that is no checkpoint: it has `name`, `check_length` and `card`."""
        raise TypeError(f"{self.name} measures a checkpoint and has no subject of its own")

    def bind(self, subject: Any) -> "Task":
        """The task for one subject, if its cells depend on the subject's tokens."""
        return self

    def check_data(self) -> None:
        """Raise `DataError` if a file that the task names is not there or cannot be used."""
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            path = getattr(self, option.name)
            if isinstance(path, Path) and not path.exists():
                raise DataError(f"--{option.name} {path}: no such file or folder")

    def details(self) -> list[dict[str, Value]]:
        """What the cells of one length differ in."""
        return [{}]

    def cells(self) -> list[Cell]:
        """Everything to be measured, cheapest first: here details within lengths."""
        return [
            Cell(
                samples=self.samples,  # type: ignore[attr-defined]
                length=length,
                detail=detail,
                batch_size=batch_for(length, self.together),
            )
            for length in sorted(self.lengths)  # type: ignore[attr-defined]
            for detail in self.details()
        ]

    def measure(self, subject: Any, cell: Cell, seed: int, samples: Sequence[int]) -> list[Outcome]:
        """The outcome of each of these samples."""
        raise TypeError(f"{self.name} measures a subject that it is bound to: call bind(subject)")

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """What the cell's outcomes amount to."""
        place: Any = {"length": cell.length, "detail": cell.detail}
        return [
            accuracy_score([outcome["accuracy"] for outcome in outcomes], **place),
            *(mean_score([o[name] for o in outcomes], name, **place) for name in self.means),
        ]


def _check_list(flag: str, value: tuple[object, ...]) -> None:
    twice = [part for part in dict.fromkeys(value) if value.count(part) > 1]
    if twice:
        raise ConfigError(f"{flag} names {twice[0]!r} more than once: it would be scored twice")
    if not value:
        raise ConfigError(f"{flag} is an empty list: name something, or leave it out")


def _stated(value: object) -> object:
    if isinstance(value, Path):
        return describe_path(value)
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def config_errors(what: str) -> Iterator[None]:
    """Turn a generator's `ValueError` into a `ConfigError` that says whose option is wrong."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from None


def depth_details(depths: int) -> list[dict[str, Value]]:
    """So many depths from 0 to 1, as the details of cells; one without a depth for 0."""
    steps = [i / max(depths - 1, 1) for i in range(depths)]
    return [{"depth": depth} for depth in steps] or [{}]


def depth_of(cell: Cell) -> float | None:
    """Where the needles of a cell are; None if the task draws it."""
    depth = cell.detail.get("depth")
    return None if depth is None else float(depth)


TOGETHER_TOKENS = 1 << 23
"""Tokens of all samples that are measured together: what an interrupted run may lose."""
GENERATED_TOGETHER = 20
"""Prompts that are read side by side, also long ones: a state does not grow, and small models read
twenty at eight times the speed of one."""


def batch_for(length: int, least: int = 1) -> int:
    """Samples to read side by side: fewer of them the longer they are, but not below `least`
    while these stay within `TOGETHER_TOKENS`."""
    length = max(length, 1)
    least = max(1, min(least, TOGETHER_TOKENS // length))
    return max(least, min(64, (1 << 15) // length))


def require_vocabulary(subject: Subject, needed: int, task: str) -> None:
    """Refuse a model that has no token for a part of the task, or whose tokens spell text."""
    if subject.vocab_size < needed:
        raise DataError(
            f"{task} uses tokens 0..{needed - 1}, but {subject.name} has a vocabulary of "
            f"{subject.vocab_size}: use a model trained on this task, or set the task's sizes"
        )
    has_tokenizer = getattr(subject, "tokenizer", None) is not None
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
