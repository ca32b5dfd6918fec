"""Run a task on a subject: cell by cell, with a progress bar, able to go on where it stopped.

Beside the record lies a journal (`.partial.jsonl`) with one line per measured sample while the
task runs; it is removed once the record is whole. A journal of another model, of other settings or
options is refused, unless it holds no sample yet.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from titans.errors import DataError
from titans.evaluation.records import (
    ModelCard,
    Record,
    machine_name,
)
from titans.evaluation.subject import ModelSubject, Subject
from titans.evaluation.tasks import Cell, Outcome, Task, UnboundTask
from titans.files import append_text, package_version, read_text, source_commit, write_text


def run_task(
    task: Task | UnboundTask,
    subject: Subject,
    card: ModelCard,
    *,
    seed: int = 42,
    path: str | Path | None = None,
    command: str = "",
) -> Record:
    """Measure every cell and return the record; with a `path`, keep a journal and save it there."""
    if isinstance(task, UnboundTask):
        task = task.bind(subject)
    cells = task.cells()
    # Cells are measured cheapest first: the longest would otherwise be refused after all others.
    for length in sorted({cell.length for cell in cells if cell.length is not None}):
        subject.check_length(length)
    header = {
        "task": task.name,
        "digest": card.digest,
        "settings": card.settings,
        "seed": seed,
        "options": task.options(),
    }
    journal = Journal(Path(path) if path else None, header)
    total = sum(cell.cost * cell.samples for cell in cells)
    scores = []
    with tqdm(total=total, unit="tok", unit_scale=True, file=sys.stderr, desc=task.name) as bar:
        for cell in cells:
            bar.set_postfix_str(cell.key)
            for outcomes, seconds in _missing(task, subject, cell, seed, journal, bar):
                journal.add(cell, outcomes, seconds)
            scores += task.scores(cell, journal.outcomes(cell))
    record = Record(
        task=task.name,
        model=card,
        options=task.options(),
        seed=seed,
        scores=tuple(scores),
        seconds=round(journal.seconds, 1),
        commit=source_commit(),
        version=package_version() or "",
        machine=machine_name(),
        command=command,
    )
    if path:
        record.save(path)
        journal.remove()
    return record


def _missing(
    task: Task, subject: Subject, cell: Cell, seed: int, journal: "Journal", bar: tqdm
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
def _shown(subject: Subject, bar: tqdm, cost: int) -> Iterator[None]:
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
        self._file = record.with_name(record.name + ".partial.jsonl") if record else None
        self._outcomes: dict[str, dict[int, Outcome]] = {}
        self.seconds = 0.0
        if self._file is None:
            return
        if not (self._file.exists() and self._read(header)):
            write_text(self._file, json.dumps(header) + "\n")

    def known(self, cell: Cell) -> dict[int, Outcome]:
        """Outcomes of a cell by number of the sample."""
        found = self._outcomes.get(cell.key, {})
        return {sample: outcome for sample, outcome in found.items() if sample < cell.samples}

    def outcomes(self, cell: Cell) -> list[Outcome]:
        """Outcomes of a cell in the order of its samples."""
        known = self.known(cell)
        return [known[sample] for sample in range(cell.samples)]

    def add(self, cell: Cell, outcomes: dict[int, Outcome], seconds: float) -> None:
        """Keep some outcomes."""
        self._outcomes.setdefault(cell.key, {}).update(outcomes)
        self.seconds += seconds
        if self._file is None:
            return
        share = seconds / len(outcomes)
        lines = [
            json.dumps({"cell": cell.key, "sample": n, "seconds": share, "outcome": outcome}) + "\n"
            for n, outcome in outcomes.items()
        ]
        append_text(self._file, "".join(lines))

    def remove(self) -> None:
        """The record is whole: the journal has done its work."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _read(self, header: dict[str, object]) -> bool:
        """Take in what the file holds; False where that is no sample."""
        assert self._file is not None, "only called with a file"
        text = read_text(self._file)
        lines = text.splitlines()
        if len(lines) < 2:
            # A run that failed before its first sample (a wrong path) must not block the next one.
            return False
        if json.loads(lines[0]) != json.loads(json.dumps(header)):
            raise DataError(
                f"{self._file} belongs to another run (model, seed or options differ): "
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
            append_text(self._file, "\n")
        return True
