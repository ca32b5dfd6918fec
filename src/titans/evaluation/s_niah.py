"""S-NIAH: passkey (pk), number (n) and uuid (w) needles in a haystack, to millions of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from titans.data.tasks.haystack import Essay, read_books
from titans.data.tasks.niah import ANSWER_TOKENS, KINDS, KeyWords, Kind, NiahTask, contains_answer
from titans.data.tasks.records import TextSample
from titans.errors import ConfigError
from titans.evaluation.records import Score, accuracy_score, describe_path, mean_score
from titans.evaluation.subject import Subject
from titans.evaluation.tasks import GENERATED_TOGETHER, Cell, Outcome, batch_for, require_text


@dataclass(frozen=True, kw_only=True)
class SNiah:
    """Accuracy by task and length, or by depth and length."""

    lengths: tuple[int, ...] = (2_048, 4_096, 8_192, 16_384)
    samples: int = 500
    kinds: tuple[Kind, ...] = KINDS
    haystack: Path | None = None
    """Text of the essay haystack (n and w): a file, or a folder whose files follow each other."""
    each_file: bool = False
    """Every file of the folder is a haystack of its own, from its first word; samples take turns.
    Otherwise all samples of a length hide their needle in the same text, as the task defines it."""
    words: Path | None = None
    """Folder with the word lists of the keys; the built-in words when None."""
    depths: int = 0
    """0: needles lie as the task defines it. Else this many depths from 0 to 1, each a cell."""
    answer_tokens: int = ANSWER_TOKENS
    """Tokens that are generated, and kept free within the length."""

    name = "s-niah"

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ConfigError(f"S-NIAH has the tasks {', '.join(KINDS)}; got {', '.join(unknown)}")
        if self.haystack is None and any(kind != "pk" for kind in self.kinds):
            raise ConfigError(
                "the S-NIAH tasks n and w hide needles in a text: give --haystack PATH, "
                "or only the passkey task with --kinds pk"
            )

    def options(self) -> dict[str, object]:
        """The options as a record states them."""
        return {
            "kinds": list(self.kinds),
            "haystack": describe_path(self.haystack),
            "each_file": self.each_file,
            "words": describe_path(self.words),
            "answer_tokens": self.answer_tokens,
        }

    def cells(self) -> list[Cell]:
        """Tasks within lengths, depths within tasks."""
        steps = [i / max(self.depths - 1, 1) for i in range(self.depths)]
        return [
            Cell(
                samples=self.samples,
                length=length,
                detail={"kind": kind} if depth is None else {"kind": kind, "depth": depth},
                batch_size=batch_for(length, GENERATED_TOGETHER),
            )
            for length in sorted(self.lengths)
            for kind in self.kinds
            for depth in (steps or [None])
        ]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Read each prompt, answer greedily, look for the value."""
        assert cell.length is not None, "every cell of this task has a length"
        require_text(subject, self.name)
        subject.check_length(cell.length)
        drawn = [self.sample(subject, cell, seed, sample) for sample in samples]
        prompts = [subject.encode(sample.prompt) for sample in drawn]
        readings = subject.generate(prompts, self.answer_tokens)
        return [
            {
                "accuracy": contains_answer(subject.decode(reading.values), sample.answers),
                "tokens": sample.num_tokens,
                "state_bytes": reading.state_bytes,
            }
            for sample, reading in zip(drawn, readings, strict=True)
        ]

    def sample(self, subject: Subject, cell: Cell, seed: int, sample: int) -> TextSample:
        """The sample with this number."""
        depth = cell.detail.get("depth")
        tasks = self._tasks[str(cell.detail["kind"])]
        assert cell.length is not None, "every cell of this task has a length"
        return tasks[sample % len(tasks)].sample(
            cell.rng(seed, sample),
            cell.length,
            lambda text: len(subject.encode(text)),
            depth=None if depth is None else float(depth),
        )

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Accuracy, the size of the state that held the text, and the lengths that came out."""
        place = {"length": cell.length, "detail": cell.detail}
        return [
            accuracy_score([outcome["accuracy"] for outcome in outcomes], **place),
            *(
                mean_score([outcome[name] for outcome in outcomes], name, **place)
                for name in ("state_bytes", "tokens")
            ),
        ]

    @cached_property
    def _tasks(self) -> dict[str, list[NiahTask]]:
        words = KeyWords.load(self.words) if self.words else KeyWords.default()
        return {
            kind: [
                NiahTask(kind=kind, essay=essay, words=words, answer_tokens=self.answer_tokens)
                for essay in self._essays
            ]
            for kind in self.kinds
        }

    @cached_property
    def _essays(self) -> list[Essay | None]:
        if self.haystack is None:
            return [None]
        if self.each_file:
            return [Essay(book) for book in read_books(self.haystack)]
        return [Essay.load(self.haystack)]
