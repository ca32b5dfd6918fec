"""The score of a passage: a weighted sum of its features through a logistic function.

All weights but one are fitted, the only numbers of the text memory that are: fusion.json, made by
`benchmarks/recall.py fit` (docs/recall-fusion-card.md says on what).
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from titans.errors import ConfigError
from titans.recall.search.features import FEATURES, MEMORY_FEATURES

RECENCY_WEIGHT = 0.05
"""Of recency in [0, 1], in the units of the logistic function: it decides between equals."""
EXACT_WEIGHT = 4.0
"""Of a rare word of the question found as it is. Set, not fitted: the questions of the fit hold
hardly any, and a passage with the number asked for must outrank all that only look like it."""
FITTED_SIZE = 500
"""Passages in a scope of the kind that the weights were fitted to."""
REPLACED_PENALTY = 1.5
"""A statement that was updated later stands behind its successor."""


@dataclass(frozen=True)
class FusionWeights:
    """A weight per feature, and the constant."""

    weights: dict[str, float]
    bias: float

    def __post_init__(self) -> None:
        if set(self.weights) != set(FEATURES):
            wrong = sorted(set(self.weights) ^ set(FEATURES))
            raise ConfigError(f"fusion weights must name every feature once; check {wrong}")

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The weighted sum, before the logistic function."""
        vector = np.array([self.weights[name] for name in FEATURES], np.float32)
        return features @ vector + np.float32(self.bias)


def prior_shift(size: int) -> float:
    """What to add to the logits in a small scope, where any one record is likelier the answer.

    The odds of a record go with one over their number. Rankings do not change.
    """
    return math.log(max(FITTED_SIZE / max(size, 1), 1.0))


def load_fusion(use_memory: bool = True) -> FusionWeights:
    """The shipped weights; fitted apart for a memory that is switched off."""
    text = files("titans.recall.search").joinpath("fusion.json").read_text(encoding="utf-8")
    chosen = json.loads(text)["with_memory" if use_memory else "without_memory"]
    return FusionWeights({**chosen["weights"], "exact": EXACT_WEIGHT}, chosen["bias"])


def fit_fusion(
    examples: list[tuple[NDArray[np.float32], NDArray[np.bool_]]],
    use_memory: bool = True,
    penalty: float = 1e-4,
) -> FusionWeights:
    """Fit the weights to questions: for each, the features of all passages and which answer it.

    First the direction, by listwise softmax (a question's answers against all else), then scale
    and constant, by logistic regression on how often a passage with that sum is an answer.
    """
    left_out = {"exact"} if use_memory else {"exact", *MEMORY_FEATURES}
    used = [i for i, name in enumerate(FEATURES) if name not in left_out]
    data = [
        (torch.from_numpy(x[:, used].astype(np.float64)), torch.from_numpy(y).double() / y.sum())
        for x, y in examples
    ]

    def listwise(w: Tensor) -> Tensor:
        losses = [-(y * torch.log_softmax(x @ w, 0)).sum() for x, y in data]
        return torch.stack(losses).mean() + penalty * w.square().sum()

    direction = _minimise(listwise, torch.zeros(len(used), dtype=torch.float64))
    sums = torch.cat([x @ direction for x, _ in data])
    labels = torch.cat([(y > 0).double() for _, y in data])

    def logistic(line: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(
            line[0].exp() * sums + line[1], labels
        )

    start = torch.stack([torch.zeros_like(sums[0]), -sums.max()])
    line = _minimise(logistic, start)
    scale, bias = float(line[0].exp()), float(line[1])
    fitted: dict[str, float] = dict.fromkeys(FEATURES, 0.0)
    fitted.update({FEATURES[i]: float(w) * scale for i, w in zip(used, direction, strict=True)})
    return FusionWeights({**fitted, "exact": EXACT_WEIGHT}, bias)


def _minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """L-BFGS to convergence."""
    x = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([x], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(x)
        value.backward()
        return float(value.detach())

    optimizer.step(closure)
    return x.detach()


def fusion_json(weights: dict[bool, FusionWeights], note: str) -> str:
    """The text of fusion.json, from the weights with (True) and without (False) the memory."""
    content: dict[str, object] = {"note": note}
    for use_memory, name in ((True, "with_memory"), (False, "without_memory")):
        fitted = weights[use_memory]
        rounded = {n: round(w, 4) for n, w in fitted.weights.items() if n != "exact"}
        content[name] = {"weights": rounded, "bias": round(fitted.bias, 4)}
    return json.dumps(content, indent=1) + "\n"
