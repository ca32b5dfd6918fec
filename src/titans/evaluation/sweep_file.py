"""What a sweep file declares: a base configuration, rows (what each changes), seeds, evaluations.

The file's own form is checked here: its keys, their types, names that would collide. Whether rows
can be trained and evaluations built is checked by who runs them.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titans.errors import ConfigError
from titans.settings import build, parse_yaml


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    set: tuple[str, ...] = ()
    """Settings of the run on top of the base: `model.memory_depth=1`."""

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


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep file; unknown keys are refused. `${NAME}` stands for an environment variable."""
    place = Path(path)
    text = os.path.expandvars(place.read_text(encoding="utf-8"))
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
