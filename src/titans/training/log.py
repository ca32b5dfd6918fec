"""The log of a run: one JSON object per line, and TensorBoard beside it unless switched off.

A resumed run cuts the log back to its checkpoint, so the file reads as if nothing had happened.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, cast

from titans.errors import DataError
from titans.files import is_out_of_space, read_text, write_text
from titans.models.checkpoint import stage_folders
from titans.training.config import LogConfig

LOG_NAME = "log.jsonl"
TIMES = ("seconds", "tokens_per_second", "data_wait")
"""Fields that depend on the clock: two runs of one configuration agree in all others."""


class Record(dict[str, object]):
    """One line of the log: `kind` (train, held_out, sample, event, warning), `step` and values."""


class _Sink(Protocol):
    def write(self, record: Mapping[str, object]) -> None: ...
    def close(self) -> None: ...


class RunLog:
    """Writes records to every place that wants them."""

    def __init__(self, run: Path, config: LogConfig, *, resume_step: int) -> None:
        run.mkdir(parents=True, exist_ok=True)
        self.path = run / LOG_NAME
        self._sinks: list[_Sink] = []
        if config.tensorboard:
            self._sinks.append(_TensorBoard(run / "tensorboard", resume_step))
        _cut_back(self.path, resume_step)
        self._file = self.path.open("a")

    def write(self, kind: str, step: int, values: Mapping[str, object]) -> Record:
        """Add one record. Numbers that are not finite are written as null."""
        record = Record(kind=kind, step=step, **values)
        plain = {key: _finite(value) for key, value in record.items()}
        try:
            self._file.write(json.dumps(plain) + "\n")
            self._file.flush()
        except OSError as error:
            if is_out_of_space(error):
                raise DataError(f"{self.path}: the disk is full, the log cannot go on") from error
            raise
        for sink in self._sinks:
            sink.write(record)
        return record

    def close(self) -> None:
        """Flush and close everything."""
        self._file.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_log(run: str | Path) -> list[Record]:
    """The records of a run (its folder, or the log file itself).

    Those of a training in stages follow each other, as if its steps were counted through.
    """
    path = Path(run)
    if stages := stage_folders(path):
        return _joined([read_log(stage) for stage in stages if (stage / LOG_NAME).is_file()])
    path = path / LOG_NAME if path.is_dir() else path
    if not path.is_file():
        raise DataError(f"{path}: no such log; give the folder of a run (the `out` of its config)")
    records = []
    for line in read_text(path).splitlines():
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            # A killed process may leave half of its last line.
            continue
        if isinstance(values, dict):
            records.append(Record(values))
    return records


class Trained(NamedTuple):
    """What a training came to."""

    steps: int
    tokens: int
    seconds: float


def read_training(run: str | Path) -> Trained | None:
    """Steps, tokens and seconds of a run; None without a log, or before its first line."""
    path = Path(run)
    if not (path / LOG_NAME if path.is_dir() else path).is_file():
        return None
    train: list[dict[str, Any]] = [line for line in read_log(path) if line.get("kind") == "train"]
    if not train:
        return None
    last = train[-1]
    return Trained(last["step"], last["tokens"], sum(line["seconds"] for line in train))


def _joined(logs: list[list[Record]]) -> list[Record]:
    joined: list[Record] = []
    before = 0
    for log in logs:
        steps = [before + cast(int, record["step"]) for record in log]
        joined += [Record(record, step=step) for record, step in zip(log, steps, strict=True)]
        before = max(steps, default=before)
    return joined


def _cut_back(path: Path, step: int) -> None:
    """Keep the records up to `step`."""
    if path.is_file():
        kept = [r for r in read_log(path) if isinstance(s := r.get("step"), int) and s <= step]
        kept = kept if step else []
        write_text(path, "".join(json.dumps(r) + "\n" for r in kept))


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _TensorBoard:
    def __init__(self, folder: Path, resume_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = resume_step + 1 if resume_step else None
        self.writer = SummaryWriter(str(folder), purge_step=purge)

    def write(self, record: Mapping[str, object]) -> None:
        step = record["step"]
        for name, value in record.items():
            if name in ("kind", "step"):
                continue
            if isinstance(value, (int, float)):
                self.writer.add_scalar(f"{record['kind']}/{name}", value, step)
            elif isinstance(value, str):
                self.writer.add_text(f"{record['kind']}/{name}", value, step)

    def close(self) -> None:
        self.writer.close()
