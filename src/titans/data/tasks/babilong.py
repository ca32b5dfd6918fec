"""BABILong: the questions of bAbI (qa1 to qa10) with their facts scattered through a book.

Lengths are in the tokens of the model that reads: a sample of nominal length L has a context of
exactly L - 300 tokens (facts and background), the rest is room for the question and the answer.
L = 0 means the facts alone.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from titans.data.tasks.sentences import split_sentences
from titans.errors import DataError
from titans.files import read_text

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


def find_babi_file(folder: str | Path, task: str, split: str = "test") -> Path:
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
class BabilongTask:
    """One bAbI task hidden in one set of books."""

    questions: Sequence[BabiQuestion]
    background: Background
    encode: Encode
    span: tuple[float, float] | None = None
    """Restrict the facts to this part of the context (0..1); None places them anywhere."""
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
        places = np.sort(rng.choice(self._positions(sentences, facts), len(facts)))
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

    def _positions(self, sentences: list[list[int]], facts: list[list[int]]) -> np.ndarray:
        """Background sentences before which a fact may stand; the number of them is the end."""
        if self.span is None or not sentences:
            return np.arange(len(sentences) + 1)
        size = sum(map(len, sentences)) + sum(map(len, facts))
        starts = np.cumsum([0, *map(len, sentences[:-1])])
        low, high = int(size * self.span[0]), int(size * self.span[1]) - sum(map(len, facts))
        allowed = np.flatnonzero((starts >= low) & (starts < high))
        if not len(allowed):
            raise DataError(f"no room for the facts within {self.span} of {size} tokens: widen it")
        return allowed


def is_right(task: str, output: str, question: str, answer: str) -> bool:
    """Whether the labels named in `output`, but not in the question, are exactly the answer.

    Only the first sentence of the output counts. Labels are found as whole words: as parts of
    words, "none" would always name "one" as well and qa7 could not be answered.
    """
    text = output.lower().split(".")[0].split("<context>")[0].split("<example>")[0]
    named = _labels_in(task, text) - _labels_in(task, question.lower())
    return named == set(answer.lower().split(","))


def _labels_in(task: str, text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text)) & ANSWERS[task]
