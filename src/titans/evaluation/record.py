"""Results as typed records: what was measured, how often, how surely, on which model and code.

A record is one task on one model. It is written as JSON and holds no path of the machine it was
made on: files are named by their last part and the hash of their content.
"""

import dataclasses
import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from titans.errors import DataError
from titans.files import read_text, write_text
from titans.tasks.score import Score, Value

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Which model was measured."""

    name: str
    variant: str
    num_parameters: int
    vocab_size: int
    digest: str
    """Hash of the weights, so that a record cannot be taken for another training's."""
    settings: dict[str, object] = field(default_factory=dict)
    """The model's configuration, where it differs from the defaults."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One task on one model."""

    task: str
    model: ModelCard
    options: dict[str, object]
    """The task's options as they were given or defaulted."""
    seed: int
    scores: tuple[Score, ...]
    seconds: float
    """Time of the measurement, resumed parts included; `machine` says on how many threads."""
    commit: str | None
    version: str
    machine: str
    command: str = ""
    """How to make this record again."""
    sweep: str = ""
    """The sweep whose row this is; empty for a record by itself."""

    def find(self, metric: str, length: int | None = None, **detail: Value) -> Score | None:
        """The first score that matches."""
        found = (s for s in self.scores if s.matches(metric, length, **detail))
        return next(found, None)

    def to_json(self) -> str:
        """Readable JSON with a stable order."""
        content = {"format": FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "record") -> "Record":
        """The inverse of `to_json`."""
        try:
            content = json.loads(text)
            if content.pop("format") != FORMAT_VERSION:
                raise DataError(f"{source}: a record of another format; expected {FORMAT_VERSION}")
            content["model"] = ModelCard(**content["model"])
            content["scores"] = tuple(Score(**score) for score in content["scores"])
            return cls(**content)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DataError(f"{source} is not an evaluation record: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the record."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> "Record":
        """Read what `save` wrote."""
        return cls.from_json(read_text(path), str(path))


def load_records(folder: str | Path) -> list[Record]:
    """Every record under `folder`, in the order of their paths."""
    return [Record.load(path) for path in sorted(Path(folder).rglob("*.json"))]


def machine_name() -> str:
    """Processor, threads and cores: enough to read a timing, nothing that names the machine."""
    import torch

    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    threads = torch.get_num_threads()
    return f"{model}, {threads} thread{'s' * (threads > 1)} of {os.cpu_count()}"
