"""The score of a passage: a weighted sum of its features through a logistic function.

All weights but one are fitted: fusion.json, made by `benchmarks/recall.py fit`
(docs/recall-fusion-card.md says on what).
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from titans.errors import ConfigError
from titans.recall.search.features import BASE, FEATURES

if TYPE_CHECKING:
    from torch import Tensor

RECENCY_WEIGHT = 0.05
"""Of recency in [0, 1], in the units of the logistic function: it decides between equals."""
IMPORTANCE_WEIGHT = 1.0
"""Of a record's importance in [0, 1]: 1 multiplies the odds that it answers by 2.7. Set."""
EXACT_WEIGHT = 4.0
"""Of a rare word of the question found as it is. Set, not fitted: the questions of the fit hold
hardly any, and a passage with the number asked for must outrank all that only look like it."""
FITTED_SIZE = 500
"""Passages in a scope of the kind that the weights were fitted to."""
REPLACED_PENALTY = 1.5
"""A statement that was updated later stands behind its successor."""
ASKED_AGAIN_PENALTY = 6.0
"""A text that only asks what the query asks stands behind what answers it. Set."""
SET = {"exact": EXACT_WEIGHT}
"""Weights that are set."""
WORDS = (
    *("lexical", "lexical_wide", "lexical_close", "lexical_nearby", "speaker", "assistant"),
    *("idle", "when", "date", "day", "exact"),
)
"""Features that need no encoder: for texts and questions in languages that it does not know."""
WORDS_ALONE = ("lexical", "lexical_wide")
"""What adds nothing beside vectors."""
STAGES: dict[str, tuple[str, ...]] = {
    "first": tuple(name for name in BASE if name not in WORDS_ALONE),
    "full": tuple(name for name in FEATURES if name not in WORDS_ALONE),
    "words": WORDS,
}
"""What is fitted: `first` ranks all candidates, `full` the best of them, `words` what the encoder
does not know."""


@dataclass(frozen=True)
class FusionWeights:
    """A weight per feature, those not named having none, and the constant."""

    weights: dict[str, float]
    bias: float

    def __post_init__(self) -> None:
        unknown = sorted(set(self.weights) - set(FEATURES))
        if unknown:
            raise ConfigError(f"fusion weights must name features; check {unknown}")

    def contributions(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Each feature times its weight; the first columns of `FEATURES`, or all."""
        weights = [self.weights.get(name, 0.0) for name in FEATURES[: features.shape[1]]]
        return features * np.array(weights, np.float32)

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The weighted sum, before the logistic function."""
        weights = [self.weights.get(name, 0.0) for name in FEATURES[: features.shape[1]]]
        return features @ np.array(weights, np.float32) + np.float32(self.bias)


@dataclass(frozen=True)
class Fusion:
    """The weights of all stages."""

    first: FusionWeights
    full: FusionWeights
    words: FusionWeights


def prior_shift(size: int) -> float:
    """What to add to the logits in a small scope, where any one record is likelier the answer.

    The odds of a record go with one over their number. Rankings do not change.
    """
    return math.log(max(FITTED_SIZE / max(size, 1), 1.0))


def load_fusion() -> Fusion:
    """The shipped weights."""
    text = files("titans.recall.search").joinpath("fusion.json").read_text(encoding="utf-8")
    stages = json.loads(text)["stages"]
    return Fusion(
        **{
            name: FusionWeights({**stages[name]["weights"], **SET}, stages[name]["bias"])
            for name in STAGES
        }
    )


def fit_fusion(
    examples: list[tuple[NDArray[np.float32], NDArray[np.bool_]]],
    names: Sequence[str] = FEATURES,
    penalty: float = 1e-2,
) -> FusionWeights:
    """Fit the weights to questions: for each, the features of all passages and which answer it.

    First the direction, by listwise softmax (a question's answers against all else), then scale
    and constant, by logistic regression on how often a passage with that sum is an answer.

    Args:
        names: the features that get a weight.
    """
    import torch

    used = [FEATURES.index(name) for name in names if name not in SET]
    every = np.concatenate([x[:, used] for x, _ in examples]).astype(np.float64)
    # The penalty is on weights of standardised features: none is cheap for having a small scale.
    scale = torch.from_numpy(1 / np.maximum(every.std(0), 1e-3))
    counts = torch.tensor([len(x) for x, _ in examples])
    owner = torch.repeat_interleave(torch.arange(len(examples)), counts)
    features = torch.from_numpy(every) * scale
    target = torch.from_numpy(np.concatenate([y / y.sum() for _, y in examples]))

    def listwise(w: "Tensor") -> "Tensor":
        sums = features @ w
        most = torch.full((len(examples),), -torch.inf, dtype=sums.dtype)
        most = most.scatter_reduce(0, owner, sums.detach(), "amax")
        total = torch.zeros_like(most).index_add(0, owner, (sums - most[owner]).exp())
        losses = sums - (total.log() + most)[owner]
        return -(target * losses).sum() / len(examples) + penalty * w.square().sum()

    direction = minimise(listwise, torch.zeros(len(used), dtype=torch.float64))
    sums, labels = features @ direction, (target > 0).double()

    def logistic(line: "Tensor") -> "Tensor":
        return torch.nn.functional.binary_cross_entropy_with_logits(
            line[0].exp() * sums + line[1], labels
        )

    start = torch.stack([torch.zeros_like(sums[0]), -sums.max()])
    line = minimise(logistic, start)
    weights, bias = line[0].exp() * direction * scale, float(line[1])
    fitted = {FEATURES[i]: float(w) for i, w in zip(used, weights, strict=True)}
    return FusionWeights({**fitted, **SET}, bias)


def minimise(loss: "Callable[[Tensor], Tensor]", start: "Tensor") -> "Tensor":
    """L-BFGS to convergence."""
    import torch

    x = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([x], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(x)
        value.backward()
        return float(value.detach())

    optimizer.step(closure)
    return x.detach()


def fusion_json(fusion: Fusion, note: str) -> str:
    """The text of fusion.json."""
    stages: dict[str, object] = {}
    for name in STAGES:
        fitted: FusionWeights = getattr(fusion, name)
        rounded = {n: round(w, 4) for n, w in fitted.weights.items() if n not in SET}
        stages[name] = {"weights": rounded, "bias": round(fitted.bias, 4)}
    return json.dumps({"note": note, "stages": stages}, indent=1) + "\n"
