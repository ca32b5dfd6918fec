"""What a line of the targets table is, and how a verdict follows from its parts."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from titans.evaluation.records import Record

MET, PARTLY, MISSED, REPORTED, ABSENT = "met", "partly", "missed", "reported", "no record"
VARIANTS = ("lmm", "mac", "mag", "mal")


class Target(NamedTuple):
    """One line of the table."""

    text: str
    measured: str
    verdict: str


def verdict(parts: Iterable[bool | None]) -> str:
    """Met, partly or missed, by which parts are reached; None is a part without a record."""
    known = list(parts)
    reached = sum(part is True for part in known)
    if all(part is None for part in known):
        return ABSENT
    if reached == len(known):
        return MET
    return f"{PARTLY}, {reached} of {len(known)}" if reached else MISSED


def is_titans(record: Record) -> bool:
    """Whether it is a model of ours, and not the baseline of a published rule or of attention."""
    rule = record.model.settings.get("memory_rule", "titans")
    return record.model.variant in VARIANTS and rule == "titans"


def in_percent(value: float) -> str:
    """A proportion in per cent, without its interval."""
    return f"{100 * value:.1f}"


def named(values: Mapping[str, str]) -> str:
    """Values behind the names of their models."""
    return ", ".join(f"`{name}` {value}" for name, value in values.items())
