"""Ask the records for numbers: `find` chooses scores, `values` makes one number of each model.

A fact of a score is looked up in the score, its detail, the task's options and the model's
settings, in this order; `FACTS` has those that are derived.
"""

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from titans.evaluation.record import Record, Score
from titans.models.upgrade import is_flat, upgrade_names

KINDS = {
    "lmm": "LMM",
    "mac": "MAC",
    "mag": "MAG",
    "mal": "MAL",
    "ttt": "TTT",
    "delta": "delta rule",
    "gated_delta": "gated delta rule",
    "swa": "sliding window",
    "transformer": "Transformer",
    "kda": "Kimi Delta Attention",
}
"""What a model is -> its name on the page: a variant, or the published rule of its memory."""
SWEEP_KINDS = {
    **{kind: kind for kind in KINDS},
    "full": "lmm",
    "delta-rule": "delta",
    "gated-delta-rule": "gated_delta",
    "kimi-delta-attention": "kda",
    "sliding-window": "swa",
    "sliding-window-with-convolution": "swa",
    "transformer-with-convolution": "transformer",
}
"""Rows of sweeps that are a whole model and no ablation."""
LOWER_IS_BETTER = ("bits_per_byte", "perplexity", "state_bytes")


class Number(NamedTuple):
    """A score and the record that it is in."""

    record: Record
    score: Score


class Value(NamedTuple):
    """One number of a model: of a single record, or the mean over a sweep's seeds."""

    model: str
    mean: float
    low: float
    high: float
    spread: float
    """Standard deviation over the seeds; 0 where there is one."""
    seeds: int
    samples: int
    numbers: tuple[Number, ...]


def all_numbers(records: Iterable[Record]) -> list[Number]:
    """Every score but those of maps of depth and length, which have a picture."""
    return [
        Number(record, score)
        for record in records
        for score in record.scores
        if not ("kind" in score.detail and "depth" in score.detail)
    ]


def row_name(record: Record) -> str:
    """The row of a sweep that a record belongs to, whatever its seed; else the model's name."""
    return re.sub(r"-seed\d+$", "", record.model.name)


def kind_of(record: Record) -> str | None:
    """A key of `KINDS`; None for ablations and other rows that are not a whole model."""
    if record.sweep:
        return SWEEP_KINDS.get(row_name(record))
    rule = settings_of(record).get("memory.rule", "chunk")
    is_published = rule in KINDS and record.model.variant not in ("swa", "transformer")
    return str(rule) if is_published else record.model.variant


def settings_of(record: Record) -> dict[str, object]:
    """A model's settings under the names of today, those of its memory as `memory.depth`."""
    settings = dict(record.model.settings)
    if is_flat(settings):
        settings = upgrade_names(settings)
    memory = cast("dict[str, object]", settings.pop("memory", {}))
    return {**settings, **{f"memory.{name}": value for name, value in memory.items()}}


def plain(option: object) -> object:
    """An option of a task; a file without the hash of its content."""
    return option.split("@")[0] if isinstance(option, str) else option


FACTS: dict[str, Callable[[Number], object]] = {
    "kind_of_model": lambda n: kind_of(n.record),
    "model": lambda n: n.record.model.name,
    "row": lambda n: row_name(n.record),
    "sweep": lambda n: n.record.sweep,
    "task": lambda n: n.record.task,
    "metric": lambda n: n.score.metric,
    "length": lambda n: n.score.length,
    "question": lambda n: n.score.detail.get("task"),
}


def fact(number: Number, name: str) -> object:
    """What a record says about one of its scores; None where it says nothing."""
    if name in FACTS:
        return FACTS[name](number)
    record, score = number
    for place in (score.detail, record.options, settings_of(record)):
        if name in place:
            return plain(place[name])
    return None


def find(numbers: Iterable[Number], where: Mapping[str, Any]) -> list[Number]:
    """The numbers whose facts are as asked; a list names several possibilities.

    `samples` asks for at least so many. Without `sweep`, records of sweeps are left out.
    """
    asked = {"sweep": "", "metric": "accuracy", **where}
    least = asked.pop("samples", 0)
    choices = {name: v if isinstance(v, list) else [v] for name, v in asked.items()}
    return [
        number
        for number in numbers
        if number.score.samples >= least
        and all(fact(number, name) in wanted for name, wanted in choices.items())
    ]


def summary(numbers: Sequence[Number]) -> Value:
    """Numbers of one model as one: a mean over the cells of each record, then over records."""
    by_record: dict[int, list[Number]] = {}
    for number in numbers:
        by_record.setdefault(id(number.record), []).append(number)
    means = [statistics.fmean(n.score.value for n in ours) for ours in by_record.values()]
    mean, first = statistics.fmean(means), numbers[0].score
    spread = statistics.stdev(means) if len(means) > 1 else 0.0
    low, high = mean - spread, mean + spread
    if len(numbers) == 1:
        low, high = first.low, first.high
    name = row_name(numbers[0].record)
    return Value(
        name,
        mean,
        low,
        high,
        spread,
        len(means),
        min(n.score.samples for n in numbers),
        (*numbers,),
    )


def values(numbers: Iterable[Number], where: Mapping[str, Any]) -> list[Value]:
    """A value of each model, best first.

    The seeds of a sweep's row are averaged. Of several records of a model on its own (it was asked
    in several texts) the worst counts.
    """
    found = find(numbers, where)
    sign = 1 if where.get("metric") in LOWER_IS_BETTER else -1
    by_model: dict[str, list[Number]] = {}
    for number in found:
        by_model.setdefault(row_name(number.record), []).append(number)
    out = []
    for ours in by_model.values():
        if ours[0].record.sweep:
            out.append(summary(ours))
            continue
        records = {id(n.record): n.record for n in ours}
        parts = [summary([n for n in ours if n.record is record]) for record in records.values()]
        out.append(max(parts, key=lambda part: sign * part.mean))
    return sorted(out, key=lambda value: sign * value.mean)


def best(numbers: Iterable[Number], where: Mapping[str, Any]) -> Value | None:
    """The best model's value, or None."""
    return next(iter(values(numbers, where)), None)
