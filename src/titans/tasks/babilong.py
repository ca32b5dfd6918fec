"""BABILong: the questions of bAbI (qa1 to qa10) with their facts scattered through a book.

Lengths are in the tokens of the model that reads: a sample of nominal length L has a context of
exactly L - 300 tokens (facts and background), the rest is room for the question and the answer.
L = 0 means only the facts. The benchmark is for models trained on the task: context, question, one
answer. Questions are those of bAbI's test files, drawn without repetition; the few-shot prompts of
the published leaderboard are not used.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from titans.errors import ConfigError, DataError
from titans.files import describe_path, read_text
from titans.settings import Count, Whole
from titans.tasks.score import Value
from titans.tasks.task import (
    GENERATED_TOGETHER,
    Cell,
    IntArray,
    Outcome,
    Subject,
    Task,
    require_text,
)
from titans.tasks.text.haystack import read_books
from titans.tasks.text.sentences import split_sentences

Encode = Callable[[str], list[int]]

_PLACES = frozenset({"bathroom", "bedroom", "garden", "hallway", "kitchen", "office"})
ANSWERS: dict[str, frozenset[str]] = {
    "qa1": _PLACES,
    "qa2": _PLACES,
    "qa3": _PLACES,
    "qa4": _PLACES,
    "qa5": frozenset({"bill", "fred", "jeff", "mary", "apple", "football", "milk"}),
    "qa6": frozenset({"yes", "no"}),
    "qa7": frozenset({"none", "one", "two", "three"}),
    "qa8": frozenset({"apple", "football", "milk", "nothing"}),
    "qa9": frozenset({"yes", "no"}),
    "qa10": frozenset({"yes", "no", "maybe"}),
}
"""What can be answered, per task, in lower case."""

PROMPT_TOKENS = 300
"""Part of the nominal length that is kept for the question and the answer."""
MIN_SENTENCE_TOKENS = 10
"""Shorter background sentences are left out."""
MAX_NEW_TOKENS = 20


@dataclass(frozen=True)
class BabiQuestion:
    """One question with all the facts that came before it in its story."""

    facts: tuple[str, ...]
    question: str
    answer: str
    supports: tuple[int, ...]
    """Which facts (0-based) give the answer."""


@dataclass(frozen=True, kw_only=True)
class BabilongSample:
    """Context, question and answer, and where the facts went."""

    context: list[int]
    """Facts and background, in tokens."""
    question: str
    answer: str
    fact_starts: tuple[int, ...]
    """First token of each fact in the context."""
    supports: tuple[int, ...]
    """Which facts (0-based) give the answer."""


def find_babi_file(folder: str | Path, task: str, split: str) -> Path:
    """The file of one task, e.g. `qa1_single-supporting-fact_test.txt`."""
    if task not in ANSWERS:
        raise DataError(f"BABILong task must be one of {', '.join(ANSWERS)}; got {task!r}")
    found = sorted(Path(folder).glob(f"{task}_*_{split}.txt"))
    if not found:
        raise DataError(f"{folder} has no {task}_*_{split}.txt; give the folder of bAbI's en-10k")
    return found[0]


def read_babi(file: str | Path) -> list[BabiQuestion]:
    """Every question of a bAbI file; earlier questions of its story are not among its facts."""
    questions: list[BabiQuestion] = []
    facts: dict[int, str] = {}
    for row, line in enumerate(read_text(Path(file)).splitlines(), start=1):
        if not line.strip():
            continue
        number, _, rest = line.partition(" ")
        if not number.isdigit() or not rest:
            raise DataError(f"{file}, line {row}: expected 'number sentence', got {line[:60]!r}")
        if int(number) == 1:
            facts = {}
        if "\t" not in rest:
            facts[int(number)] = rest.strip()
            continue
        parts = rest.split("\t")
        if len(parts) != 3 or not all(word.isdigit() for word in parts[2].split()):
            raise DataError(f"{file}, line {row}: expected question, answer, facts; got {parts}")
        order = list(facts)
        supports = tuple(order.index(int(word)) for word in parts[2].split() if int(word) in facts)
        questions.append(
            BabiQuestion(tuple(facts.values()), parts[0].strip(), parts[1].strip(), supports)
        )
    if not questions:
        raise DataError(f"{file} holds no question")
    return questions


def stories(questions: Sequence[BabiQuestion]) -> list[range]:
    """Which questions belong to one story: each knows the facts of the one before, and more."""
    found: list[range] = []
    for index, question in enumerate(questions):
        before = questions[index - 1].facts if index else ()
        goes_on = len(question.facts) > len(before) > 0 and question.facts[: len(before)] == before
        first = found.pop().start if goes_on else index
        found.append(range(first, index + 1))
    return found


class Background:
    """Consecutive sentences of random books, in tokens."""

    def __init__(
        self, books: Sequence[str], encode: Encode, min_tokens: int = MIN_SENTENCE_TOKENS
    ) -> None:
        self._books = [book for book in books if book.strip()]
        if not self._books:
            raise DataError("BABILong needs at least one background book")
        self._encode = encode
        self._min_tokens = min_tokens

    def sample(self, rng: np.random.Generator, num_tokens: int) -> list[list[int]]:
        """Sentences of `num_tokens` tokens in all; the last one is cut to fit."""
        taken: list[list[int]] = []
        missing = num_tokens
        misses = 0
        while missing > 0:
            before = missing
            for sentence in self._passage(rng, num_tokens):
                tokens = self._encode(" " + sentence)
                if len(tokens) < self._min_tokens:
                    continue
                taken.append(tokens[:missing])
                missing -= len(taken[-1])
                if missing == 0:
                    break
            misses = misses + 1 if missing == before else 0
            if misses > 1_000:
                raise DataError(
                    f"the background has no sentence of at least {self._min_tokens} tokens"
                )
        return taken

    def _passage(self, rng: np.random.Generator, num_tokens: int) -> list[str]:
        """Sentences from a random character of a random book, without the broken first and last."""
        book = self._books[rng.integers(len(self._books))]
        start = int(rng.integers(len(book)))
        return split_sentences(book[start : start + 10 * num_tokens])[1:-1]


@dataclass(frozen=True, kw_only=True)
class BabilongGenerator:
    """One bAbI task hidden in one set of books."""

    questions: Sequence[BabiQuestion]
    background: Background
    encode: Encode
    prompt_tokens: int = PROMPT_TOKENS
    """Part of the nominal length that the context leaves free."""

    def usable(self, length: int) -> list[int]:
        """Questions whose facts fit: at most S // 8 of them, and no more than S tokens."""
        if length == 0:
            return list(range(len(self.questions)))
        size = self._context_size(length)
        few = (i for i, q in enumerate(self.questions) if len(q.facts) <= size // 8)
        return [i for i in few if sum(map(len, self._facts(i))) <= size]

    def sample(self, rng: np.random.Generator, length: int, index: int) -> BabilongSample:
        """Question number `index` at nominal length `length`."""
        facts = self._facts(index)
        sentences: list[list[int]] = []
        if length:
            room = self._context_size(length) - sum(map(len, facts))
            if room < 0:
                raise DataError(f"the facts of question {index} do not fit in {length} tokens")
            sentences = self.background.sample(rng, room)
        places = np.sort(rng.choice(np.arange(len(sentences) + 1), len(facts)))
        context: list[int] = []
        starts: list[int] = []
        for position in range(len(sentences) + 1):
            for number in np.flatnonzero(places == position):
                starts.append(len(context))
                context += facts[number]
            if position < len(sentences):
                context += sentences[position]
        question = self.questions[index]
        return BabilongSample(
            context=context,
            question=question.question,
            answer=question.answer,
            fact_starts=tuple(starts),
            supports=question.supports,
        )

    def _context_size(self, length: int) -> int:
        size = length - self.prompt_tokens
        if size <= 0:
            raise DataError(
                f"BABILong length {length} leaves no context: {self.prompt_tokens} tokens are kept "
                "for the question and the answer (0 means the facts alone)"
            )
        return size

    def _facts(self, index: int) -> list[list[int]]:
        return [self.encode(" " + fact) for fact in self.questions[index].facts]


def is_right(task: str, output: str, question: str, answer: str) -> bool:
    """Whether the labels named in `output`, but not in the question, are exactly the answer.

    Only the first sentence of the output counts. Labels are found as whole words: as parts of
    words, "none" would always name "one" as well and qa7 could not be answered.
    """
    text = output.lower().split(".")[0].split("<context>")[0].split("<example>")[0]
    named = _labels_in(task, text) - _labels_in(task, question.lower())
    return named == set(answer.lower().split(","))


def question_text(question: str) -> str:
    """How a question is put."""
    return f"\nQuestion: {question}\nAnswer:"


def _labels_in(task: str, text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text)) & ANSWERS[task]


@dataclass(frozen=True, kw_only=True)
class Babilong(Task):
    """Accuracy by task and length."""

    lengths: tuple[Whole, ...] = (1_024, 4_096)
    """Lengths in the model's own tokens; 0: only the facts."""
    samples: Count = 20
    """Questions of each cell."""
    tasks: tuple[str, ...] = ("qa1", "qa2", "qa3", "qa4", "qa5")
    """bAbI's tasks, from qa1 to qa10."""
    babi: Path | None = None
    """Folder of bAbI's en-10k files (required)."""
    background: Path | None = None
    """Books that the facts are scattered through: a file or a folder (required)."""

    name = "babilong"
    together = GENERATED_TOGETHER
    example = "--model checkpoints/babilong-mac --tasks qa1 --babi en-10k --background BOOKS"

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [task for task in self.tasks if task not in ANSWERS]
        if unknown:
            raise ConfigError(
                f"BABILong here has {', '.join(ANSWERS)}; it does not have {', '.join(unknown)}"
            )
        if self.babi is None or self.background is None:
            raise ConfigError("BABILong needs --babi (bAbI's en-10k) and --background (books)")

    def options(self) -> dict[str, object]:
        """The options as a record states them: of bAbI only the files that are read."""
        files = [describe_path(self._file(task)) for task in self.tasks]
        return {**super().options(), "babi": files, "length_unit": "the model's own tokens"}

    def check_data(self) -> None:
        """Find bAbI's files, read the books."""
        super().check_data()
        assert self._books, "reading refuses a place without text"
        for task in self.tasks:
            self._file(task)

    def details(self) -> list[dict[str, Value]]:
        """bAbI's tasks."""
        return [{"task": task} for task in self.tasks]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Read context and question, answer greedily, look for the one right label."""
        require_text(subject, self.name)
        name = str(cell.detail["task"])
        generator = self._generator(subject, name)
        order = self._order(subject, generator, cell, seed)
        drawn = [generator.sample(cell.rng(seed, n), cell.length, order[n]) for n in samples]
        prompts = [_prompt(sample, subject) for sample in drawn]
        readings = subject.generate(prompts, MAX_NEW_TOKENS)
        outputs = [subject.decode(reading.values) for reading in readings]
        return [
            {
                "accuracy": float(is_right(name, output, sample.question, sample.answer)),
                "state_bytes": reading.state_bytes,
            }
            for output, sample, reading in zip(outputs, drawn, readings, strict=True)
        ]

    def _generator(self, subject: Subject, name: str) -> BabilongGenerator:
        def encode(text: str) -> list[int]:
            return subject.encode(text).tolist()

        return BabilongGenerator(
            questions=self._questions[name],
            background=Background(self._books, encode),
            encode=encode,
        )

    def _order(
        self, subject: Subject, generator: BabilongGenerator, cell: Cell, seed: int
    ) -> list[int]:
        """Which question each sample asks: those that fit, shuffled."""
        known = self._usable.setdefault(subject, {})
        place = (str(cell.detail["task"]), cell.length)
        if place not in known:
            known[place] = generator.usable(cell.length)
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
        return {task: read_babi(self._file(task)) for task in self.tasks}

    def _file(self, task: str) -> Path:
        assert self.babi is not None, "checked at construction"
        return find_babi_file(self.babi, task, "test")


def _prompt(sample: BabilongSample, subject: Subject) -> IntArray:
    """What a model reads before it answers."""
    question = subject.encode(question_text(sample.question))
    return np.concatenate([np.asarray(sample.context, np.int64), question])
