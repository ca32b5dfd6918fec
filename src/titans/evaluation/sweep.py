"""Declared sweeps: a table of runs, trained and evaluated row by row under a time budget.

All rows run with the first seed before any runs with the second, in the order of the file, so the
most valuable numbers come first. What is finished is never done again; a run that was stopped goes
on. Training itself is handed in; so is whether rows can be trained and evaluations built.
"""

import dataclasses
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titans.errors import ConfigError, TitansError
from titans.evaluation.record import Record
from titans.files import read_json, read_text, write_text
from titans.settings import build, parse_yaml
from titans.training.log import read_training

DONE = "done.json"
"""Written in a job's folder once everything in it is finished."""
BEGUN = "begun.json"
"""Written in a job's folder when it is begun, and when it stops: its settings, the time it took."""
NOT_RESULTS = ("log.", "checkpoint.", "out=")
"""Settings that may change between two calls without changing a number."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    set: tuple[str, ...] = ()
    """Settings of the run on top of the base: `model.memory.depth=1`."""

    @property
    def plain_name(self) -> str:
        """The name as a part of a folder's."""
        return "".join(c if c.isalnum() else "-" for c in self.name.lower())


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A benchmark that every finished run goes through."""

    task: str
    options: dict[str, object] = field(default_factory=dict)
    """Options of the task, as in `titans eval`."""
    name: str = ""
    """Name of the record; the task's when empty."""
    settings: dict[str, object] = field(default_factory=dict)
    """Fields of the model's configuration to change for inference."""

    @property
    def record_name(self) -> str:
        """What its record is called."""
        return self.name or self.task


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A whole sweep."""

    name: str
    base: str
    """Configuration of a run, relative to the sweep file."""
    rows: tuple[Row, ...]
    evaluations: tuple[Evaluation, ...]
    seeds: tuple[int, ...] = (0,)
    set: tuple[str, ...] = ()
    """Settings that all rows share, on top of the base."""
    budget_minutes: float = 60.0
    """No job is begun that would probably end after this much time, over all calls."""
    match_parameters: str = ""
    """A setting such as model.intermediate_size that is changed until every row has the first
    row's number of parameters; empty: rows are taken as they are."""
    tolerance: float = 0.03
    """How far a row's number of parameters may be from the first row's."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row with one seed."""

    row: Row
    seed: int
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.row.plain_name}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One number of the finished table: mean and spread over seeds."""

    row: str
    evaluation: str
    metric: str
    length: int | None
    detail: dict[str, object]
    mean: float
    spread: float
    """Standard deviation over seeds; 0 with one seed."""
    seeds: int


Train = Callable[[Job, Path], None]
"""Train a job in a folder, going on from a checkpoint if there is one."""
Evaluate = Callable[[Job, Evaluation, Path, Path], Record]
"""(job, evaluation, folder, file of the record) -> the record."""


class JobFailedError(TitansError):
    """One job of a sweep cannot be finished; the others can."""


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep file; unknown keys are refused. `${NAME}` stands for an environment variable."""
    place = Path(path)
    text = os.path.expandvars(read_text(place))
    if missing := re.search(r"\$\{(\w+)\}", text):
        name = missing.group(1)
        raise ConfigError(f"{place} needs {name}: start with {name}=... titans sweep {place}")
    tree = parse_yaml(text, str(place))
    try:
        sweep = _read(tree)
        _check_names(sweep)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    return sweep


def _read(tree: object) -> Sweep:
    """The sweep that a YAML tree declares, every key and type checked."""
    given = _mapping(tree, Sweep, "a sweep")
    for name, kind in (("rows", Row), ("evaluations", Evaluation)):
        if not isinstance(given[name], list):
            raise ConfigError(f"{name} must be a list, got {given[name]!r}")
        for number, entry in enumerate(given[name]):
            _mapping(entry, kind, f"{name}[{number}]")
    return build(Sweep, given)


def _mapping(tree: object, kind: type, where: str) -> Mapping[str, Any]:
    """The tree as a mapping that has what a class needs."""
    fields = dataclasses.fields(kind)
    needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    if not isinstance(tree, dict):
        shown = ", ".join(f"{name}: ..." for name in needed)
        raise ConfigError(f"{where} must be written {{{shown}}}, got {tree!r}")
    for name in needed:
        if name not in tree:
            raise ConfigError(f"{where} lacks {name!r}")
    return tree


def _check_names(sweep: Sweep) -> None:
    """Refuse what would share a folder or a file: the second would pass for done."""
    if not sweep.rows or not sweep.seeds:
        raise ConfigError("a sweep needs at least one row and one seed")
    _distinct("rows need distinct names (of folders)", [row.plain_name for row in sweep.rows])
    _distinct("evaluations need distinct names", [e.record_name for e in sweep.evaluations])
    _distinct("seeds must be distinct", sweep.seeds)
    if min(sweep.seeds) < 0:
        raise ConfigError(f"seeds cannot be negative, got {min(sweep.seeds)}")


def _distinct(rule: str, values: Sequence[object]) -> None:
    if len(set(values)) != len(values):
        raise ConfigError(f"{rule}, got {', '.join(map(str, values))}")


def plan_jobs(sweep: Sweep, sized: Mapping[str, str] | None = None) -> list[Job]:
    """Every job, most valuable first.

    Args:
        sized: per row, the setting that gives it the first row's number of parameters.
    """
    return [
        Job(
            row=row,
            seed=seed,
            settings=(
                *sweep.set,
                *row.set,
                *([sized[row.name]] if sized and row.name in sized else []),
                f"seed={seed}",
            ),
        )
        for seed in sweep.seeds
        for row in sweep.rows
    ]


def choose_rows(jobs: Sequence[Job], names: Sequence[str]) -> list[Job]:
    """The jobs of the rows with these names, as they are written or as their folders have them."""
    wanted = {Row(name=name.strip()).plain_name for name in names}
    known = {job.row.plain_name for job in jobs}
    if unknown := sorted(wanted - known):
        raise ConfigError(
            f"the sweep has no row {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )
    return [job for job in jobs if job.row.plain_name in wanted]


def run_sweep(
    sweep: Sweep,
    jobs: Sequence[Job],
    out: Path,
    *,
    train: Train,
    evaluate: Evaluate,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Do what is not done yet while the budget lasts; tell whether everything is finished.

    A job that raises `JobFailedError` is done, too, without records: it is not tried again.
    """
    for job in jobs:
        _check_settings(job, out / job.name)
    spent = {job.name: seconds for job in jobs if (seconds := _spent(out / job.name)) is not None}
    for number, job in enumerate(jobs, start=1):
        if job.name in spent:
            continue
        used = sum(spent.values()) + sum(
            _begun(out / other.name).get("seconds", 0.0)
            for other in jobs
            if other.name not in spent
        )
        expected = max(spent.values(), default=0.0)
        if used + expected > 60 * sweep.budget_minutes:
            report(
                f"budget of {sweep.budget_minutes:g} min: {used / 60:.1f} used, the next job would "
                f"take about {expected / 60:.1f}; {len(jobs) - len(spent)} of {len(jobs)} not done"
            )
            return False
        report(f"job {number} of {len(jobs)}: {job.name}")
        began = clock()
        folder = out / job.name
        folder.mkdir(parents=True, exist_ok=True)
        before = _begun(folder).get("seconds", 0.0)
        _begin(job, folder, before)
        result: dict[str, object] = {}
        try:
            train(job, folder)
            for evaluation in sweep.evaluations:
                file = folder / f"{evaluation.record_name}.json"
                if not file.exists():
                    evaluate(job, evaluation, folder, file)
        except JobFailedError as error:
            result["failed"] = str(error)
            report(f"{job.name} failed, the sweep goes on: {error}")
        finally:
            _begin(job, folder, before + clock() - began)
        spent[job.name] = before + clock() - began
        write_text(folder / DONE, json.dumps({"seconds": spent[job.name], **result}))
    failed = [job.name for job in jobs if "failed" in _outcome(out / job.name)]
    if failed:
        report(f"{len(failed)} of {len(jobs)} jobs failed: {', '.join(failed)}")
    return True


def _begin(job: Job, folder: Path, seconds: float) -> None:
    content = {"settings": list(job.settings), "seconds": seconds}
    write_text(folder / BEGUN, json.dumps(content))


def _begun(folder: Path) -> dict[str, Any]:
    """What a job was begun with, and how long it has run; empty for one that was not."""
    file = folder / BEGUN
    return read_json(file) if file.is_file() else {}


def _check_settings(job: Job, folder: Path) -> None:
    """Refuse to go on in the folder of a job that has other settings: the table would mix them."""
    begun = _begun(folder).get("settings")
    if begun is None:
        return
    before, now = (
        [text for text in settings if not text.startswith(NOT_RESULTS)]
        for settings in (begun, job.settings)
    )
    if before != now:
        differing = sorted(set(before) ^ set(now)) or now
        raise ConfigError(
            f"{folder} was begun with other settings ({', '.join(differing)}): "
            "choose another --out, or give the same settings"
        )


def _outcome(folder: Path) -> dict[str, Any]:
    """How a job ended; empty for one that is not finished."""
    file = folder / DONE
    return read_json(file) if file.is_file() else {}


def _spent(folder: Path) -> float | None:
    """Seconds that a finished job took; None for one that is not finished."""
    return _outcome(folder).get("seconds")


def publish(sweep: Sweep, jobs: Sequence[Job], out: Path, target: Path, command: str) -> list[Path]:
    """Copy the records of finished jobs to `target`.

    They get the sweep's name and command, and among the model's settings what its training took.
    """
    files = []
    for job in jobs:
        trained = _training(out / job.name)
        for evaluation in sweep.evaluations:
            name = evaluation.record_name
            source = out / job.name / f"{name}.json"
            if (out / job.name / DONE).is_file() and source.is_file():
                found = Record.load(source)
                model = dataclasses.replace(
                    found.model, settings={**found.model.settings, **trained}
                )
                record = dataclasses.replace(found, model=model, sweep=sweep.name, command=command)
                files.append(target / f"{job.name}-{name}.json")
                record.save(files[-1])
    return files


def _training(folder: Path) -> dict[str, int | float]:
    """A job's training as a record states it; empty where its log is gone."""
    trained = read_training(folder)
    if trained is None:
        return {}
    return {
        "trained_steps": trained.steps,
        "trained_tokens": trained.tokens,
        "trained_seconds": round(trained.seconds, 3),
    }


def summarise(sweep: Sweep, jobs: Sequence[Job], out: Path) -> list[Entry]:
    """Mean and spread over the seeds that are finished, row by row."""
    entries: list[Entry] = []
    for row in sweep.rows:
        folders = [out / job.name for job in jobs if job.row == row]
        for evaluation in sweep.evaluations:
            name = evaluation.record_name
            done = [folder / f"{name}.json" for folder in folders if (folder / DONE).is_file()]
            found = [Record.load(file) for file in done if file.is_file()]
            entries += _entries(row.name, name, found)
    return entries


def _entries(row: str, evaluation: str, records: Sequence[Record]) -> list[Entry]:
    if not records:
        return []
    entries = []
    for score in records[0].scores:
        found = (r.find(score.metric, score.length, **score.detail) for r in records)
        values = [other.value for other in found if other is not None]
        entries.append(
            Entry(
                row=row,
                evaluation=evaluation,
                metric=score.metric,
                length=score.length,
                detail=dict(score.detail),
                mean=statistics.fmean(values),
                spread=statistics.stdev(values) if len(values) > 1 else 0.0,
                seeds=len(values),
            )
        )
    return entries


def match_size(count: Callable[[int], int], target: int, tolerance: float) -> int:
    """The size whose parameter count is nearest to `target`; `count` grows with the size."""
    low, high = 1, 2
    if count(low) > target * (1 + tolerance):
        raise ConfigError(
            f"even the smallest size has {count(low):,} parameters, more than {target:,}"
        )
    # A width of a network counts linearly: then the line through the first two sizes is right.
    guess = max(1, 1 + (target - count(1)) // max(1, count(2) - count(1)))
    if count(guess) <= target < count(guess + 1):
        low, high = guess, guess + 1
    while count(high) < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= target else (low, middle)
    best = min((low, high), key=lambda size: abs(count(size) - target))
    if abs(count(best) - target) > tolerance * target:
        raise ConfigError(
            f"no size comes within {tolerance:.0%} of {target:,} parameters; "
            f"the nearest has {count(best):,}"
        )
    return best
