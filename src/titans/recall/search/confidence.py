"""How likely it is that a scope answers a question at all: one number for a recall.

The score ranks the records of one scope; its level depends on the kind of chat. What is used here
does not: how far the first record is ahead, and how much of the question's words is found. The
weights are in confidence.json, made by `benchmarks/recall.py confidence`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from titans.errors import ConfigError
from titans.recall.search.features import FEATURES
from titans.recall.search.fusion import minimise

if TYPE_CHECKING:
    from torch import Tensor

BEST = 5
"""Records that are looked at, the first included."""
LONGEST = 10
"""The most words of a question in the fit; further ones count for nothing."""
SIGNALS: tuple[str, ...] = (
    "ahead_of_second",
    "ahead_of_others",
    "first_holds",
    "best_holds",
    "all_hold",
    "nothing_holds",
    "late",
    "late_wide",
    "speaker",
    "exact",
    "words",
)
"""What the confidence is made of: distances of the first record to the second and to the mean of
the next four, in log odds; shares of the question's words, by idf, that the first record, the best
of five, and all five together hold, and that no record holds; features of the first record; the
number of words of the question."""


@dataclass(frozen=True)
class Words:
    """The words of a question and where they stand."""

    rows: Mapping[str, NDArray[np.int64]]
    """Of each word the passages that hold it."""
    idf: Mapping[str, float]

    def shares(self, best: NDArray[np.int64]) -> list[float]:
        """The shares of the words that the first, the best and all of some passages hold, and the
        share that no passage holds."""
        weights = np.array([self.idf[word] for word in self.rows])
        held = [(rows == best[:, None]).any(1) for rows in self.rows.values()]
        holds = np.array(held).reshape(len(weights), len(best))
        unheld = np.array([len(rows) == 0 for rows in self.rows.values()], np.bool_)
        total = weights.sum() or 1.0
        each = weights @ holds / total
        together = weights @ holds.any(1) / total
        return np.array([each[0], each.max(), together, weights @ unheld / total]).tolist()


def signals(
    logits: NDArray[np.float32],
    features: NDArray[np.float32],
    words: Words,
    best: NDArray[np.int64],
) -> NDArray[np.float64]:
    """What is known of a recall, in the order of `SIGNALS`.

    Args:
        logits: the log odds of the best records, at most `BEST`, best first.
        features: of the first record.
        best: their passages.
    """
    # Where there are fewer records, the last stands for those that are missing.
    others = np.append(logits[1:], np.full(BEST - len(logits), logits[-1])).astype(np.float64)
    value = dict(zip(FEATURES, features.tolist(), strict=True))
    first = float(logits[0])
    return np.array(
        [
            *(first - others[0], first - others.mean(), *words.shares(best)),
            *(value[name] for name in ("late", "late_wide", "speaker", "exact")),
            min(len(words.rows), LONGEST),
        ]
    )


@dataclass(frozen=True)
class Confidence:
    """A weight per signal, and the constant."""

    weights: Mapping[str, float]
    bias: float

    def __post_init__(self) -> None:
        if set(self.weights) != set(SIGNALS):
            unlike = sorted(set(self.weights) ^ set(SIGNALS))
            raise ConfigError(f"confidence weights must name every signal; check {unlike}")

    def of(self, known: NDArray[np.float64]) -> float:
        """The probability that the question is answered, from its signals."""
        terms = (self.weights[name] * x for name, x in zip(SIGNALS, known.tolist(), strict=True))
        return 0.5 + 0.5 * math.tanh((math.fsum(terms) + self.bias) / 2)


@cache
def load_confidence() -> Confidence:
    """The shipped weights."""
    text = files("titans.recall.search").joinpath("confidence.json").read_text(encoding="utf-8")
    stored = json.loads(text)
    return Confidence(stored["weights"], stored["bias"])


def fit_confidence(
    known: NDArray[np.float64], answered: NDArray[np.bool_], penalty: float = 1e-2
) -> Confidence:
    """Fit the weights to questions: their signals, and whether they have an answer.

    Args:
        penalty: on the squared weights of standardised signals.
    """
    import torch

    mean, scale = known.mean(0), np.maximum(known.std(0), 1e-3)
    standard, labels = torch.from_numpy((known - mean) / scale), torch.from_numpy(answered).double()

    def logistic(line: "Tensor") -> "Tensor":
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            standard @ line[1:] + line[0], labels
        )
        return loss + penalty * line[1:].square().sum()

    line = minimise(logistic, torch.zeros(len(SIGNALS) + 1, dtype=torch.float64)).numpy()
    weights = line[1:] / scale
    return Confidence(
        dict(zip(SIGNALS, weights.tolist(), strict=True)), float(line[0] - mean @ weights)
    )


def confidence_json(fitted: Confidence, note: str) -> str:
    """The text of confidence.json."""
    rounded = {name: round(weight, 4) for name, weight in fitted.weights.items()}
    stored = {"note": note, "weights": rounded, "bias": round(fitted.bias, 4)}
    return json.dumps(stored, indent=1) + "\n"
