"""Results as typed records: what was measured, how often, how surely, on which model and code.

A record is one task on one model. It is written as JSON and holds no path of the machine it was
made on: files are named by their last part and the hash of their content.
"""

import dataclasses
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from titans.errors import DataError
from titans.files import read_text, write_text

Value = str | int | float | bool | None
FORMAT_VERSION = 1
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
    """Length in the model's own tokens, where there is one."""
    detail: dict[str, Value] = field(default_factory=dict)
    """What else tells this number from its neighbours: depth, segment, phase."""

    def matches(self, metric: str, length: int | None = None, **detail: Value) -> bool:
        """Whether this is the number asked for; details that are not named are free."""
        return (
            self.metric == metric
            and (length is None or self.length == length)
            and all(self.detail.get(name) == value for name, value in detail.items())
        )


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
    """The sweep whose row this is; empty for a record that stands alone."""

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


def accuracy_score(
    outcomes: Sequence[float],
    *,
    metric: str = "accuracy",
    length: int | None = None,
    detail: Mapping[str, Value] | None = None,
) -> Score:
    """Mean of outcomes within 0..1 with Wilson's interval.

    Where an outcome is itself a mean (the queries of one example), the interval is too wide
    rather than too narrow: no distribution on 0..1 of that mean varies more.
    """
    mean = math.fsum(outcomes) / len(outcomes)
    low, high = wilson_interval(mean, len(outcomes))
    return Score(
        metric=metric,
        value=mean,
        low=low,
        high=high,
        samples=len(outcomes),
        length=length,
        detail=dict(detail or {}),
    )


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
    return Score(
        metric=metric,
        value=mean,
        low=mean - half,
        high=mean + half,
        samples=len(outcomes),
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


def describe_path(path: str | Path | None) -> str | None:
    """A file or folder as its own name and the hash of what it holds, without where it lies."""
    if path is None:
        return None
    place = Path(path)
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    return f"{place.name}@{digest_files(file for file in files if file.is_file())}"


def digest_files(files: Iterable[Path]) -> str:
    """A short hash of the names and contents of some files."""
    state = hashlib.sha256()
    for file in files:
        state.update(file.name.encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                state.update(block)
    return state.hexdigest()[:12]


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
