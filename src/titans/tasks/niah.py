"""Single needle in a haystack, the three tasks of RULER that the Titans paper reports (S-NIAH).

    pk  passkey: noise haystack, word key, number     (niah_single_1)
    n   number:  essay haystack, word key, number     (niah_single_2)
    w   uuid:    essay haystack, word key, uuid       (niah_single_3)

A sample's length counts its prompt, the given beginning of the answer and the tokens kept for
the answer, in the tokens of the model that will read it.
"""

import itertools
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from titans.errors import ConfigError, DataError
from titans.files import read_text
from titans.settings import Count, Whole
from titans.tasks.score import Value
from titans.tasks.task import (
    GENERATED_TOGETHER,
    Cell,
    Outcome,
    Subject,
    Task,
    depth_details,
    depth_of,
    require_text,
)
from titans.tasks.text.haystack import Essay, read_books

CountTokens = Callable[[str], int]

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {plural} for {key} is: {value}."
PROMPT = (
    "A special magic {noun} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {noun} afterwards.\n{context}\n"
    "What is the special magic {noun} for {key} mentioned in the provided text?"
    " The special magic {noun} for {key} mentioned in the provided text is"
)
DEPTHS = tuple(round(depth) for depth in np.linspace(0, 100, 40))
"""Where a needle can lie in an essay, in per cent of its sentences."""
ANSWER_TOKENS = 128
"""Tokens kept for the answer."""

ADJECTIVES = """
    ancient bitter bold brave bright calm clever cold cosy cruel curious dapper dark dizzy eager
    early faint fancy fierce fine gentle giant glad grand green happy heavy humble icy jolly keen
    kind lively lonely lucky mellow merry noble odd pale plain proud quick quiet rapid rare ripe
    rough royal rusty shy silent sleepy small smooth solid spicy steady sweet swift tall tidy wild
""".split()
NOUNS = """
    anchor apple arrow badge barn basket beach bell bird blanket boat book bottle branch bridge
    bucket button cabin camel candle canyon castle chair cherry circle cloud coin comet copper
    corner cotton cradle crane desert dragon drum eagle engine falcon feather fiddle flag forest
    fossil garden glacier goose hammer harbor helmet hill honey island jacket jungle kettle key
    ladder lantern lemon letter lion magnet maple marble meadow mirror moon mountain needle ocean
    onion orchard oven owl paddle parrot pebble pencil piano pillow planet pocket pond prairie
    puzzle rabbit raven ribbon river rocket saddle sailor shadow shell silver spider spoon stone
    summit table temple thunder tiger tower trumpet tunnel turtle valley velvet village violin
    wagon walnut whale willow window wolf zebra
""".split()


@dataclass(frozen=True)
class KeyWords:
    """The words that keys are made of: `adjective-noun`, every pair equally likely."""

    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]

    @classmethod
    def default(cls) -> "KeyWords":
        """A few thousand pairs, built in."""
        return cls(tuple(sorted(set(ADJECTIVES))), tuple(sorted(set(NOUNS))))

    @classmethod
    def load(cls, folder: str | Path) -> "KeyWords":
        """`adjectivelist.txt` and `nounlist.txt` of `folder` (RULER uses those of wonderwords)."""
        lists: list[tuple[str, ...]] = []
        for name in ("adjectivelist.txt", "nounlist.txt"):
            file = Path(folder) / name
            if not file.is_file():
                raise DataError(
                    f"{folder} has no {name}; leave the words out for the built-in ones"
                )
            words = {line.strip() for line in read_text(file).splitlines()}
            lists.append(tuple(sorted(words - {""})))
        if not all(lists):
            raise DataError(f"a word list in {folder} is empty")
        return cls(lists[0], lists[1])

    def draw(self, rng: np.random.Generator) -> str:
        """One key."""
        first = self.adjectives[rng.integers(len(self.adjectives))]
        return f"{first}-{self.nouns[rng.integers(len(self.nouns))]}"


Kind = Literal["pk", "n", "w"]
KINDS: tuple[Kind, ...] = ("pk", "n", "w")


@dataclass(frozen=True, kw_only=True)
class TextSample:
    """A prompt and the strings that a right answer contains."""

    prompt: str
    """Everything the model reads, the beginning of the answer included where there is one."""
    answers: tuple[str, ...]
    """Strings that count."""
    depth: float
    """Where the needle lies: 0 is the start of the context, 1 its end."""
    num_tokens: int
    """Length of the sample as the task counts it, in the tokens of the given encoder."""


@dataclass(frozen=True, kw_only=True)
class NiahGenerator:
    """One of the three tasks, ready to be sampled at any length."""

    kind: Kind
    """pk, n or w."""
    essay: Essay | None = None
    """Haystack of n and w; pk makes its own."""
    words: KeyWords
    """What keys are made of."""
    answer_tokens: int = ANSWER_TOKENS
    """Tokens kept for the answer within a sample's length."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"S-NIAH task must be one of {', '.join(KINDS)}; got {self.kind!r}")
        if self.kind != "pk" and self.essay is None:
            raise DataError(f"S-NIAH-{self.kind.upper()} needs a haystack text; give its path")

    @property
    def noun(self) -> str:
        """What the value is called in the prompt."""
        return "uuid" if self.kind == "w" else "number"

    def sample(
        self,
        rng: np.random.Generator,
        length: int,
        count_tokens: CountTokens,
        depth: float | None = None,
        first_sentence: int = 0,
    ) -> TextSample:
        """The longest sample that fits in `length` tokens.

        Args:
            depth: place of the needle within 0..1; drawn as the task defines it when None.
            first_sentence: where in the essay the haystack begins; at its first word, as the task
                defines it. Training begins anywhere.
        """
        key = self.words.draw(rng)
        value = self._draw_value(rng)
        place = self._draw_depth(rng) if depth is None else depth
        needle = NEEDLE.format(plural=f"{self.noun}s", key=key, value=value)

        def prompt(amount: int) -> str:
            context = self._context(needle, amount, place, first_sentence)
            return PROMPT.format(noun=self.noun, key=key, context=context)

        limit = length - self.answer_tokens
        amount = largest_fitting(lambda n: count_tokens(prompt(n)), limit)
        if amount is None:
            needed = count_tokens(prompt(1)) + self.answer_tokens
            raise DataError(
                f"S-NIAH-{self.kind.upper()} does not fit in {length} tokens: "
                f"the shortest sample takes {needed} ({self.answer_tokens} of them for the answer)"
            )
        text = prompt(amount)
        return TextSample(
            prompt=text,
            answers=(value,),
            depth=place,
            num_tokens=count_tokens(text) + self.answer_tokens,
        )

    def _draw_value(self, rng: np.random.Generator) -> str:
        if self.kind == "w":
            return str(uuid.UUID(bytes=rng.bytes(16), version=4))
        return str(rng.integers(1_000_000, 10_000_000))

    def _draw_depth(self, rng: np.random.Generator) -> float:
        if self.kind == "pk":
            return float(rng.random())
        return DEPTHS[rng.integers(len(DEPTHS))] / 100

    def _context(self, needle: str, amount: int, depth: float, first_sentence: int) -> str:
        """`amount` units of noise or words of the essay, with the needle at `depth`."""
        if self.essay is None or self.kind == "pk":
            lines = [NOISE] * amount
            lines.insert(min(int(depth * amount), amount - 1), needle)
            return "\n".join(lines)
        sentences = self.essay.take_sentences(amount, first_sentence)
        place = int(len(sentences) * depth)
        return " ".join([" ".join(sentences[:place]), needle, " ".join(sentences[place:])])


def largest_fitting(cost: Callable[[int], int], limit: int) -> int | None:
    """The largest n >= 1 with `cost(n) <= limit`, or None; `cost` grows, nearly linearly."""
    low, low_cost = 1, cost(1)
    if low_cost > limit:
        return None
    high = 2
    while (high_cost := cost(high)) <= limit:
        low, low_cost = high, high_cost
        # Aim a little beyond where the line through zero and this point meets the limit.
        aim = int(1.02 * high * limit / max(high_cost, 1)) + 1
        high = min(max(high + 1, aim), 64 * high)
    # Where the line meets the limit, then its neighbour (which nearly always settles it: each cost
    # is a whole text tokenized), then the middle, so that it ends soon even if the line misleads.
    for how in itertools.cycle(("line", "neighbour", "middle")):
        if high - low <= 1:
            break
        share = (limit - low_cost) / max(high_cost - low_cost, 1)
        nearer_low = limit - low_cost < high_cost - limit
        tried = {
            "line": low + math.floor(share * (high - low)),
            "neighbour": low + 1 if nearer_low else high - 1,
            "middle": (low + high) // 2,
        }[how]
        tried = min(max(tried, low + 1), high - 1)
        tried_cost = cost(tried)
        if tried_cost <= limit:
            low, low_cost = tried, tried_cost
        else:
            high, high_cost = tried, tried_cost
    return low


def contains_answer(output: str, answers: tuple[str, ...]) -> float:
    """RULER's `string_match_all`: the share of answers that `output` contains, in any case."""
    text = output.lower()
    return sum(answer.lower() in text for answer in answers) / len(answers)


@dataclass(frozen=True, kw_only=True)
class SNiah(Task):
    """Accuracy by task and length, or by depth and length."""

    lengths: tuple[Count, ...] = (2_048, 4_096, 8_192)
    """Lengths in the model's own tokens."""
    samples: Count = 20
    """Prompts of each cell; the task is defined with 500."""
    kinds: tuple[Kind, ...] = ("pk",)
    """Tasks: pk (passkey in noise), n (number in a text), w (uuid in a text)."""
    haystack: Path | None = None
    """Text that n and w hide needles in: a file, or a folder whose files follow each other."""
    each_file: bool = False
    """Every file of the folder is a haystack of its own, and samples take turns; else all samples
    of a length hide their needle in the same text, as the task defines it."""
    words: Path | None = None
    """Folder with adjectivelist.txt and nounlist.txt for the keys; default: built-in words."""
    depths: Whole = 0
    """So many depths from 0 to 1, each a cell; 0: needles are where the task puts them."""
    answer_tokens: Count = ANSWER_TOKENS
    """Tokens that are generated, and kept free within the length."""

    name = "s-niah"
    example = "--model checkpoints/niah-mac --kinds pk,n --haystack BOOKS --each-file"
    means = ("state_bytes", "tokens")
    together = GENERATED_TOGETHER

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ConfigError(f"S-NIAH has the tasks {', '.join(KINDS)}; got {', '.join(unknown)}")
        if self.haystack is None and any(kind != "pk" for kind in self.kinds):
            raise ConfigError(
                "the S-NIAH tasks n and w hide needles in a text: give --haystack PATH, "
                "or only the passkey task with --kinds pk"
            )

    def check_data(self) -> None:
        """Read the haystack and the words."""
        super().check_data()
        if self.haystack is not None:
            read_books(self.haystack)
        if self.words is not None:
            KeyWords.load(self.words)

    def details(self) -> list[dict[str, Value]]:
        """Depths within tasks."""
        return [{"kind": k, **depth} for k in self.kinds for depth in depth_details(self.depths)]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Read each prompt, answer greedily, look for the value."""
        require_text(subject, self.name)
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
        generators = self._generators[str(cell.detail["kind"])]
        return generators[sample % len(generators)].sample(
            cell.rng(seed, sample),
            cell.length,
            lambda text: len(subject.encode(text)),
            depth=depth_of(cell),
        )

    @cached_property
    def _generators(self) -> dict[str, list[NiahGenerator]]:
        words = KeyWords.load(self.words) if self.words else KeyWords.default()
        return {
            kind: [
                NiahGenerator(kind=kind, essay=essay, words=words, answer_tokens=self.answer_tokens)
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
