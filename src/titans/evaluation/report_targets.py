"""Targets on top of the results page: what was aimed at, what the records say, and a verdict.

Every value comes out of a record, and every verdict out of the values: none is written by hand.
"""

from collections.abc import Sequence

from titans.evaluation.records import Record
from titans.evaluation.report_tables import table
from titans.evaluation.report_target_parts import MET, REPORTED, Target
from titans.evaluation.report_targets_sweeps import (
    ablation_targets,
    depth_target,
    language_targets,
)
from titans.evaluation.report_targets_tasks import (
    needle_targets,
    question_targets,
    recall_targets,
)

REASON = "[log](log/evaluation.md)"
"""Where it is told what was tried and why a target was missed."""
HEAD = """## Targets

What this work set out to show. Values are accuracies in per cent or bits per byte, ± is the
standard deviation over seeds; MQAR's are means over the segments. Verdicts are computed from the
values: what has no record counts as not reached, and comparisons are of means. Of bits per byte it
is said how many comparisons are reached only within the interval: the two 95 % intervals overlap
(with several seeds, mean ± standard deviation). Of ablations, a difference no larger than the
larger of two standard deviations is within the spread. A model that was asked in several haystacks
counts with the one in which it is worst.
"""


def targets_section(records: Sequence[Record]) -> str:
    """The table of all targets."""
    alone = [record for record in records if not record.sweep]
    targets = [
        *recall_targets(alone),
        *needle_targets(alone),
        *question_targets(alone),
        *language_targets(records),
        *ablation_targets(records),
        depth_target(records),
    ]
    rows = [[t.text, t.measured or "-", t.verdict, _reason(t)] for t in targets]
    return f"{HEAD}\n{table(['target', 'measured', 'verdict', 'reason'], rows)}"


def _reason(target: Target) -> str:
    return "-" if target.verdict.startswith((MET, REPORTED)) else REASON
