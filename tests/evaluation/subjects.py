"""Stand-ins for models: one that knows where the needle is, and one that always says the same."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from titans.evaluation.model import Reading
from titans.evaluation.record import ModelCard
from titans.tasks.tokens import IntArray

CARD = ModelCard(name="stand-in", variant="oracle", num_parameters=0, vocab_size=256, digest="0")


class Scripted:
    """Bytes in, bytes out; `answer` maps a prompt to what is generated."""

    def __init__(
        self,
        answer: Callable[[str], str] = lambda prompt: "",
        predict: Callable[[IntArray], IntArray] = np.zeros_like,
        vocab_size: int = 1 << 16,
    ) -> None:
        self.name = "stand-in"
        self.vocab_size = vocab_size
        self.lengths: list[int] = []
        self._answer = answer
        self._predict = predict

    def encode(self, text: str) -> IntArray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, tokens: IntArray) -> str:
        return bytes(tokens.tolist()).decode(errors="replace")

    def count_bytes(self, tokens: IntArray) -> int:
        return len(tokens)

    def check_length(self, length: int) -> None:
        self.lengths.append(length)

    def predict(self, tokens: IntArray) -> Reading:
        return Reading(self._predict(tokens), 7)

    def losses(self, tokens: IntArray) -> Reading:
        return Reading(np.full((len(tokens), tokens.shape[1] - 1), np.log(4.0)), 7)

    def generate(self, prompts: Sequence[IntArray], max_new_tokens: int) -> list[Reading]:
        answers = [self._answer(self.decode(prompt)) for prompt in prompts]
        return [Reading(self.encode(answer)[:max_new_tokens], 7) for answer in answers]


def needle_in_text(prompt: str) -> str:
    """What S-NIAH hides, found by reading."""
    found = re.search(r"One of the special magic \w+ for (\S+) is: (\S+)\.", prompt)
    assert found is not None
    return f" {found[2]}."


def needle_in_tokens(tokens: IntArray) -> IntArray:
    """The value behind MARK key, answered at every key."""
    answers = np.zeros_like(tokens)
    for row, line in enumerate(tokens):
        known = {line[t + 1]: line[t + 2] for t in np.flatnonzero(line == 1) if t + 2 < len(line)}
        answers[row] = [known.get(token, 0) for token in line]
    return answers


def last_value(tokens: IntArray) -> IntArray:
    """MQAR by dictionary: each even position teaches, until a key comes again without a value."""
    answers = np.zeros_like(tokens)
    half = 4_096
    for row, line in enumerate(tokens):
        known: dict[int, int] = {}
        for t, token in enumerate(line.tolist()):
            answers[row, t] = known.get(token, 0)
            if t + 1 < len(line) and 0 < token < half <= line[t + 1] and t % 2 == 0:
                known[token] = int(line[t + 1])
    return answers
