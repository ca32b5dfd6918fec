"""Verdicts on the targets of `targets.yaml`, computed from the records: none is written by hand.

A target has parts; each asks whether a value of ours is at least a number (`least`), is better than
another value (`than`), or is the same everywhere (`constant`). `each` repeats a part with every
combination of its lists, which `$name` refers to.
"""

import itertools
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, NamedTuple

from results.query import KINDS, LOWER_IS_BETTER, Number, Value, best, fact, find

Part = Mapping[str, Any]


class Verdict(NamedTuple):
    """One row of the table."""

    target: str
    measured: str
    result: str


class Outcome(NamedTuple):
    """How one part came out."""

    is_met: bool
    is_unclear: bool
    shown: str


def judge(target: Mapping[str, Any], numbers: Sequence[Number]) -> Verdict:
    """Met when every part is, missed when none is, else how many of them are."""
    outcomes = [_judge(part, numbers) for part in _repeat(target["parts"])]
    met = sum(outcome.is_met for outcome in outcomes)
    unclear = sum(outcome.is_met and outcome.is_unclear for outcome in outcomes)
    result = "met" if met == len(outcomes) else "missed"
    if 0 < met < len(outcomes):
        result = f"{met} of {len(outcomes)}"
    if unclear:
        result += f" ({unclear} unclear)"
    shown = "; ".join(o.shown for o in outcomes) if len(outcomes) < 4 else ""
    return Verdict(target["target"], shown, result)


def _repeat(parts: Sequence[Part]) -> list[Part]:
    """The parts, those with `each` once for every combination."""
    found = []
    for part in parts:
        lists = part.get("each", {})
        for choice in itertools.product(*lists.values()):
            words = dict(zip(lists, choice, strict=True))
            found.append({name: _fill(v, words) for name, v in part.items() if name != "each"})
    return found


def _fill(value: Any, words: Mapping[str, object]) -> Any:
    if isinstance(value, dict):
        return {name: _fill(v, words) for name, v in value.items()}
    if isinstance(value, str) and value.startswith("$"):
        return words[value[1:]]
    return Template(value).substitute(words) if isinstance(value, str) else value


def _judge(part: Part, numbers: Sequence[Number]) -> Outcome:
    where = part["ours"]
    ours = best(numbers, where)
    if ours is None:
        return Outcome(False, False, "no record")
    style, scale = (".3f", 1.0) if where.get("metric") == "bits_per_byte" else (".1f", 100.0)
    text = format(scale * ours.mean, style)
    if "constant" in part:
        found = {n.score.value for n in find(numbers, part["constant"])}
        return Outcome(len(found) == 1, False, f"{' to '.join(f'{v:,.0f}' for v in found)} bytes")
    if "least" in part:
        return Outcome(ours.mean >= part["least"], False, text)
    other = best(numbers, {**where, **part["than"]})
    if other is None or _terms(other, part) != _terms(ours, part):
        return Outcome(False, False, f"{text}, nothing to compare with")
    sign = -1 if where.get("metric") in LOWER_IS_BETTER else 1
    margin = max(ours.spread, other.spread) if part.get("beyond") == "spread" else 0.0
    # An ablation is the other way round: what was left out has to be missed.
    is_met = sign * (ours.mean - other.mean) > margin
    unclear = margin == 0 and ours.low <= other.high and other.low <= ours.high
    name = KINDS.get(other.model, other.model)
    return Outcome(is_met, unclear, f"{text} against {format(scale * other.mean, style)} ({name})")


def _terms(value: Value, part: Part) -> list[object]:
    """What two values must have in common to be compared."""
    return [fact(value.numbers[0], name) for name in part.get("same", ())]
