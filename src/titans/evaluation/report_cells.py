"""Which score stands in a cell of the results page, and how it is written."""

import re
from collections.abc import Sequence

from titans.evaluation.records import Record, Score, Value

WITHOUT_MEMORY = ("transformer", "swa")
MATRIX_RULES = ("delta", "gated_delta")
"""Rules of a matrix, whatever depth a configuration has."""


def percent(score: Score | None) -> str:
    """A proportion with its interval, in per cent."""
    if score is None:
        return "-"
    return f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def with_interval(score: Score | None, style: str) -> str:
    """A number with its interval; without one where a single sample gives none."""
    if score is None:
        return "-"
    value, low, high = (format(number, style) for number in (score.value, score.low, score.high))
    return f"{value} [{low}, {high}]" if score.samples > 1 else value


def between(numbers: Sequence[int]) -> str:
    """The first and the last of some sorted numbers, or the only one."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def file_name(option: object) -> str:
    """A file of a record's options without the hash of its content."""
    return str(option).split("@")[0]


def model_name(record: Record) -> str:
    """The model as a row names it."""
    threshold = record.model.settings.get("write_threshold")
    return f"`{record.model.name}`" + ("" if threshold is None else f", threshold {threshold}")


def by_model(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each model, in their order."""
    names = dict.fromkeys(map(model_name, records))
    return {name: [r for r in records if model_name(r) == name] for name in names}


def row_name(record: Record) -> str:
    """The row of its sweep that a record belongs to, whatever its seed."""
    return re.sub(r"-seed\d+$", "", record.model.name)


def memory_depth(record: Record) -> str:
    """How many layers the memory has, by the record; `-` where it has none or does not tell."""
    settings = record.model.settings
    if record.model.variant in WITHOUT_MEMORY:
        return "-"
    if settings.get("memory_rule") in MATRIX_RULES:
        return "matrix"
    return str(settings.get("memory_depth", "-"))


def haystack_name(record: Record, kind: str) -> str:
    """What an S-NIAH needle lies in; passkeys lie in a noise that is always the same."""
    if kind == "pk":
        return "noise"
    each = ", each file" if record.options.get("each_file") else ""
    return f"`{file_name(record.options.get('haystack'))}`{each}"


def by_haystack(records: Sequence[Record], kind: str) -> dict[str, list[Record]]:
    """The records of each model on each haystack, which is named where a model has several."""
    chosen = [r for r in records if lengths_of([r], kind=kind, depth=None)]
    groups: dict[str, list[Record]] = {}
    for model, ours in by_model(chosen).items():
        places = dict.fromkeys(haystack_name(record, kind) for record in ours)
        for place in places:
            name = model if len(places) == 1 else f"{model}, on {place}"
            groups[name] = [r for r in ours if haystack_name(r, kind) == place]
    return groups


def lengths_of(records: Sequence[Record], metric: str = "accuracy", **detail: Value) -> list[int]:
    """The lengths at which any of the records has the metric."""
    return sorted(
        {
            s.length
            for r in records
            for s in r.scores
            if s.matches(metric, None, **detail) and s.length
        }
    )


def plain_score(record: Record, metric: str, length: int, **detail: str) -> Score | None:
    """The score of a cell that is not one of a depth map."""
    return record.find(metric, length, depth=None, **detail)


def first_score(records: Sequence[Record], metric: str, length: int, **detail: str) -> Score | None:
    """The score of a cell, from the first record of a model that has it."""
    found = (plain_score(record, metric, length, **detail) for record in records)
    return next((score for score in found if score is not None), None)
