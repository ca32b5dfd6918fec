"""Read a run's configuration: a YAML file, then `section.key=value` settings, fully checked.

An unknown key is an error that names the nearest valid one; so is a value of the wrong type.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import yaml

from titans.errors import ConfigError
from titans.training.config import RunConfig

T = TypeVar("T")


def load_config(path: str | Path, settings: Sequence[str] = ()) -> RunConfig:
    """The configuration in `path`, with `settings` such as `train.learning_rate=3e-4` on top."""
    path = Path(path)
    if not path.is_file():
        near = sorted(path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = f"; there are {', '.join(p.name for p in near)}" if near else ""
        raise ConfigError(f"{path}: no such configuration file{hint}")
    tree = read_yaml(path)
    for setting in settings:
        apply_setting(tree, setting)
    return build(RunConfig, tree)


def read_yaml(path: Path) -> dict[str, object]:
    """A YAML file that holds a mapping."""
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected `section:` keys, found a {type(tree).__name__}")
    return tree


def apply_setting(tree: dict[str, object], setting: str) -> None:
    """Set one dotted key in a tree of plain dictionaries: `data.task.length=128`."""
    dotted, equals, text = setting.partition("=")
    names = dotted.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set takes section.key=value, got {setting!r}")
    try:
        value = yaml.safe_load(text) if text.strip() else None
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {dotted}: {text!r} is not a value YAML can read") from error
    node = tree
    for name in names[:-1]:
        below = node.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"--set {dotted}: {name} is a value, not a section")
        node = below
    node[names[-1]] = value


def build(kind: type[T], tree: Mapping[str, object], where: str = "") -> T:
    """A frozen config class from plain values, every key and type checked."""
    hints = typing.get_type_hints(kind)
    check_keys(tree, hints, where)
    values = {
        name: _convert(value, hints[name], f"{where}{name}")
        for name, value in tree.items()
        if not (value is None and dataclasses.is_dataclass(hints[name]))
    }
    return kind(**values)


def check_keys(tree: Mapping[str, object], known: Iterable[str], where: str) -> None:
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
    return f"; the keys here are: {', '.join(sorted(names))}"


def to_yaml(config: RunConfig) -> str:
    """The whole configuration, defaults included, as a file that `load_config` reads back."""
    return yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)


def to_plain(config: object) -> object:
    """Dataclasses and tuples as dictionaries and lists."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, dict):
        return {key: to_plain(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_plain(value) for value in config]
    return config


def _convert(value: object, hint: typing.Any, name: str) -> object:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is a section with keys of its own, got {value!r}")
        return build(hint, value, where=f"{name}.")  # type: ignore[arg-type]
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return _convert(value, inner[0], name)
    if origin is typing.Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
        return value
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be a mapping of options, got {value!r}")
        return {str(key): _number_from_text(item) for key, item in value.items()}
    if origin is tuple:
        return _convert_tuple(value, typing.get_args(hint), name)
    return _convert_plain(value, hint, name)


def _convert_tuple(value: object, parts: tuple[typing.Any, ...], name: str) -> tuple[object, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name} must be a list, got {value!r}")
    if len(parts) == 2 and parts[1] is Ellipsis:
        return tuple(_convert(v, parts[0], f"{name}[{i}]") for i, v in enumerate(value))
    if len(value) != len(parts):
        raise ConfigError(f"{name} must have {len(parts)} entries, got {value!r}")
    pairs = zip(value, parts, strict=True)
    return tuple(_convert(v, part, f"{name}[{i}]") for i, (v, part) in enumerate(pairs))


def _convert_plain(value: object, hint: type, name: str) -> object:
    # YAML reads 3e-4 as text: it wants 3.0e-4. Nobody writes that.
    value = _number_from_text(value) if hint in (int, float) else value
    is_right = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    if is_right:
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and is_number:
        return float(value)  # type: ignore[arg-type]
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    raise ConfigError(f"{name} must be of type {hint.__name__}, got {value!r}")


def _number_from_text(value: object) -> object:
    if isinstance(value, list):
        return [_number_from_text(item) for item in value]
    if not isinstance(value, str) or not any(c.isdigit() for c in value):
        return value
    try:
        return float(value)
    except ValueError:
        return value
