"""What the results page reads beside the records: sweep files and shipped checkpoints."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from titans.errors import ConfigError
from titans.evaluation.records import Record, load_records
from titans.evaluation.report_cells import file_name, row_name
from titans.evaluation.sweep_file import Row
from titans.evaluation.training_log import add_up
from titans.evaluation.training_stages import CONFIG_NAME, read_stages
from titans.training.config import RunConfig
from titans.training.config_file import load_config

VARIABLE = re.compile(r"\$\{(\w+)\}")


class Training(NamedTuple):
    """What the training of a shipped checkpoint took, all its stages together."""

    stages: int
    steps: int
    tokens: int
    minutes: float
    longest: int
    """Tokens of the longest text it was trained on."""
    kinds: tuple[str, ...] = ()
    """Which of a family of tasks it was trained on: pk, qa1."""


@dataclass(frozen=True)
class Sources:
    """The files of a repository; without a root, nothing is known beyond the records."""

    root: Path | None = None

    def training(self, record: Record) -> Training | None:
        """What the record's model was trained with; None unless the same weights are shipped."""
        folder = self.checkpoint(record.model.name)
        if folder is None or not (folder / CONFIG_NAME).is_file():
            return None
        if record.model.digest not in {r.model.digest for r in load_records(folder / "records")}:
            return None
        stages = read_stages(folder)
        total = add_up([stage.trained for stage in stages])
        longest = max(stage.longest for stage in stages)
        kinds = tuple(sorted({kind for stage in stages for kind in stage.kinds}))
        return Training(len(stages), total.steps, total.tokens, total.seconds / 60, longest, kinds)

    def checkpoint(self, model: str) -> Path | None:
        """The folder in which a model is shipped."""
        folder = self.root and self.root / "checkpoints" / model
        return folder if folder and folder.is_dir() else None

    def variables(self, record: Record) -> dict[str, str]:
        """What a sweep's file needs in the environment; `...` where the record does not tell."""
        file = self._sweep_file(record.command)
        if file is None:
            return {}
        options = {
            str(value): option
            for evaluation in _read(file)["evaluations"]
            for option, value in evaluation.get("options", {}).items()
        }
        names = dict.fromkeys(VARIABLE.findall(file.read_text(encoding="utf-8")))
        values = {name: record.options.get(options.get(name, "")) for name in names}
        return {name: "..." if v is None else file_name(v) for name, v in values.items()}

    def rows(self, command: str) -> list[str]:
        """The rows of a sweep's file as records name them, in the order of the file."""
        file = self._sweep_file(command)
        return [] if file is None else [*_rows(_read(file))]

    def planned_tokens(self, record: Record) -> int | None:
        """Steps x sequences x length of a sweep's row, by its files and command.

        None where lengths vary, where a number is a variable, or without such a row.
        """
        file = self._sweep_file(record.command)
        if file is None:
            return None
        tree = _read(file)
        row = _rows(tree).get(row_name(record))
        if row is None:
            return None
        given = re.findall(r"--set (\S+)", record.command)
        settings = [*tree.get("set", []), *given, *row.get("set", [])]
        try:
            return _tokens(load_config(file.parent / tree["base"], settings))
        except ConfigError:
            return None

    def _sweep_file(self, command: str) -> Path | None:
        named = re.match(r"titans sweep (\S+)", command)
        file = self.root and named and self.root / named[1]
        return file if file and file.is_file() else None


def _read(sweep: Path) -> dict[str, Any]:
    """A sweep's file. A variable is read as a word, its own name: braces would not be YAML."""
    return yaml.safe_load(VARIABLE.sub(r"\1", sweep.read_text(encoding="utf-8")))


def _rows(sweep: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of a sweep by their names in records, which are those of their jobs' folders."""
    return {Row(name=row["name"]).plain_name: row for row in sweep["rows"]}


def _tokens(config: RunConfig) -> int | None:
    """Tokens that the whole run reads, where each of its sequences has the same length."""
    if config.data.mixture:
        return None
    is_text = config.data.source == "text"
    length = config.data.sequence_len if is_text else config.data.task.get("length")
    if not isinstance(length, int | float):
        return None
    return config.train.steps * config.train.batch_size * int(length)
