"""Sweeps on the results page: one table each, a row's mean and spread over its seeds."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from titans.evaluation import paper
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score
from titans.evaluation.report_cells import (
    between,
    file_name,
    memory_depth,
    percent,
    row_name,
    with_interval,
)
from titans.evaluation.report_language import covered_text
from titans.evaluation.report_sources import Sources
from titans.evaluation.report_tables import table
from titans.evaluation.sweep import standard_deviation

SHOWN = {"lm": "bits_per_byte", "mqar": "accuracy", "permutations": "last_accuracy"}
"""The metric that a sweep's table shows, by task."""
TRAINED_TOKENS, TRAINED_SECONDS = "trained_tokens", "trained_seconds"
UNKNOWN, PLANNED = "not recorded", "(planned)"
PLANNED_NOTE = (
    "Training tokens marked as planned are not in the records: they are what the sweep's file and "
    "command ask for, steps x sequences x length."
)
STARTS = {"random": "random and fixed"}
"""First weights of a memory in other words than their setting's, where that does not tell all."""
DEPTHS = (
    "Memory depth: layers of the memory's network (`matrix`: the delta rules have no network; `-`: "
    "no memory)."
)
TUNING = (
    "All rows share the learning rate and schedule of the sweep's base configuration, which is one "
    "of our own variants'; no row was tuned by itself (equal tuning effort: none)."
)


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


def sweep_sections(records: Sequence[Record], sources: Sources) -> list[str]:
    """A section for each sweep and text; the paper's numbers under a sweep's first one."""
    sections = []
    shown = set()
    for rows in sweeps_of(records):
        name = rows[0].sweep
        published = "" if name in shown else _published(name)
        sections.append(_sweep_section(rows, published, sources))
        shown.add(name)
    return sections


def _sweep_section(records: Sequence[Record], published: str, sources: Sources) -> str:
    """Title, table, notes, published numbers and how it was made."""
    columns = sorted(
        {column for record in records for column, _ in _shown(record)},
        key=lambda column: (
            column.task,
            column.setting,
            column.length or 0,
            int(str(column.pairs or 0)),
        ),
    )
    rows = []
    seeds = {}
    has_depths = any(memory_depth(record) != "-" for record in records)
    for name in _in_order(records, sources):
        ours = [r for r in records if row_name(r) == name]
        seeds[name] = len({r.model.name for r in ours})
        about = [str(seeds[name]), f"{ours[0].model.num_parameters:,}"]
        about += [memory_depth(ours[0])] * has_depths
        cells = [_cell(ours, column) for column in columns]
        rows.append([f"`{name}`", *about, *_budget(ours, sources), *cells])
    titles = ["memory depth"] * has_depths + ["training tokens", "minutes"]
    head = ["row", "seeds", "parameters", *titles, *(column.title for column in columns)]
    heading = records[0].sweep + "".join(f", on {Path(name).stem}" for name in _texts(records))
    notes = [
        "Mean over the seeds and, behind it, their standard deviation; one seed stands alone with "
        "its 95 % interval.",
        _about_seeds(seeds),
        _about_accuracy(records),
        DEPTHS if has_depths else "",
        TUNING,
        covered_text([record for record in records if record.task == "lm"]),
        PLANNED_NOTE if any(PLANNED in cell for row in rows for cell in row) else "",
    ]
    return (
        f"## Sweep: {heading}\n\n{' '.join(filter(None, notes))}\n\n{table(head, rows)}"
        f"{_about_depth(records)}{published}\n{_how_made(records, sources)}"
    )


def _in_order(records: Sequence[Record], sources: Sources) -> list[str]:
    """The rows: the full model first, then as in the sweep's file, then what that does not have."""
    order = ["full", *sources.rows(records[0].command)]
    names = dict.fromkeys(map(row_name, records))
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def _about_seeds(seeds: Mapping[str, int]) -> str:
    """Which rows have fewer seeds than others; nothing where all have as many."""
    most = max(seeds.values())
    fewer = ", ".join(f"`{name}` has {count}" for name, count in seeds.items() if count < most)
    if not fewer:
        return ""
    return f"Of {most} seeds {fewer}; the records do not tell why ([log](log/evaluation.md))."


def _about_accuracy(records: Sequence[Record]) -> str:
    """Unit and samples of accuracies, and what guessing gives; nothing where there are none."""
    shown = [score for r in records if r.task != "lm" for _, score in _shown(r)]
    if not shown:
        return ""
    counts = between(sorted({score.samples for score in shown}))
    guessing = {
        100 / math.factorial(int(r.options["degree"]))  # type: ignore[call-overload]
        for r in records
        if r.task == "permutations"
    }
    chance = "".join(f" Guessing gives {share:.1f}." for share in sorted(guessing))
    return f"Accuracy in per cent, of {counts} samples for each seed.{chance}"


def _about_depth(records: Sequence[Record]) -> str:
    """What else changes from three layers on; nothing where no row is that deep."""
    starts: dict[bool, set[str]] = {False: set(), True: set()}
    for record in records:
        depth = record.model.settings.get("memory_depth")
        if isinstance(depth, int) and record.model.settings.get("memory_rule") == "titans":
            starts[depth > 2].add(str(record.model.settings.get("memory_init")))
    if not starts[True]:
        return ""
    shallow, deep = (
        " or ".join(STARTS.get(start, start) for start in sorted(starts[is_deep]))
        for is_deep in (False, True)
    )
    return (
        "\nRows of depth 3 and 4 differ from the others in more than depth: from three layers on "
        f"the memory's first weights are {deep} (`memory_init`; {shallow} in the other rows), and "
        "values are half as long for each layer beyond the second "
        "([why](decisions/0003-stabiliser.md)).\n"
    )


def _how_made(records: Sequence[Record], sources: Sources) -> str:
    """Command, text, commits, the time of testing, and what the environment must hold."""
    command = records[0].command
    commit = ", ".join(sorted({record.commit or "-" for record in records}))
    tested = "".join(f", tested on `{name}`" for name in _texts(records))
    seconds = math.fsum(record.seconds for record in records)
    made = f"Made by `{command}`{tested}, commit {commit}. Testing took {seconds:.0f} s in all."
    variables = sources.variables(records[0])
    if not variables:
        return f"{made}\n"
    names = " and ".join(variables)
    given = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"{made} The sweep's file needs {names} in the environment: `{given} {command}`.\n"


def _budget(records: Sequence[Record], sources: Sources) -> list[str]:
    """Tokens and minutes of a row's training, means over those of its records that know them.

    Tokens that no record knows are those that the sweep's file plans.
    """
    tokens, seconds = (_known(records, name) for name in (TRAINED_TOKENS, TRAINED_SECONDS))
    minutes = UNKNOWN if seconds is None else f"{seconds / 60:.1f}"
    if tokens is not None:
        return [f"{tokens:,.0f}", minutes]
    planned = sources.planned_tokens(records[0])
    return [UNKNOWN if planned is None else f"{planned:,} {PLANNED}", minutes]


def _known(records: Sequence[Record], setting: str) -> float | None:
    """The mean of a number over the records that have it."""
    found = [record.model.settings.get(setting) for record in records]
    values = [value for value in found if isinstance(value, int | float)]
    return mean_and_spread(values)[0] if values else None


def _texts(records: Sequence[Record]) -> list[str]:
    """The texts that the records were tested on."""
    return sorted({file_name(r.options["text"]) for r in records if "text" in r.options})


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
    """Mean and spread over the seeds; of one seed, the interval of its score."""
    scores = [s for r in records for found, s in _shown(r) if found == column]
    is_text = column.task == "lm"
    if len(scores) < 2:
        score = scores[0] if scores else None
        return with_interval(score, ".4f") if is_text else percent(score)
    mean, spread = mean_and_spread([score.value for score in scores])
    return f"{mean:.4f} ± {spread:.4f}" if is_text else f"{100 * mean:.1f} ± {100 * spread:.1f}"


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
