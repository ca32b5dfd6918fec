"""Small records for tests of the results page."""

import dataclasses
from collections.abc import Mapping

from evaluation.subjects import CARD
from titans.evaluation.records import Record, Score, Value, accuracy_score, mean_score


def record(task: str, scores: list[Score], **options: object) -> Record:
    return Record(
        task=task,
        model=CARD,
        options=options,
        seed=1,
        scores=tuple(scores),
        seconds=2,
        commit="abc",
        version="0",
        machine="m",
        command=f"titans eval {task}",
    )


def named(found: Record, name: str, **settings: object) -> Record:
    """The same record of another model."""
    model = dataclasses.replace(found.model, name=name, settings=settings)
    return dataclasses.replace(found, model=model)


def accuracies(task: str, by_length: Mapping[int, float], /, **detail: Value) -> Record:
    return record(
        task, [accuracy_score([v], length=n, detail=detail) for n, v in by_length.items()]
    )


def rows_of(section: str) -> list[list[str]]:
    """The cells of our rows."""
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def speeds(by_length: Mapping[int, float], /, **detail: Value) -> Record:
    return record(
        "throughput",
        [
            mean_score([v], "tokens_per_second", length=n, detail=detail)
            for n, v in by_length.items()
        ],
    )
