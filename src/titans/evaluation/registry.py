"""The benchmarks by name. Nothing heavy is imported before one is chosen."""

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path

from titans.errors import ConfigError
from titans.evaluation.lengths import parse_length
from titans.settings import build

TASKS: dict[str, tuple[str, str]] = {
    "s-niah": ("titans.evaluation.s_niah:SNiah", "needles in a haystack of text (pk, n, w)"),
    "needle": ("titans.evaluation.needle:Needle", "needles of tokens in noise"),
    "mqar": ("titans.evaluation.mqar:Mqar", "multi-query associative recall (a, b, forgetting)"),
    "babilong": ("titans.evaluation.babilong:Babilong", "bAbI questions scattered through books"),
    "permutations": ("titans.evaluation.permutations:Permutations", "state tracking, S3 and S5"),
    "lm": ("titans.evaluation.lm:LanguageModelling", "bits per byte and perplexity by context"),
    "throughput": (
        "titans.evaluation.throughput:Throughput",
        "tokens per second: train, prefill, decode; the memory's share",
    ),
    "locomo": ("titans.evaluation.locomo:Locomo", "questions about long conversations (recall)"),
}
"""Task name -> where its class is, and one line of help."""

PATH_OPTIONS = ("data", "haystack", "words", "babi", "background", "text")
"""Options that name a file or a folder."""
LEAST = {"samples": 1, "depths": 1, "tail_bytes": 1, "answer_tokens": 1}
"""Smallest value of options that count something; a task's own default may be smaller."""


def load_task(name: str) -> type:
    """The class of a task: a frozen dataclass of its options."""
    if name not in TASKS:
        raise ConfigError(f"no benchmark named {name!r}; there are {', '.join(TASKS)}")
    module, _, attribute = TASKS[name][0].partition(":")
    return getattr(importlib.import_module(module), attribute)


def build_task(name: str, options: Mapping[str, object]) -> object:
    """A task with the given options; unknown ones and values that cannot be meant are refused."""
    kind = load_task(name)
    known = {field.name for field in dataclasses.fields(kind)}
    for option in options:
        if option not in known:
            raise ConfigError(
                f"--{option.replace('_', '-')} means nothing to {name}; its options are "
                + ", ".join(sorted(f"--{field.replace('_', '-')}" for field in known))
            )
    for field in dataclasses.fields(kind):
        is_needed = field.default is dataclasses.MISSING
        if is_needed and field.default_factory is dataclasses.MISSING and field.name not in options:
            raise ConfigError(f"{name} needs --{field.name.replace('_', '-')}")
        if field.name in options and options[field.name] != field.default:
            _check_value(field.name, options[field.name])
    return build(kind, options)


def _check_value(option: str, value: object) -> None:
    """Refuse a list that is empty or names something twice, and a count that is too small."""
    flag = f"--{option.replace('_', '-')}"
    if isinstance(value, tuple):
        twice = [part for part in dict.fromkeys(value) if value.count(part) > 1]
        if twice:
            raise ConfigError(f"{flag} names {twice[0]!r} more than once: it would be scored twice")
        if not value:
            raise ConfigError(f"{flag} is an empty list: name something, or leave it out")
    if option in LEAST and isinstance(value, int) and value < LEAST[option]:
        raise ConfigError(f"{flag} must be at least {LEAST[option]}, got {value}")


def convert_options(options: Mapping[str, object]) -> dict[str, object]:
    """Options from a YAML file as the tasks want them: lengths like 2k, lists, paths."""
    converted: dict[str, object] = {}
    for name, value in options.items():
        if name == "lengths":
            parts = value if isinstance(value, list) else str(value).split(",")
            converted[name] = tuple(_length(part) for part in parts)
        elif isinstance(value, list):
            converted[name] = tuple(value)
        elif name in PATH_OPTIONS and value is not None:
            converted[name] = Path(str(value))
        else:
            converted[name] = value
    return converted


def _length(value: object) -> int:
    try:
        return parse_length(str(value))
    except ValueError as error:
        raise ConfigError(f"lengths: {error}") from None
