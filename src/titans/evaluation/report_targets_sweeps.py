"""Targets of sweeps: language modelling beside the baselines, and the ablations."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record
from titans.evaluation.report_cells import memory_depth, row_name
from titans.evaluation.report_language import whole_windows
from titans.evaluation.report_mqar import mean_accuracy
from titans.evaluation.report_sweeps import mean_and_spread
from titans.evaluation.report_target_parts import (
    ABSENT,
    MET,
    REPORTED,
    VARIANTS,
    Target,
    in_percent,
    named,
    verdict,
)

TEXTS = {"enwik8": "enwik8", "WikiText-2 (second opinion)": "wikitext"}
"""Titles of the texts, and how their files begin."""
BASELINES = ("transformer", "sliding-window")
ABLATIONS = (
    "linear memory",
    "no convolution",
    "no momentum",
    "no forgetting",
    "no persistent memory",
)
WORSE, BETTER, WITHIN = "worse", "better", "within the spread"


def language_targets(records: Sequence[Record]) -> list[Target]:
    """Bits per byte of every variant against both baselines, without and with a convolution."""
    sweep = [record for record in records if record.sweep == "language"]
    targets = []
    for title, start in TEXTS.items():
        ours = [r for r in sweep if str(r.options.get("text", "")).startswith(start)]
        for suffix, words in (("", ""), ("-with-convolution", " with a convolution")):
            text = (
                f"{title}: every variant below Transformer and sliding window{words}, at the "
                "training length and at 8 times"
            )
            targets.append(_language_target(text, ours, [f"{name}{suffix}" for name in BASELINES]))
    return targets


class _Bits(NamedTuple):
    """Bits per byte of a row, and between which ends they lie."""

    low: float
    value: float
    high: float


def _language_target(text: str, records: Sequence[Record], baselines: Sequence[str]) -> Target:
    """The sweep's shortest length is the one it was trained at."""
    shortest = min((s.length or 0 for r in records for s in whole_windows(r)), default=0)
    shown, unsure = [], []
    parts: list[bool | None] = []
    for length in (shortest, 8 * shortest):
        place = f"at {format_length(length)}"
        values = {row: _row_bits(records, row, length) for row in (*VARIANTS, *baselines)}
        for variant, baseline in itertools.product(VARIANTS, baselines):
            own, other = values[variant], values[baseline]
            if own is None or other is None:
                parts.append(None)
                continue
            parts.append(own.value < other.value)
            if own.value < other.value and own.high >= other.low:
                unsure.append(f"`{variant}` below `{baseline}` {place}")
        cells = {
            row: ABSENT if bits is None else f"{bits.value:.4f}" for row, bits in values.items()
        }
        shown.append(f"{place} {named(cells)}")
    result = verdict(parts)
    if result == ABSENT:
        return Target(text, "", result)
    rows = [row_name(record) for record in records]
    seeds = max(map(rows.count, rows), default=0)
    shown.append("one seed" if seeds == 1 else f"means over up to {seeds} seeds")
    if unsure:
        shown.append(f"within the interval: {', '.join(unsure)}")
        result += f", {len(unsure)} of the {parts.count(True)} within the interval"
    return Target(text, "; ".join(shown), result)


def _row_bits(records: Sequence[Record], row: str, length: int) -> _Bits | None:
    """The interval of one seed's score, or mean and spread over several."""
    ours = [record for record in records if row_name(record) == row]
    scores = [s for record in ours for s in whole_windows(record) if s.length == length]
    if not scores:
        return None
    if len(scores) == 1:
        return _Bits(scores[0].low, scores[0].value, scores[0].high)
    mean, spread = mean_and_spread([score.value for score in scores])
    return _Bits(mean - spread, mean, mean + spread)


MAC_SWEEP = "variants"
MAC_ROWS = {"mac": "mac", "mac-without-persistent-memory": "no-persistent-memory"}
"""The recall sweep's model, LMM, has no persistent memory: rows of the variants stand in."""
WHOLE_ON_RECALL = {"no-persistent-memory": "mac"}
"""What a row is compared with, where that is not `full`."""


def ablation_targets(records: Sequence[Record]) -> list[Target]:
    """Whether the model without a part is worse than the whole one, on recall and on text."""
    on_recall, on_text = _recall_values(records), _text_values(records)
    targets = []
    for name in ABLATIONS:
        row = name.replace(" ", "-")
        shown, parts = [], []
        for task, values in (("recall", on_recall), ("text", on_text)):
            is_recall = task == "recall"
            whole = WHOLE_ON_RECALL.get(row, "full") if is_recall else "full"
            title = task if whole == "full" else f"{task} (`{whole}` of the sweep `{MAC_SWEEP}`)"
            if whole not in values or row not in values:
                shown.append(f"{title}: {ABSENT}")
                parts.append(None)
                continue
            found = direction(values[row], values[whole], higher_is_better=is_recall)
            cells = " against ".join(_with_spread(values[key], is_recall) for key in (row, whole))
            shown.append(f"{title}: {cells}, {found}")
            parts.append(found == WORSE)
        text = f"Ablation: {name} worse than the full model, as in the paper, on recall and on text"
        targets.append(Target(text, "; ".join(shown), verdict(parts)))
    return targets


DEPTHS = ("1", "2", "3", "4")
DEPTH_ROWS = ("linear-memory", "full", "depth-3", "depth-4")
"""Rows of the recall sweep that differ in nothing but what a depth brings with it."""


def depth_target(records: Sequence[Record]) -> Target:
    """What each depth of the memory comes to, on recall and in speed of training."""
    measured = {"recall": _recall_by_depth(records), **_speeds_by_depth(records)}
    if len(measured) == 1:
        measured["training"] = {}
    cells = {
        title: [values.get(depth, ABSENT) for depth in DEPTHS] for title, values in measured.items()
    }
    result = verdict(None if cell == ABSENT else True for row in cells.values() for cell in row)
    shown = "; ".join(f"{title} {' / '.join(row)}" for title, row in cells.items())
    return Target(
        "Memory depth 1 to 4 on recall and on throughput: reported",
        "" if result == ABSENT else f"depth {' / '.join(DEPTHS)}: {shown}",
        REPORTED if result == MET else result,
    )


def _recall_by_depth(records: Sequence[Record]) -> dict[str, str]:
    """Mean and spread of the recall sweep's rows, by the depth that their records tell."""
    depths = {row_name(r): memory_depth(r) for r in records if r.sweep == "recall"}
    values = _recall_values(records)
    rows = [row for row in DEPTH_ROWS if row in depths and row in values]
    return {depths[row]: _with_spread(values[row], is_recall=True) for row in rows}


def _speeds_by_depth(records: Sequence[Record]) -> dict[str, dict[str, str]]:
    """Tokens per second in training, by model and length, then by depth."""
    speeds: dict[str, dict[str, str]] = {}
    for record in records:
        for score in record.scores:
            if score.matches("tokens_per_second", phase="train") and score.detail.get("depth"):
                place = f"`{record.model.name}` at {format_length(score.length or 0)}"
                row = speeds.setdefault(f"training of {place} (tokens/s)", {})
                row.setdefault(str(score.detail["depth"]), f"{score.value:.0f}")
    return speeds


def direction(ablated: Sequence[float], full: Sequence[float], *, higher_is_better: bool) -> str:
    """Worse or better, or within the spread: the larger standard deviation of the two rows."""
    (mean, spread), (whole, other) = mean_and_spread(ablated), mean_and_spread(full)
    if abs(mean - whole) <= max(spread, other):
        return WITHIN
    return WORSE if (mean < whole) == higher_is_better else BETTER


def _with_spread(values: Sequence[float], is_recall: bool) -> str:
    """Mean and standard deviation over the seeds."""
    return " ± ".join(in_percent(v) if is_recall else f"{v:.4f}" for v in mean_and_spread(values))


def _recall_values(records: Sequence[Record]) -> dict[str, list[float]]:
    """Per row of the recall sweep and seed, the mean over the segments; MAC's of the variants."""
    values: dict[str, list[float]] = {}
    for record in records:
        if record.task != "mqar" or record.options.get("setting") != "b":
            continue
        row = row_name(record)
        if record.sweep == MAC_SWEEP:
            row = MAC_ROWS.get(row)
        if row is not None and record.sweep in ("recall", MAC_SWEEP):
            values.setdefault(row, []).append(mean_accuracy(record))
    return values


def _text_values(records: Sequence[Record]) -> dict[str, list[float]]:
    """Per row of the ablation sweep and seed, bits per byte at the training length."""
    values: dict[str, list[float]] = {}
    for record in records:
        if record.sweep == "ablation" and (scores := whole_windows(record)):
            shortest = min(scores, key=lambda score: score.length or 0)
            values.setdefault(row_name(record), []).append(shortest.value)
    return values
