"""Which score stands in a cell of the results page, and how it is written."""

from collections.abc import Sequence

from titans.evaluation.records import Record, Score, Value


def percent(score: Score | None) -> str:
    """A proportion with its interval, in per cent."""
    if score is None:
        return "-"
    return f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def model_name(record: Record) -> str:
    """The model as a row names it."""
    threshold = record.model.settings.get("write_threshold")
    return f"`{record.model.name}`" + ("" if threshold is None else f", threshold {threshold}")


def by_model(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each model, in their order."""
    names = dict.fromkeys(map(model_name, records))
    return {name: [r for r in records if model_name(r) == name] for name in names}


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
