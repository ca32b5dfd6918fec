"""The benchmarks by name: one line each. Nothing heavy is imported before one is chosen."""

import importlib
from collections.abc import Mapping

from titans.errors import ConfigError
from titans.evaluation.lengths import parse_length
from titans.settings import build
from titans.tasks.task import Task

TASKS: dict[str, tuple[str, str]] = {
    "s-niah": ("titans.tasks.niah:SNiah", "needles in a haystack of text (pk, n, w)"),
    "needle": ("titans.tasks.needle:Needle", "needles of tokens in noise"),
    "mqar": ("titans.tasks.mqar:Mqar", "multi-query associative recall (a, b, forgetting)"),
    "babilong": ("titans.tasks.babilong:Babilong", "bAbI questions scattered through books"),
    "permutations": ("titans.tasks.permutations:Permutations", "state tracking, S3 and S5"),
    "lm": ("titans.evaluation.lm:LanguageModelling", "bits per byte and perplexity by context"),
    "throughput": (
        "titans.evaluation.throughput:Throughput",
        "tokens per second: train, prefill, decode; the memory's share",
    ),
    "locomo": ("titans.evaluation.locomo:Locomo", "questions about long conversations (recall)"),
    "chats": (
        "titans.evaluation.chats:Chats",
        "made-up chats: people, an assistant, updates, languages (recall)",
    ),
}
"""Task name -> where its class is, and one line of help."""


def load_task(name: str) -> type[Task]:
    """The class of a task: a frozen dataclass of its options."""
    if name not in TASKS:
        raise ConfigError(f"no benchmark named {name!r}; there are {', '.join(TASKS)}")
    module, _, attribute = TASKS[name][0].partition(":")
    return getattr(importlib.import_module(module), attribute)


def build_task(name: str, options: Mapping[str, object]) -> Task:
    """A task with the given options, as a sweep file or a command line has them.

    Lengths may be written `2k,16k`. Unknown options and values that cannot be meant are refused.
    """
    given = dict(options)
    if "lengths" in given:
        value = given["lengths"]
        parts = value if isinstance(value, (list, tuple)) else str(value).split(",")
        given["lengths"] = [_length(part) for part in parts]
    return build(load_task(name), given)


def _length(value: object) -> int:
    try:
        return parse_length(str(value))
    except ValueError as error:
        raise ConfigError(f"lengths: {error}") from None
