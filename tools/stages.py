"""The runs in which a shipped checkpoint was trained: configuration and cost of each."""

from pathlib import Path
from typing import Any, NamedTuple

from titans.errors import DataError
from titans.settings import read_yaml
from titans.training.log import Trained, read_training

CONFIG_NAME, LOG_NAME = "config.yaml", "log.jsonl"


class Stage(NamedTuple):
    """One run of a training in several."""

    config: dict[str, Any]
    trained: Trained

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The options of every task that it was trained on."""
        task = self.config["data"].get("task") or {}
        return [{**task, **part} for part in self.config["data"].get("mixture") or [{}]]

    @property
    def lengths(self) -> set[int]:
        """Lengths of the sequences it was trained on."""
        return {int(part["length"]) for part in self.parts if "length" in part}

    @property
    def longest(self) -> int:
        """The longest text it came to: not what its curriculum planned for later steps."""
        begun = [part for part in self.parts if part.get("from_step", 0) <= self.trained.steps]
        lengths = [int(part["length"]) for part in begun if "length" in part]
        return max(lengths) if lengths else int(self.config["data"]["sequence_len"])

    @property
    def kinds(self) -> set[str]:
        """Which of a family of tasks it was trained on: qa1, pk."""
        return {str(part[key]) for part in self.parts for key in ("name", "kind") if key in part}

    @property
    def texts(self) -> set[str]:
        """The texts it was trained on: its corpus, and bAbI's files where it has them."""
        data = self.config["data"]
        found = [data.get("path"), data.get("dataset"), *(p.get("babi_path") for p in self.parts)]
        return {str(text) for text in found if text}


def read_stages(folder: Path) -> list[Stage]:
    """All runs of a shipped checkpoint; the last one is in the folder itself."""
    earlier = sorted(folder.glob("stage-*"), key=lambda stage: int(stage.name.rpartition("-")[2]))
    return [read_stage(stage) for stage in (*earlier, folder)]


def read_stage(run: Path) -> Stage:
    """A run's configuration and what its training took."""
    config = read_yaml(run / CONFIG_NAME)
    trained = read_training(run / LOG_NAME)
    if trained is None:
        raise DataError(f"{run / LOG_NAME} has no training step: a card could not state the cost")
    return Stage(config, trained)
