"""BABILong on the results page: each task by length, and the mean beside the paper's."""

import math
from collections.abc import Sequence

from titans.evaluation import paper
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record
from titans.evaluation.report_cells import by_model, first_score, lengths_of, percent
from titans.evaluation.report_needles import OUR_TOKENS
from titans.evaluation.report_tables import table

TASKS = ("qa1", "qa2", "qa3", "qa4", "qa5")
"""Those whose mean the paper shows."""
MEAN = "mean qa1-5"
NOTE = (
    f"Accuracy in per cent. {OUR_TOKENS} The published lengths count GPT-2's tokens, each worth "
    "about four bytes. The table of trainings below tells which tasks a model was trained on."
)
MEAN_NOTE = (
    " Our means are of the five values above them, without an interval. They differ from the "
    "paper's in more than the models: in the tokens that a length counts, in the number of "
    "samples, and in the tasks of the training, which may be fewer than five."
)


def babilong_section(records: Sequence[Record]) -> str:
    """A row per model and task, a mean for models with all five, then the paper's means."""
    lengths = lengths_of(records)
    tasks = sorted({str(s.detail["task"]) for r in records for s in r.scores})
    rows = []
    for name, ours in by_model(records).items():
        for task in tasks:
            cells = [first_score(ours, "accuracy", n, task=task) for n in lengths]
            if any(cells):
                rows.append([name, task, *map(percent, cells)])
        means = [_mean(ours, n) for n in lengths]
        if any(mean is not None for mean in means):
            cells = ["-" if mean is None else f"{100 * mean:.1f}" for mean in means]
            rows.append([name, MEAN, *cells])
    has_mean = any(row[1] == MEAN for row in rows)
    for model, values in paper.BABILONG.items():
        known = dict(zip(paper.BABILONG_LENGTHS, values, strict=True))
        cells = [f"*{known[n]:g}*" if n in known else "" for n in lengths]
        rows.append([f"*{model} (paper)*", MEAN, *cells])
    note = NOTE + (MEAN_NOTE if has_mean else "")
    return f"{note}\n\n" + table(["model", "task", *map(format_length, lengths)], rows)


def _mean(records: Sequence[Record], length: int) -> float | None:
    """The mean over the five tasks of one model; None unless it was asked all of them."""
    scores = [first_score(records, "accuracy", length, task=task) for task in TASKS]
    values = [score.value for score in scores if score is not None]
    return math.fsum(values) / len(TASKS) if len(values) == len(TASKS) else None
