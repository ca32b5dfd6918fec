"""The demonstration: models read a text many times longer than they were trained on, with needles.

`run_demo` reads, asks and counts; it prints nothing. `draw_demo` makes the picture.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from titans.evaluation.lengths import format_length
from titans.evaluation.model import ModelSubject
from titans.files import write_figure
from titans.tasks.needle import NeedleGenerator, needle_words
from titans.tasks.tokens import IGNORED, TokenBatch


@dataclass(frozen=True, kw_only=True)
class Question:
    """One needle, and what each model answered when it was asked for it."""

    key: str
    answer: str
    depth: float
    """Where the needle lay: 0 is the start of the text, 1 its end."""
    given: dict[str, str]
    """Model -> its answer."""

    def is_right(self, model: str) -> bool:
        """Whether that model found the needle."""
        return self.given[model] == self.answer


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How one model read the text."""

    name: str
    variant: str
    num_parameters: int
    seconds: float
    positions: tuple[int, ...]
    """Tokens read so far, at each window."""
    state_bytes: tuple[int, ...]
    """Size of the model's state there."""

    @property
    def state_size(self) -> str:
        """That size in words: one number where it stayed the same."""
        least, most = min(self.state_bytes), max(self.state_bytes)
        return f"{most:,} bytes" if least == most else f"{least:,} to {most:,} bytes"


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What came of it."""

    length: int
    """Tokens of the text."""
    excerpt: str
    """The text around one of the needles."""
    questions: tuple[Question, ...]
    readers: tuple[Reader, ...]

    def found(self, model: str) -> int:
        """How many needles a model found."""
        return sum(question.is_right(model) for question in self.questions)


def run_demo(
    checkpoints: Sequence[str | Path],
    *,
    length: int = 32_768,
    num_needles: int = 8,
    distractors: bool = False,
    seed: int = 0,
) -> Demo:
    """Let every checkpoint read the same text of `length` words and ask for every needle.

    Args:
        distractors: let names and cities occur outside needles, too.
    """
    task = NeedleGenerator(length=length, num_needles=num_needles, distractors=distractors)
    batch = task.batch(np.random.default_rng(seed), 1)
    words = needle_words()
    subjects = [ModelSubject.load(path) for path in checkpoints]
    given: dict[str, list[str]] = {}
    readers = []
    total = length * len(subjects)
    with tqdm(total=total, unit="word", unit_scale=True, file=sys.stderr, desc="reading") as bar:
        for subject in subjects:
            bar.set_postfix_str(subject.name)
            reader, answers = _read(subject, batch, bar)
            given[subject.name] = [words[token] for token in answers]
            readers.append(reader)
    return Demo(
        length=length,
        excerpt=_excerpt(batch, words),
        questions=_questions(batch, words, given),
        readers=tuple(readers),
    )


def _read(subject: ModelSubject, batch: TokenBatch, bar: tqdm) -> tuple[Reader, list[int]]:
    """Read the text window by window; the answers are the predictions at the questions."""
    ids = torch.from_numpy(batch.tokens)
    positions, sizes, predictions = [], [], []
    began = time.perf_counter()
    for logits, size in subject.read_windows(ids):
        predictions.append(logits.argmax(-1))
        positions.append(logits.shape[1] + (positions[-1] if positions else 0))
        sizes.append(size)
        bar.update(logits.shape[1])
    reader = Reader(
        name=subject.name,
        variant=subject.config.variant,
        num_parameters=sum(p.numel() for p in subject.model.parameters()),
        seconds=time.perf_counter() - began,
        positions=tuple(positions),
        state_bytes=tuple(sizes),
    )
    chosen = torch.cat(predictions, dim=1).numpy()[batch.labels != IGNORED]
    return reader, chosen.tolist()


def _questions(
    batch: TokenBatch, words: list[str], given: dict[str, list[str]]
) -> tuple[Question, ...]:
    tokens, labels = batch.tokens[0], batch.labels[0]
    places = {int(tokens[t + 1]): int(t) for t in np.flatnonzero(tokens == 1)}
    asked = np.flatnonzero(labels != IGNORED)
    return tuple(
        Question(
            key=words[tokens[t]],
            answer=words[labels[t]],
            depth=places[int(tokens[t])] / len(tokens),
            given={model: answers[number] for model, answers in given.items()},
        )
        for number, t in enumerate(asked)
    )


def _excerpt(batch: TokenBatch, words: list[str], around: int = 8) -> str:
    """The words around the first needle."""
    place = int(np.argmax(batch.tokens[0] == 1))
    shown = batch.tokens[0, max(place - around, 0) : place + 3 + around]
    return " ".join(words[token] for token in shown)


def draw_demo(demo: Demo, path: str | Path) -> None:
    """Above: the needles each model found, by depth. Below: the size of its state as it reads."""
    figure = Figure(figsize=(7.5, 5))
    above, below = figure.subplots(2, 1)
    for row, reader in enumerate(demo.readers):
        for right, colour in ((True, "tab:green"), (False, "tab:red")):
            depths = [q.depth for q in demo.questions if q.is_right(reader.name) == right]
            marker = "o" if right else "x"
            above.scatter(depths, [row] * len(depths), c=colour, marker=marker, zorder=2)
        kilobytes = [size / 1_024 for size in reader.state_bytes]
        below.plot(reader.positions, kilobytes, label=reader.name)
    names = [f"{r.name}\n{demo.found(r.name)} of {len(demo.questions)}" for r in demo.readers]
    above.set_yticks(range(len(names)), names)
    above.set_ylim(len(names) - 0.5, -0.5)
    above.set_xlim(-0.02, 1.02)
    above.set_xlabel("depth of the needle in the text (o found, x not found)")
    above.set_title(f"{len(demo.questions)} needles in {format_length(demo.length)} words")
    below.set_xlabel("words read")
    below.set_ylabel("state (KB)")
    below.set_ylim(0, 1.4 * below.get_ylim()[1])  # room for the legend above the lines
    below.legend(loc="upper right", ncols=len(demo.readers))
    figure.tight_layout()
    write_figure(path, figure)
