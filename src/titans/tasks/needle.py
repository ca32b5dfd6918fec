"""Needles of tokens: (marker, key, value) hidden in noise, asked for at the end.

    noise .. MARK k1 v1 .. noise .. MARK k2 v2 .. noise  ASK k2 v2 ASK k1 v1
                                                             ^v2      ^v1     labels

The smallest task that has the shape of a needle in a haystack: usable at vocabularies of a few
dozen tokens. As words (`needle_words`), a person can read what a model reads:

    ... river the stone REMEMBER alice lisbon wind of ... RECALL alice
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from titans.settings import Count, Whole
from titans.tasks.score import Value
from titans.tasks.task import (
    Cell,
    IntArray,
    Outcome,
    Subject,
    Task,
    config_errors,
    depth_details,
    depth_of,
    require_vocabulary,
)
from titans.tasks.tokens import IGNORED, TokenBatch, answered_share, draw_distinct, draw_examples

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MARK = 1
"""Stands before a needle."""
ASK = 2
"""Stands before a question."""
FIRST_KEY = 3
"""Keys start here, values follow them, noise tokens follow the values; 0 is padding."""


@dataclass(frozen=True, kw_only=True)
class NeedleOptions:
    """What the training task and the benchmark share."""

    num_needles: Count = 4
    """Needles per example, with distinct keys."""
    num_keys: Count = 32
    """Size of the key vocabulary."""
    num_values: Count = 32
    """Size of the value vocabulary; chance level is its inverse."""
    num_noise: Whole = 64
    """Tokens that occur only in the noise."""
    distractors: bool = True
    """Let keys and values occur in the noise as well: only the mark shows a needle."""


@dataclass(frozen=True, kw_only=True)
class NeedleGenerator(NeedleOptions):
    """Sequences of exactly `length` tokens with `num_needles` needles, all of them asked."""

    length: int = 256
    """Tokens per example, questions and answers included."""

    def __post_init__(self) -> None:
        if min(self.num_needles, self.num_keys, self.num_values) < 1 or self.num_noise < 0:
            raise ValueError("num_needles, num_keys, num_values must be at least 1, num_noise 0")
        if self.num_noise == 0 and not self.distractors:
            raise ValueError("num_noise=0 leaves nothing to make noise of; set distractors=True")
        if self.num_needles > self.num_keys:
            raise ValueError(
                f"num_needles ({self.num_needles}) must not exceed num_keys ({self.num_keys})"
            )
        if self.length < 6 * self.num_needles:
            raise ValueError(
                f"{self.num_needles} needles and their questions need a length of at least "
                f"{6 * self.num_needles}, got {self.length}"
            )

    @property
    def vocab_size(self) -> int:
        """Padding, the two marks, keys, values, noise."""
        return self.first_noise + self.num_noise

    @property
    def first_value(self) -> int:
        """The lowest value token."""
        return FIRST_KEY + self.num_keys

    @property
    def first_noise(self) -> int:
        """The lowest token that is noise only."""
        return self.first_value + self.num_values

    @property
    def context_length(self) -> int:
        """Tokens before the first question."""
        return self.length - 3 * self.num_needles

    def batch(self, rng: np.random.Generator, size: int) -> TokenBatch:
        """`size` examples with needles at uniform places, no two of them overlapping."""
        starts = self._draw_starts(rng, size)
        return self._assemble(rng, self._noise(rng, size), starts)

    def at_depth(self, rng: np.random.Generator, size: int, depth: float) -> TokenBatch:
        """`size` examples whose needles start at `depth` (0 first place, 1 last), side by side."""
        if not 0 <= depth <= 1:
            raise ValueError(f"depth must be within 0..1, got {depth}")
        last = self.context_length - 3 * self.num_needles
        first = round(depth * last)
        starts = np.broadcast_to(first + 3 * np.arange(self.num_needles), (size, self.num_needles))
        return self._assemble(rng, self._noise(rng, size), starts.astype(np.int64))

    def _noise(self, rng: np.random.Generator, size: int) -> IntArray:
        low = FIRST_KEY if self.distractors else self.first_noise
        return rng.integers(low, self.vocab_size, (size, self.context_length))

    def _draw_starts(self, rng: np.random.Generator, size: int) -> IntArray:
        # Distinct places in the context as it would be if each needle were one token long,
        # then every needle moves by the two tokens of each needle before it.
        slots = self.context_length - 2 * self.num_needles
        places = np.sort(draw_distinct(rng, size, 0, slots, self.num_needles), axis=1)
        return places + 2 * np.arange(self.num_needles)

    def _assemble(self, rng: np.random.Generator, noise: IntArray, starts: IntArray) -> TokenBatch:
        size = len(noise)
        keys = draw_distinct(rng, size, FIRST_KEY, self.first_value, self.num_needles)
        values = rng.integers(self.first_value, self.first_noise, keys.shape)
        for offset, part in enumerate((np.full_like(keys, MARK), keys, values)):
            np.put_along_axis(noise, starts + offset, part, axis=1)
        order = draw_distinct(rng, size, 0, self.num_needles, self.num_needles)
        asked = np.take_along_axis(keys, order, axis=1)
        answers = np.take_along_axis(values, order, axis=1)
        questions = np.stack([np.full_like(asked, ASK), asked, answers], axis=2)
        tokens = np.concatenate([noise, questions.reshape(size, -1)], axis=1)
        labels = np.full_like(tokens, IGNORED)
        labels[:, self.context_length + 1 :: 3] = answers
        return TokenBatch(tokens, labels)


@dataclass(frozen=True, kw_only=True)
class Needle(NeedleOptions, Task):
    """Share of the needles that the model answers rightly, by length and depth."""

    lengths: tuple[Count, ...] = (512, 2_048, 8_192)
    """Lengths in tokens."""
    samples: Count = 16
    """Examples of each cell."""
    depths: Whole = 0
    """So many depths from 0 to 1, each a cell; 0: needles are anywhere."""

    name = "needle"
    example = "--model checkpoints/needle-mac --depths 5 --figure map.png"

    def __post_init__(self) -> None:
        super().__post_init__()
        for length in self.lengths:
            self._generator(length)

    def details(self) -> list[dict[str, Value]]:
        """The depths."""
        return depth_details(self.depths)

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Answers at the questions, read in one go."""
        generator, depth = self._generator(cell.length), depth_of(cell)
        require_vocabulary(subject, generator.vocab_size, self.name)

        def draw(rng: np.random.Generator) -> TokenBatch:
            return generator.batch(rng, 1) if depth is None else generator.at_depth(rng, 1, depth)

        return answered_share(subject, draw_examples(draw, cell, seed, samples))

    def _generator(self, length: int) -> NeedleGenerator:
        with config_errors(self.name):
            return NeedleGenerator(length=length, **self.options())  # type: ignore[arg-type]


# Its tokens as words, for the default sizes: names are keys, cities are values.

_SPECIAL = ("<|pad|>", "REMEMBER", "RECALL")
_KEYS = """
    alice boris clara david elena felix greta henry irene jonas karin louis maria nikos olga pablo
    queenie ruben sofia tomas ursula victor wanda xavier yvonne zoran amelia bruno cecilia dario
    edith franz
""".split()
_VALUES = """
    athens berlin cairo dublin essen florence geneva havana istanbul jakarta kyoto lisbon madrid
    nairobi oslo paris quito rome seville tokyo utrecht vienna warsaw xiamen york zurich bergen
    cracow delhi exeter fargo ghent
""".split()
_NOISE = """
    the of and a to in is was he for it with as his on be at by had not are but from or have they
    which one you were her all she there would their we him been has when who will more no if out
    river stone wind tree road house door lamp field bird cloud hill rain snow leaf sand fish
""".split()


def needle_words() -> list[str]:
    """The word of each token, in the order of the tokens."""
    return [*_SPECIAL, *_KEYS, *_VALUES, *_NOISE]


@lru_cache
def needle_tokenizer() -> "PreTrainedTokenizerFast":
    """A word-level tokenizer of exactly the needle task's vocabulary."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(needle_words())}
    backend = Tokenizer(WordLevel(vocabulary, unk_token=_SPECIAL[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=_SPECIAL[0], clean_up_tokenization_spaces=False
    )
