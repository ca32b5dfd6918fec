"""Sweeps on the results page: one table each, a row's mean and spread over its seeds."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from titans.evaluation import paper
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score
from titans.evaluation.report_tables import table
from titans.evaluation.sweep import standard_deviation

SHOWN = {"lm": "bits_per_byte", "mqar": "accuracy", "permutations": "last_accuracy"}
"""The metric that a sweep's table shows, by task."""
TRAINED_TOKENS, TRAINED_SECONDS = "trained_tokens", "trained_seconds"
TUNING = (
    "All rows share the learning rate and schedule of the sweep's base configuration, which is one "
    "of our own variants'; no row was tuned by itself (equal tuning effort: none)."
)
SEED = re.compile(r"-seed\d+$")


class Column(NamedTuple):
    """One column of a sweep's table."""

    task: str
    setting: str
    length: int | None
    pairs: object

    @property
    def title(self) -> str:
        """What stands above it."""
        what = {"lm": "bits per byte"}.get(self.task, f"{self.task} {self.setting}".strip())
        count = "" if self.pairs is None else f", {self.pairs} pairs"
        return f"{what}, {format_length(self.length or 0)}{count}"


def sweeps_of(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each sweep, and of each text where it was run on several, by name."""
    groups = []
    for name in sorted({record.sweep for record in records if record.sweep}):
        chosen = [record for record in records if record.sweep == name]
        texts = _texts(chosen)
        if len(texts) < 2:
            groups.append(chosen)
        else:
            groups += [[r for r in chosen if _texts([r]) == [text]] for text in texts]
    return groups


def sweep_sections(records: Sequence[Record]) -> list[str]:
    """A section for each sweep and text; the paper's numbers under a sweep's first one."""
    sections = []
    shown = set()
    for rows in sweeps_of(records):
        name = rows[0].sweep
        sections.append(_sweep_section(rows, "" if name in shown else _published(name)))
        shown.add(name)
    return sections


def _sweep_section(records: Sequence[Record], published: str) -> str:
    """Title, table, published numbers and how it was made."""
    columns = sorted(
        {column for record in records for column, _ in _shown(record)},
        key=lambda column: (
            column.task,
            column.setting,
            column.length or 0,
            int(str(column.pairs or 0)),
        ),
    )
    is_known = any(TRAINED_TOKENS in record.model.settings for record in records)
    rows = []
    for name in dict.fromkeys(map(row_name, records)):
        ours = [r for r in records if row_name(r) == name]
        seeds = len({r.model.name for r in ours})
        parameters = f"{ours[0].model.num_parameters:,}"
        cells = [_cell(ours, column) for column in columns]
        budget = _budget(ours) if is_known else []
        rows.append([f"`{name}`", str(seeds), parameters, *budget, *cells])
    budget = ["training tokens", "minutes"] if is_known else []
    head = ["row", "seeds", "parameters", *budget, *(column.title for column in columns)]
    commit = ", ".join(sorted({record.commit or "-" for record in records}))
    heading = records[0].sweep + "".join(f", on {Path(name).stem}" for name in _texts(records))
    text = (
        f"## Sweep: {heading}\n\nMean over the seeds and, behind it, their standard deviation; one "
        f"seed stands alone. Accuracy in per cent. {TUNING}\n\n" + table(head, rows)
    )
    tested = "".join(f", tested on `{name}`" for name in _texts(records))
    return text + published + f"\nMade by `{records[0].command}`{tested}, commit {commit}.\n"


def _budget(records: Sequence[Record]) -> list[str]:
    """Tokens and minutes of a row's training, means over those of its records that know them."""
    cells = []
    for name, unit, style in ((TRAINED_TOKENS, 1, ",.0f"), (TRAINED_SECONDS, 60, ".1f")):
        found = [r.model.settings.get(name) for r in records]
        values = [value / unit for value in found if isinstance(value, int | float)]
        cells.append(format(mean_and_spread(values)[0], style) if values else "-")
    return cells


def _texts(records: Sequence[Record]) -> list[str]:
    """The texts that the records were tested on."""
    return sorted({str(r.options["text"]).split("@")[0] for r in records if "text" in r.options})


def row_name(record: Record) -> str:
    """The row of its sweep that a record belongs to, whatever its seed."""
    return SEED.sub("", record.model.name)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation."""
    return math.fsum(values) / len(values), standard_deviation(values)


def _shown(record: Record) -> list[tuple[Column, Score]]:
    metric = SHOWN.get(record.task)
    setting = str(record.options.get("setting", ""))
    return [
        (Column(record.task, setting, score.length, score.detail.get("pairs")), score)
        for score in record.scores
        if score.metric == metric and set(score.detail) <= {"pairs", "updates", "group"}
    ]


def _cell(records: Sequence[Record], column: Column) -> str:
    values = [s.value for r in records for found, s in _shown(r) if found == column]
    if not values:
        return "-"
    mean, spread = mean_and_spread(values)
    if column.task == "lm":
        return f"{mean:.4f}" + (f" ± {spread:.4f}" if len(values) > 1 else "")
    return f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if len(values) > 1 else "")


def _published(sweep: str) -> str:
    """The paper's table on the sweep's subject, where it has one."""
    if "ablation" in sweep:
        return _papers_ablation()
    return _papers_language() if sweep == "language" else ""


def _papers_ablation() -> str:
    rows = [[f"*{name}*", *(f"*{v}*" for v in values)] for name, values in paper.ABLATION.items()]
    head = ["the paper's table 5 (400M parameters)", "perplexity", "reasoning", "long context"]
    return "\n" + table(head, rows)


def _papers_language() -> str:
    rows = [
        [f"*{name}*", *(f"*{v:.2f}*" for v in values)] for name, values in paper.LANGUAGE.items()
    ]
    head = ["the paper's table 1 (340M parameters)", "Wiki perplexity", "LAMBADA perplexity"]
    note = (
        "The paper's models read 15 billion tokens of a vocabulary of 32K and are measured in "
        "perplexity; ours read bytes for minutes and are measured in bits per byte: compare the "
        "order of the models, not the numbers."
    )
    return f"\n{table(head, rows)}\n{note}\n"
