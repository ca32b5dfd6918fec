"""Streams of synthetic tasks: the generators of `titans.tasks` as training batches.

A batch is drawn from one variation of the task (`data.mixture`), so its rows are of one kind.
Random numbers come from (seed, split, step) for tasks of tokens and (seed, split, step, row) for
tasks of text, so every batch can be made on its own, and held-out batches are never trained on.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from titans.data.batch import Window
from titans.data.config import DataConfig
from titans.data.tokenizer import encode_document, end_token
from titans.errors import ConfigError, DataError
from titans.settings import build, check_keys
from titans.tasks.babilong import (
    BabilongGenerator,
    Background,
    find_babi_file,
    question_text,
    read_babi,
    stories,
)
from titans.tasks.mqar import MqarGenerator
from titans.tasks.needle import NeedleGenerator
from titans.tasks.niah import KeyWords, NiahGenerator, TextSample
from titans.tasks.permutations import PermutationGenerator
from titans.tasks.task import config_errors
from titans.tasks.text.haystack import Essay, read_books
from titans.tasks.tokens import IGNORED, TokenGenerator

TOKEN_TASKS: dict[str, type[TokenGenerator]] = {
    "mqar": MqarGenerator,
    "needle": NeedleGenerator,
    "state_tracking": PermutationGenerator,
}
TRAIN_SPLIT, HELD_OUT_SPLIT = 0, 1
MIXTURE_STREAM = 3
HELD_OUT_QUESTIONS = 0.05
"""The part of bAbI's training questions, at their end, that is kept for held-out batches."""
PLACES = 8
"""Places of a haystack that are tried for a sample that fits, before the run is ended."""


class Variation(Protocol):
    """One kind of sequence."""

    def windows(self, seed: list[int], size: int, rows: range) -> list[Window]:
        """Some rows of the batch of `size` rows that belongs to `seed`."""
        ...


@dataclass(frozen=True)
class TokenVariation:
    """Sequences of tokens, made by a whole batch at a time."""

    task: TokenGenerator

    def windows(self, seed: list[int], size: int, rows: range) -> list[Window]:
        """The whole batch is cheap; only the rows asked for are kept."""
        batch = self.task.batch(np.random.default_rng(seed), size)
        return [Window(batch.tokens[row], batch.labels[row]) for row in rows]


class Exchange(NamedTuple):
    """A prompt and its answer, in tokens."""

    prompt: np.ndarray
    answer: np.ndarray


@dataclass(frozen=True)
class TextVariation:
    """Prompts with answers, in text; made row by row."""

    sample: Callable[[np.random.Generator], list[Exchange]]
    """Draw what is asked and answered in one sequence, in order."""
    prompt_loss: bool
    """Learn to predict the prompt as well, not only the answer."""

    def windows(self, seed: list[int], size: int, rows: range) -> list[Window]:
        """One generator per row."""
        return [self._window(np.random.default_rng([*seed, row])) for row in rows]

    def _window(self, rng: np.random.Generator) -> Window:
        exchanges = self.sample(rng)
        tokens = np.concatenate([part for exchange in exchanges for part in exchange])
        asked = np.concatenate(
            [np.repeat([self.prompt_loss, True], [len(e.prompt), len(e.answer)]) for e in exchanges]
        )
        return Window(tokens[:-1], np.where(asked, tokens, IGNORED)[1:])


@dataclass(frozen=True)
class SyntheticStream:
    """A mixture of variations, one of them for each step."""

    variations: tuple[Variation, ...]
    weights: tuple[float, ...]
    from_steps: tuple[int, ...]
    batch_size: int
    seed: int
    split: int = TRAIN_SPLIT

    def windows(self, step: int, rows: range) -> list[Window]:
        """The given rows of step `step`."""
        seed = [self.seed, MIXTURE_STREAM, self.split, step]
        chosen = self.variations[self._choose(seed, step)]
        return chosen.windows(seed, self.batch_size, rows)

    def _choose(self, seed: list[int], step: int) -> int:
        if len(self.variations) == 1:
            return 0
        # Held-out batches go through the variations in turn: every one counts, from the start.
        if self.split == HELD_OUT_SPLIT:
            return step % len(self.variations)
        ready = [
            weight if step >= first else 0.0
            for weight, first in zip(self.weights, self.from_steps, strict=True)
        ]
        chances = np.asarray(ready) / sum(ready)
        return int(np.random.default_rng([*seed, 1]).choice(len(ready), p=chances))


def synthetic_stream(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    batch_size: int,
    seed: int,
    held_out: bool,
) -> SyntheticStream:
    """The stream of `config.source`."""
    variations, weights, from_steps = [], [], []
    for entry in config.mixture or ({},):
        options = {**config.task, **entry}
        weights.append(float(options.pop("weight", 1.0)))  # type: ignore[arg-type]
        from_steps.append(int(options.pop("from_step", 0)))  # type: ignore[call-overload]
        variations.append(_variation(config, options, tokenizer, held_out))
    if min(weights) <= 0 or min(from_steps) > 0:
        raise ConfigError(
            "data.mixture: every weight must be above 0 and one variation must start at step 0; "
            f"got weights {weights}, from_step {from_steps}"
        )
    return SyntheticStream(
        variations=tuple(variations),
        weights=tuple(weights),
        from_steps=tuple(from_steps),
        batch_size=batch_size,
        seed=seed,
        split=HELD_OUT_SPLIT if held_out else TRAIN_SPLIT,
    )


def synthetic_vocab_size(config: DataConfig) -> int | None:
    """The vocabulary of a task of tokens; None for tasks of text, which have a tokenizer."""
    if config.source not in TOKEN_TASKS:
        return None
    sizes = []
    for entry in config.mixture or ({},):
        options = {**config.task, **entry}
        options.pop("weight", None)
        options.pop("from_step", None)
        sizes.append(_token_task(config.source, options).vocab_size)
    return max(sizes)


def _variation(
    config: DataConfig,
    options: dict[str, object],
    tokenizer: PreTrainedTokenizerBase | None,
    held_out: bool,
) -> Variation:
    if config.source in TOKEN_TASKS:
        return TokenVariation(_token_task(config.source, options))
    assert tokenizer is not None, "tasks of text are built with a tokenizer"
    prompt_loss = bool(options.pop("prompt_loss", False))
    options.setdefault("length", config.sequence_len)
    if config.source == "niah":
        return TextVariation(_Niah.build(config, options, tokenizer), prompt_loss)
    return TextVariation(_Babilong.build(config, options, tokenizer, held_out), prompt_loss)


def _token_task(source: str, options: Mapping[str, object]) -> TokenGenerator:
    with config_errors(f"data.task ({source})"):
        return build(TOKEN_TASKS[source], options, "data.task.")


@lru_cache(maxsize=2)
def _essay(path: str) -> Essay:
    """A haystack: the variations of a mixture share it."""
    return Essay.load(path)


@dataclass(frozen=True)
class _Niah:
    """Draws S-NIAH prompts of one length."""

    task: NiahGenerator
    length: int
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def build(
        cls, config: DataConfig, options: dict[str, object], tokenizer: PreTrainedTokenizerBase
    ) -> "_Niah":
        known = ["kind", "length", "answer_tokens", "words_path"]
        check_keys(options, known, "data.task.")
        kind = str(options.get("kind", "pk"))
        if kind != "pk" and config.path is None:
            raise ConfigError(f"data.task.kind={kind!r} needs a haystack: set data.path to a text")
        words = options.get("words_path")
        with config_errors("data.task (niah)"):
            task = NiahGenerator(
                kind=kind,  # type: ignore[arg-type]
                essay=_essay(config.path) if config.path and kind != "pk" else None,
                words=KeyWords.load(str(words)) if words else KeyWords.default(),
                answer_tokens=int(options.get("answer_tokens", 40)),  # type: ignore[call-overload]
            )
        return cls(task, int(options["length"]), tokenizer)  # type: ignore[call-overload]

    def __call__(self, rng: np.random.Generator) -> list[Exchange]:
        sample = self._sample(rng)
        prompt = encode_document(self.tokenizer, sample.prompt)
        answer = encode_document(self.tokenizer, f" {sample.answers[0]}.")
        return [Exchange(prompt, np.append(answer, end_token(self.tokenizer)))]

    def _sample(self, rng: np.random.Generator) -> TextSample:
        """A sample that fits; where a sentence begins with a word too long, one from elsewhere."""
        essay = self.task.essay
        if essay is None:
            return self.task.sample(rng, self.length, self._count)
        for _ in range(PLACES - 1):
            first = int(rng.integers(essay.num_sentences))
            with contextlib.suppress(DataError):
                return self.task.sample(rng, self.length, self._count, first_sentence=first)
        first = int(rng.integers(essay.num_sentences))
        return self.task.sample(rng, self.length, self._count, first_sentence=first)

    def _count(self, text: str) -> int:
        return len(encode_document(self.tokenizer, text))


@dataclass(frozen=True)
class _Babilong:
    """Draws BABILong questions of one task and length."""

    task: BabilongGenerator
    usable: tuple[range, ...]
    """Questions of one story each, up to the one that is asked at the end."""
    length: int
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def build(
        cls,
        config: DataConfig,
        options: dict[str, object],
        tokenizer: PreTrainedTokenizerBase,
        held_out: bool,
    ) -> "_Babilong":
        known = ["name", "length", "babi_path", "prompt_tokens", "whole_stories"]
        check_keys(options, known, "data.task.")
        if config.path is None or "babi_path" not in options:
            raise ConfigError(
                "babilong needs data.path (books for the background) and data.task.babi_path "
                "(the folder of bAbI's en-10k files)"
            )
        file = find_babi_file(
            Path(str(options["babi_path"])), str(options.get("name", "qa1")), "train"
        )
        questions = read_babi(file)
        cut = round(len(questions) * (1 - HELD_OUT_QUESTIONS))
        length = int(options["length"])  # type: ignore[call-overload]
        encode = _TokenList(tokenizer)
        task = BabilongGenerator(
            questions=questions[cut:] if held_out else questions[:cut],
            background=Background(read_books(config.path), encode),
            encode=encode,
            prompt_tokens=int(options.get("prompt_tokens", 300)),  # type: ignore[call-overload]
        )
        fitting = set(task.usable(length))
        if options.get("whole_stories", False):
            usable = tuple(story for story in stories(task.questions) if story[-1] in fitting)
        else:
            usable = tuple(range(index, index + 1) for index in sorted(fitting))
        if not usable:
            raise ConfigError(f"data.task.length {length}: no question of {file.name} fits")
        return cls(task, usable, length, tokenizer)

    def __call__(self, rng: np.random.Generator) -> list[Exchange]:
        story = self.usable[int(rng.integers(len(self.usable)))]
        sample = self.task.sample(rng, self.length, story[-1])
        exchanges, begin = [], 0
        for question in (self.task.questions[index] for index in story):
            # A question is put once its facts are told: right before the next one, or at the end.
            end = (*sample.fact_starts, len(sample.context))[len(question.facts)]
            told = np.asarray(sample.context[begin:end], dtype=np.int64)
            asked = self._encode(question_text(question.question))
            answer = self._encode(f" {question.answer}.")
            exchanges.append(Exchange(np.concatenate([told, asked]), answer))
            begin = end
        last = exchanges[-1]
        ended = np.append(last.answer, end_token(self.tokenizer))
        return [*exchanges[:-1], last._replace(answer=ended)]

    def _encode(self, text: str) -> np.ndarray:
        return encode_document(self.tokenizer, text)


@dataclass(frozen=True)
class _TokenList:
    """`tokenizer` as the function text -> list of ids that the generators expect."""

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, text: str) -> list[int]:
        return encode_document(self.tokenizer, text).tolist()
