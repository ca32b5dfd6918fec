"""A number with its 95 % interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = str | int | float | bool | None
CONFIDENCE_Z = 1.959964
"""Standard deviations of a two-sided 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number with its 95 % interval."""

    metric: str
    """What is measured: accuracy, bits_per_byte, tokens_per_second, ..."""
    value: float
    low: float
    high: float
    samples: int
    """Independent samples behind the value."""
    length: int | None = None
    """Length in the model's own tokens, if there is one."""
    detail: dict[str, Value] = field(default_factory=dict)
    """What else distinguishes this number from its neighbours: depth, segment, phase."""

    def matches(self, metric: str, length: int | None = None, **detail: Value) -> bool:
        """Whether this is the number asked for; details that are not named are free."""
        return (
            self.metric == metric
            and (length is None or self.length == length)
            and all(self.detail.get(name) == value for name, value in detail.items())
        )


def accuracy_score(
    outcomes: Sequence[float],
    *,
    metric: str = "accuracy",
    length: int | None = None,
    detail: Mapping[str, Value] | None = None,
) -> Score:
    """Mean of outcomes within 0..1 with Wilson's interval.

    If an outcome is itself a mean (the queries of one example), the interval is too wide rather
    than too narrow: no distribution on 0..1 of that mean varies more.
    """
    mean = math.fsum(outcomes) / len(outcomes)
    interval = wilson_interval(mean, len(outcomes))
    return _score(metric, mean, interval, len(outcomes), length, detail)


def mean_score(
    outcomes: Sequence[float],
    metric: str,
    *,
    length: int | None = None,
    detail: Mapping[str, Value] | None = None,
) -> Score:
    """Mean of any numbers with the normal interval of a mean."""
    mean = math.fsum(outcomes) / len(outcomes)
    half = normal_half_width(outcomes)
    return _score(metric, mean, (mean - half, mean + half), len(outcomes), length, detail)


def _score(
    metric: str,
    value: float,
    interval: tuple[float, float],
    samples: int,
    length: int | None,
    detail: Mapping[str, Value] | None,
) -> Score:
    return Score(
        metric=metric,
        value=value,
        low=interval[0],
        high=interval[1],
        samples=samples,
        length=length,
        detail=dict(detail or {}),
    )


def wilson_interval(mean: float, samples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; never empty, also at 0 and 1."""
    if samples < 1 or not 0 <= mean <= 1:
        raise ValueError(f"a proportion within 0..1 of at least one sample; got {mean}, {samples}")
    square = CONFIDENCE_Z**2 / samples
    centre = (mean + square / 2) / (1 + square)
    spread = mean * (1 - mean) / samples + CONFIDENCE_Z**2 / (4 * samples**2)
    half = CONFIDENCE_Z * math.sqrt(spread) / (1 + square)
    return max(0.0, min(centre - half, mean)), min(1.0, max(centre + half, mean))


def normal_half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean; 0 for a single value, whose spread is unknown."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return CONFIDENCE_Z * math.sqrt(variance / len(values))
