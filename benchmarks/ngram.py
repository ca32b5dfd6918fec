"""Text without a neural network: n-grams of bytes as a baseline of `titans eval lm`.

    python benchmarks/ngram.py --train train.txt --text test.txt --order 5 --lengths 512,8k \
        --samples 32 --json results/language/5-gram.json

Interpolated by Witten and Bell: after a context that was seen `n` times with `t` different
successors, the shorter context has the weight `t / (n + t)`. `titans eval lm` makes the windows and
the scores, so its rows are comparable. (The size of the text as `xz -9e` packs it is a figure of
another kind: xz learns while it reads, and has no window.)
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titans.evaluation.lengths import parse_lengths
from titans.evaluation.lm import LanguageModelling
from titans.evaluation.record import ModelCard
from titans.evaluation.runner import run_task
from titans.tasks.task import IntArray, Reading

Packed = NDArray[np.uint64]


class NGrams:
    """Counts of all contexts of up to `order - 1` bytes in a text."""

    vocab_size = 256

    def __init__(self, text: bytes, order: int) -> None:
        self.order = order
        self.name = f"{order}-gram"
        tokens = np.frombuffer(text, np.uint8)
        self.grams = [count(pack(tokens, length)) for length in range(1, order + 1)]
        """For each length: the n-grams, in order, and how often they occur."""
        self.contexts = [contexts(*grams) for grams in self.grams]
        """For each length: the contexts, how often they occur, and their different successors."""

    def encode(self, text: str) -> IntArray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, tokens: IntArray) -> str:
        return bytes(tokens.tolist()).decode(errors="replace")

    def count_bytes(self, tokens: IntArray) -> int:
        return tokens.size

    def check_length(self, length: int) -> None:
        """Any length will do."""

    def losses(self, tokens: IntArray) -> Reading:
        """Cross-entropy of each byte but the first: no context reaches beyond its window."""
        likely = np.full(tokens.shape, 1 / 256)
        rows = tokens.astype(np.uint8)
        for length in range(1, self.order + 1):
            here = likely[:, length - 1 :]
            packed = np.stack([pack(row, length) for row in rows])
            gram = look_up(*self.grams[length - 1], packed)
            keys, seen, successors = self.contexts[length - 1]
            context = packed >> np.uint64(8)
            total, kinds = look_up(keys, seen, context), look_up(keys, successors, context)
            known = total > 0
            here[known] = ((gram + kinds * here) / np.maximum(total + kinds, 1))[known]
        return Reading(-np.log(likely[:, 1:]), 0)

    def card(self) -> ModelCard:
        return ModelCard(
            name=self.name,
            variant="n-gram",
            num_parameters=sum(len(keys) for keys, _ in self.grams),
            vocab_size=256,
            digest=f"{self.order}",
        )


def pack(tokens: NDArray[np.uint8], length: int) -> Packed:
    """All runs of `length` (at most 8) bytes as numbers, the newest byte lowest."""
    count = max(len(tokens) - length + 1, 0)
    packed = np.zeros(count, np.uint64)
    for place in range(length):
        packed = (packed << np.uint64(8)) | tokens[place : place + count]
    return packed


def count(packed: Packed) -> tuple[Packed, IntArray]:
    """The different numbers, in order, and how often each occurs."""
    return np.unique(packed, return_counts=True)


def contexts(grams: Packed, counts: IntArray) -> tuple[Packed, IntArray, IntArray]:
    """What the n-grams are without their newest byte: occurrences and different successors."""
    keys, first, kinds = np.unique(grams >> np.uint64(8), return_index=True, return_counts=True)
    return keys, np.add.reduceat(counts, first), kinds


def look_up(keys: Packed, values: IntArray, wanted: Packed) -> IntArray:
    """The values of the keys that are wanted; 0 for one that is not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--order", type=int, default=5, choices=range(1, 9))
    parser.add_argument("--lengths", type=parse_lengths, default=(512, 8_192))
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the record here")
    args = parser.parse_args(arguments)
    subject: Any = NGrams(args.train.read_bytes(), args.order)
    task = LanguageModelling(lengths=args.lengths, text=args.text, samples=args.samples)
    command = shlex.join(["python", "benchmarks/ngram.py", *sys.argv[1:]])
    record = run_task(task, subject, subject.card(), path=args.json, command=command)
    for score in record.scores:
        if score.metric == "bits_per_byte" and not score.detail:
            print(f"{score.length}: {score.value:.3f} [{score.low:.3f}, {score.high:.3f}]")


if __name__ == "__main__":
    main()
