"""Settings as people write them: YAML, `--set FIELD=VALUE`, and the frozen dataclasses they fill.

Every key and value is checked: an unknown key is an error that names the nearest valid one; so is
a value of the wrong type, NaN, infinity, or a number that is out of its field's range. The same
rules hold in every command.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from titans.errors import ConfigError
from titans.files import read_text

T = TypeVar("T")
Tree = dict[str, object]
"""A section as YAML gives it: plain values and further sections."""

# Ranges


@dataclasses.dataclass(frozen=True)
class Range:
    """What a number may be; `check_ranges` enforces it."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """`low` itself is excluded."""

    def problem(self, value: float) -> str:
        """What is wrong with `value`; empty if nothing is."""
        if not math.isfinite(value):
            return "must be a finite number"
        if value > self.low or (value == self.low and not self.above):
            if value <= self.high:
                return ""
            if self.low > -math.inf:
                return f"must be between {self.low:g} and {self.high:g}"
            return f"must be at most {self.high:g}"
        if self.high < math.inf:
            return f"must be between {self.low:g} and {self.high:g}"
        return f"must be above {self.low:g}" if self.above else f"must be at least {self.low:g}"


Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]


def check_ranges(config: object, where: str = "") -> None:
    """Raise on the first number of a dataclass that is out of its field's range, or not finite.

    Args:
        where: put before the field's name in the message: `train.`.
    """
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        _check_range(getattr(config, name), hint, f"{where}{name}")


def _check_range(value: object, hint: Any, name: str) -> None:
    if isinstance(value, tuple):
        for index, (part, inner) in enumerate(zip(value, _entries(hint, len(value)), strict=False)):
            _check_range(part, inner, f"{name}[{index}]")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    parts = typing.get_args(hint) if _is_union(hint) else (hint,)
    extras = [e for part in parts for e in getattr(part, "__metadata__", ())]
    wanted = next((e for e in extras if isinstance(e, Range)), Range())
    if problem := wanted.problem(value):
        raise ConfigError(f"{name} {problem}, got {value}")


def normalise(config: Any) -> None:
    """Check the type of every field of a frozen dataclass; a whole number becomes a float."""
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        object.__setattr__(config, name, convert(getattr(config, name), hint, name))


# Read


def read_yaml(path: str | Path) -> Tree:
    """A YAML file that holds a mapping."""
    tree = parse_yaml(read_text(path), str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected `section:` keys, found a {type(tree).__name__}")
    return tree


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text. Numbers such as 3e-4 are numbers; no key may occur twice."""
    import yaml

    try:
        return yaml.load(text, _loader())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}: not valid YAML: {reason}") from error


@cache
def _loader() -> type[Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe, without YAML 1.1's two traps."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise yaml.MarkedYAMLError(problem=f"{twice[0]} occurs twice{node.start_mark}")
            return super().construct_mapping(node, deep)

    number = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.[\d_]+)[eE][-+]?\d+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader


def apply_settings(tree: Tree, settings: Iterable[str]) -> Tree:
    """Set `--set` texts such as `data.task.length=128` in a tree, and return it."""
    for setting in settings:
        names, value = parse_setting(setting)
        node = tree
        for name in names[:-1]:
            below = node.setdefault(name, {})
            if not isinstance(below, dict):
                raise ConfigError(f"--set {'.'.join(names)}: {name} is a value, not a section")
            node = below
        node[names[-1]] = value
    return tree


def parse_setting(setting: str) -> tuple[list[str], Any]:
    """The names and the value of `section.key=value`. The value is YAML; none at all is null."""
    dotted, equals, text = setting.partition("=")
    names = dotted.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set takes FIELD=VALUE, such as train.steps=500; got {setting!r}")
    return names, parse_yaml(text, f"--set {dotted}") if text.strip() else None


# Write


def to_yaml(config: object) -> str:
    """A whole configuration, defaults included, as text that `read_yaml` and `build` take back."""
    import yaml

    return yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)


def to_plain(config: object) -> object:
    """Dataclasses, tuples and paths as dictionaries, lists and text."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, dict):
        return {key: to_plain(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_plain(value) for value in config]
    return str(config) if isinstance(config, Path) else config


# Check


def build(kind: type[T], tree: Mapping[str, object], where: str = "") -> T:
    """A frozen dataclass from plain values, every key and type checked.

    Args:
        where: put before names in messages: `train.`.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    check_keys(tree, [f.name for f in dataclasses.fields(kind)], where)  # type: ignore[arg-type]
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        is_needed = field.default is field.default_factory is dataclasses.MISSING
        if is_needed and field.name not in tree:
            raise ConfigError(f"{where}{field.name} is missing")
    values = {
        name: convert(value, hints[name], f"{where}{name}")
        for name, value in tree.items()
        if not (value is None and dataclasses.is_dataclass(hints[name]))
    }
    return kind(**values)


def check_keys(tree: Mapping[str, object], known: Iterable[str], where: str = "") -> None:
    """Raise on the first key that is not `known`, naming the nearest that is."""
    names = list(known)
    for key in tree:
        if key not in names:
            raise ConfigError(f"unknown key {where}{key}{nearest(str(key), names, where)}")


def nearest(key: str, names: Sequence[str], where: str = "") -> str:
    """`; did you mean ...?`, or the list of what there is."""
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {where}{close[0]}?"
    return f"; known: {', '.join(sorted(names))}"


def convert(value: object, hint: Any, name: str) -> Any:
    """A plain value as a field of type `hint` wants it, or a `ConfigError` that names the field."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return convert(value, hint.__origin__, name)
    if hint in (object, Any):
        return _finite(value, name)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is a section with keys of its own, got {value!r}")
        return build(hint, value, where=f"{name}.")  # type: ignore[arg-type]
    if _is_union(hint):
        return _convert_union(value, typing.get_args(hint), name)
    if origin is typing.Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            shown = ", ".join(map(str, allowed))
            raise ConfigError(f"{name} must be one of {shown}; got {value!r}")
        return value
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be a mapping of options, got {value!r}")
        inner = typing.get_args(hint)[1]
        return {str(key): convert(item, inner, f"{name}.{key}") for key, item in value.items()}
    if origin in (tuple, list):
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{name} must be a list, got {value!r}")
        parts = _entries(hint, len(value))
        if len(value) != len(parts):
            raise ConfigError(f"{name} must have {len(parts)} entries, got {value!r}")
        pairs = enumerate(zip(value, parts, strict=True))
        return origin(convert(v, part, f"{name}[{i}]") for i, (v, part) in pairs)
    return _convert_plain(value, hint, name)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _entries(hint: Any, count: int) -> tuple[Any, ...]:
    """The types of `count` entries of a tuple."""
    parts = typing.get_args(hint)
    repeated = typing.get_origin(hint) is list or parts[1:] == (Ellipsis,)
    return (parts[0],) * count if repeated else parts


def _convert_union(value: object, parts: tuple[Any, ...], name: str) -> Any:
    if value is None and type(None) in parts:
        return None
    wrong: ConfigError | None = None
    for part in parts:
        if part is not type(None):
            try:
                return convert(value, part, name)
            except ConfigError as error:
                wrong = wrong or error
    if value == "none" and type(None) in parts:
        return None
    assert wrong is not None, "a union has a part that is not None"
    raise wrong


def _convert_plain(value: object, hint: type, name: str) -> object:
    if hint is Path and isinstance(value, str) and value:
        return Path(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and is_number:
        return _finite(float(value), name)  # type: ignore[arg-type]
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ConfigError(f"{name} must be of type {hint.__name__}, got {value!r}")


def _finite(value: object, name: str) -> object:
    """The value, every number in it checked."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value}")
    if isinstance(value, Mapping):
        return {str(key): _finite(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item, f"{name}[{index}]") for index, item in enumerate(value)]
    return value
