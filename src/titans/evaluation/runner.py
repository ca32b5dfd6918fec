"""Run a task on a subject: cell by cell, with a progress bar, able to go on where it stopped.

While the task runs, a journal beside the record (`.partial.jsonl`) has one line per measured
sample; it is removed once the record is whole. A journal of another model, of other settings or
options is refused, unless it holds no sample yet.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from titans.errors import DataError
from titans.evaluation.model import ModelSubject
from titans.evaluation.record import ModelCard, Record, machine_name
from titans.files import (
    append_text,
    package_version,
    parse_json,
    read_text,
    source_commit,
    write_text,
)
from titans.tasks.task import Cell, Outcome, Task


class Stopped(KeyboardInterrupt):
    """The user stopped a task; what it measured so far is kept."""

    def __init__(self, record: Record, journal: Path | None) -> None:
        super().__init__()
        self.record, self.journal = record, journal


def run_task(
    task: Task,
    subject: Any,
    card: ModelCard,
    *,
    seed: int = 42,
    path: str | Path | None = None,
    folder: Path | None = None,
    command: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> Record:
    """Measure every cell and return the record.

    Args:
        path: where the record is saved and, while the task runs, its journal beside it.
        folder: without a path, the record gets a name of its own in this folder.
        say: told how long the task takes, once its first samples are measured.
    """
    task = task.bind(subject)
    cells = task.cells()
    # Cells are measured cheapest first: the longest would otherwise be refused after all others.
    for length in sorted({cell.length for cell in cells}):
        subject.check_length(length)
    header = {
        "task": task.name,
        "digest": card.digest,
        "settings": card.settings,
        "seed": seed,
        "options": task.options(),
    }
    if path is None and folder is not None:
        asked = json.dumps([header, [cell.key for cell in cells]])
        digest = hashlib.sha256(asked.encode()).hexdigest()[:8]
        path = folder / f"{task.name}-{card.name.replace('/', '-')}-{digest}.json"
    journal = Journal(Path(path) if path else None, header)

    def record() -> Record:
        measured = [(cell, journal.outcomes(cell)) for cell in cells]
        return Record(
            task=task.name,
            model=card,
            options=task.options(),
            seed=seed,
            scores=tuple(s for cell, known in measured if known for s in task.scores(cell, known)),
            seconds=round(journal.seconds, 1),
            commit=source_commit(),
            version=package_version() or "",
            machine=machine_name(),
            command=command,
        )

    try:
        _fill(task, subject, cells, seed, journal, say)
    except KeyboardInterrupt:
        raise Stopped(record(), journal.file) from None
    whole = record()
    if path:
        whole.save(path)
        journal.remove()
        say(f"wrote {path}")
    return whole


def _fill(
    task: Task,
    subject: Any,
    cells: Sequence[Cell],
    seed: int,
    journal: "Journal",
    say: Callable[[str], None],
) -> None:
    """Measure what the journal lacks."""
    total = sum(cell.cost * cell.samples for cell in cells)
    is_new = True
    unit = task.unit
    with tqdm(total=total, unit=unit, unit_scale=True, file=sys.stderr, desc=task.name) as bar:
        for cell in cells:
            bar.set_postfix_str(cell.key)
            for outcomes, seconds in _missing(task, subject, cell, seed, journal, bar):
                journal.add(cell, outcomes, seconds)
                expected = seconds * (total - bar.n) / (cell.cost * len(outcomes))
                if is_new and bar.n < total:
                    bar.clear()
                    say(_forecast(expected, total - bar.n, unit, journal.file))
                is_new = False


def _forecast(seconds: float, left: float, unit: str, journal: Path | None) -> str:
    time_left = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    kept = "" if journal is None else f"; stop at any time: samples are kept in {journal}"
    return f"about {time_left} for {left:,.0f} {unit}{kept}"


def _missing(
    task: Task, subject: Any, cell: Cell, seed: int, journal: "Journal", bar: tqdm
) -> Iterator[tuple[dict[int, Outcome], float]]:
    """Measure the samples that the journal lacks, a batch at a time."""
    known = journal.known(cell)
    bar.update(cell.cost * len(known))
    todo = [sample for sample in range(cell.samples) if sample not in known]
    for start in range(0, len(todo), cell.batch_size):
        samples = todo[start : start + cell.batch_size]
        began = time.perf_counter()
        with _shown(subject, bar, cell.cost * len(samples)):
            outcomes = task.measure(subject, cell, seed, samples)
        yield dict(zip(samples, outcomes, strict=True)), time.perf_counter() - began


@contextmanager
def _shown(subject: Any, bar: tqdm, cost: int) -> Iterator[None]:
    """Move the bar while a model reads; what it did not report, such as padding, at the end."""
    left = cost

    def move(tokens: int) -> None:
        nonlocal left
        tokens = min(tokens, left)
        left -= tokens
        bar.update(tokens)

    if isinstance(subject, ModelSubject):
        subject.on_read = move
    yield
    bar.update(left)


class Journal:
    """Outcomes so far, in memory and, with a path, on disk as they come."""

    def __init__(self, record: Path | None, header: dict[str, object]) -> None:
        self.file = record.with_name(record.name + ".partial.jsonl") if record else None
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self.seconds = 0.0
        if self.file is None:
            return
        if not (self.file.exists() and self._read(header)):
            write_text(self.file, json.dumps(header) + "\n")

    def known(self, cell: Cell) -> dict[int, Outcome]:
        """Outcomes of a cell by number of the sample."""
        found = self._outcomes.get(cell.key, {})
        return {sample: outcome for sample, outcome in found.items() if sample < cell.samples}

    def outcomes(self, cell: Cell) -> list[Outcome]:
        """Outcomes of a cell in the order of its samples."""
        return [outcome for _, outcome in sorted(self.known(cell).items())]

    def add(self, cell: Cell, outcomes: dict[int, Outcome], seconds: float) -> None:
        """Keep some outcomes."""
        self._outcomes.setdefault(cell.key, {}).update(outcomes)
        self.seconds += seconds
        if self.file is None:
            return
        share = seconds / len(outcomes)
        lines = [
            json.dumps({"cell": cell.key, "sample": n, "seconds": share, "outcome": outcome}) + "\n"
            for n, outcome in outcomes.items()
        ]
        append_text(self.file, "".join(lines))

    def remove(self) -> None:
        """The record is whole: the journal has done its work."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    def _read(self, header: dict[str, object]) -> bool:
        """Take in what the file holds; False if that is no sample."""
        assert self.file is not None, "only called with a file"
        text = read_text(self.file)
        lines = text.splitlines()
        if len(lines) < 2:
            # A run that failed before its first sample (a wrong path) must not block the next one.
            return False
        if parse_json(lines[0], f"{self.file} line 1") != json.loads(json.dumps(header)):
            raise DataError(
                f"{self.file} belongs to another run (model, seed or options differ): "
                "finish that one, choose another file, or delete it"
            )
        for line in lines[1:]:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                # The last line of a run that was killed while it wrote.
                continue
            self._outcomes.setdefault(entry["cell"], {})[entry["sample"]] = entry["outcome"]
            self.seconds += entry["seconds"]
        if not text.endswith("\n"):
            append_text(self.file, "\n")
        return True
