"""docs/results.md and its figures from the records: `make results` (`python -m results.build`).

`page.md.j2` has the sentences and chooses the numbers; `published.yaml` has the published ones,
`targets.yaml` what was aimed at. The same files give the same page, byte for byte.
"""

import argparse
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from results.figures import draw_all
from results.query import (
    KINDS,
    Number,
    Value,
    all_numbers,
    best,
    fact,
    find,
    row_name,
    settings_of,
    summary,
)
from results.targets import judge
from titans.evaluation.lengths import format_length
from titans.evaluation.record import Record, load_records
from titans.files import write_text
from tools.stages import read_stages

HERE = Path(__file__).parent
ROOT = HERE.parent
METRICS = {
    "needle": ("accuracy",),
    "s-niah": ("accuracy",),
    "mqar": ("accuracy",),
    "babilong": ("accuracy",),
    "permutations": ("last_accuracy",),
    "lm": ("bits_per_byte",),
    "throughput": ("tokens_per_second",),
    "locomo": ("recall@5", "recall@10", "recall@20"),
    "chats": ("first", "first as then", "recall@5", "AUC of what was never said", "false links"),
}
"""What the appendix shows of a task."""
TERMS = {
    "needle": ("distractors",),
    "s-niah": ("kind", "haystack"),
    "babilong": ("question",),
    "permutations": ("degree",),
    "mqar": ("setting",),
    "lm": ("text",),
    "throughput": ("phase", "depth"),
    "locomo": ("category", "method", "keep"),
    "chats": ("kind", "method"),
}
"""What tells the rows of a model apart, beside the model."""
PLACES = re.compile(r" --(model|rule|dim) ('[^']*'|\S+)")
"""Options by which commands of one shape differ."""
FILES = re.compile(r" --(json|resume|label) ('[^']*'|\S+)")
"""Options that only name where a result goes."""


def render(root: Path = ROOT) -> str:
    """The whole page."""
    records = load_records(root / "results")
    numbers = all_numbers(records)
    page = Page(records, numbers, root)
    environment = Environment(
        loader=FileSystemLoader(root / "results"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    targets = yaml.safe_load((root / "results" / "targets.yaml").read_text(encoding="utf-8"))
    names = {name: getattr(page, name) for name in dir(page) if not name.startswith("_")}
    return environment.get_template("page.md.j2").render(
        **names, kinds=list(KINDS.values()), targets=[judge(t, numbers) for t in targets]
    )


def load_published(file: Path) -> dict[str, dict[str, dict[Any, float]]]:
    """Published numbers by table, row and column."""
    tables = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {
        name: {
            str(row): values
            if isinstance(values, dict)
            else dict(zip(t["columns"], values, strict=True))
            for row, values in t["rows"].items()
        }
        for name, t in tables.items()
    }


class Page:
    """What the template can say: each method gives a cell, a row or a table."""

    def __init__(self, records: Sequence[Record], numbers: Sequence[Number], root: Path) -> None:
        self._records, self._numbers, self._root = records, numbers, root

    def glance(self, title: str, **where: Any) -> str:
        """A row of the first table: the best model of each kind, in the text where it is worst."""
        cells = []
        for kind in KINDS:
            value = best(self._numbers, {**where, "kind_of_model": kind})
            cells.append("" if value is None else shown(value, short=True))
        return f"| {title} | {' | '.join(cells)} |"

    def value(self, **where: Any) -> str:
        """One number in a sentence."""
        found = best(self._numbers, where)
        if found is None:
            raise ValueError(f"no record has {where}")
        return shown(found)

    def span(self, **where: Any) -> str:
        """The least and the largest of some numbers."""
        means = sorted((summary([n]) for n in find(self._numbers, where)), key=lambda v: v.mean)
        return f"{shown(means[0])} to {shown(means[-1])}"

    def table(self, task: str, sweep: str = "", **where: Any) -> str:
        """Every number of a task or a sweep, a row for each model and terms.

        What all rows share is said above the table.
        """
        asked = {"task": task, "sweep": sweep, "metric": list(METRICS[task]), **where}
        numbers = find(self._numbers, asked)
        column = {"mqar": _pairs, "locomo": _metric, "chats": _metric, "lm": _window}.get(
            task, _length
        )
        columns = sorted({column(n) for n in numbers})
        groups: dict[tuple[str, ...], dict[object, list[Number]]] = {}
        for number in numbers:
            settings = settings_of(number.record)
            terms = (_term(settings.get("memory.write_threshold")),)
            terms += tuple(_term(fact(number, name)) for name in TERMS[task])
            row = (f"`{row_name(number.record)}`", *terms)
            groups.setdefault(row, {}).setdefault(column(number), []).append(number)
        head = ["model", "parameters", "minutes", "threshold", *TERMS[task], "samples"]
        lines = []
        for row, cells in sorted(groups.items()):
            found = {place: summary(cell) for place, cell in cells.items()}
            if not sweep and any(len(cell) > 1 for cell in cells.values()):
                raise ValueError(f"{row}: several records for one cell")
            values = [shown(found[c]) if c in found else "" for c in columns]
            about = [row[0], *_size(cells), *row[1:], _samples(cells)]
            lines.append([*about, _within(list(found.values())), *values])
        return _without_repeats([*head, "±", *(name for _, name in columns)], lines, len(head))

    def commands(self, task: str, sweep: str = "") -> str:
        """How the numbers of a task were made: one line for each shape of command."""
        made: dict[tuple[str, str], list[Record]] = {}
        for record in self._records:
            if record.task == task and record.sweep == sweep and record.command:
                shape = FILES.sub("", record.command)
                shape = PLACES.sub(lambda m: f" --{m[1]} {m[1].upper()}", shape)
                text = fact(Number(record, record.scores[0]), "text") if sweep else None
                made.setdefault((shape, _term(text)), []).append(record)
        lines = []
        for (shape, text), records in made.items():
            commits = ", ".join(sorted({(record.commit or "-")[:7] for record in records}))
            seconds = sorted({round(record.seconds) for record in records})
            took = f"{seconds[0]} s" if len(seconds) == 1 else f"{seconds[0]} to {seconds[-1]} s"
            names = ", ".join(f"`{record.model.name}`" for record in records)
            who = f", {names}" if PLACES.search(shape) else f" on {text}" * bool(text)
            lines.append(f"- `{shape}`{who}: {took}, commit {commits}\n")
        return "".join(lines)

    def trained(self) -> str:
        """What the training of the shipped checkpoints took, by their logs."""
        rows = []
        for folder in sorted((self._root / "checkpoints").iterdir()):
            stages = read_stages(folder)
            done = [stage.trained for stage in stages]
            kinds = sorted({kind for stage in stages for kind in stage.kinds})
            rows.append(
                [
                    f"`{folder.name}`",
                    str(len(stages)),
                    f"{sum(t.steps for t in done):,}",
                    f"{sum(t.tokens for t in done):,}",
                    f"{sum(t.seconds for t in done) / 60:.0f}",
                    format_length(max(stage.longest for stage in stages)),
                    ", ".join(kinds) or "-",
                ]
            )
        head = ["checkpoint", "runs", "steps", "tokens", "minutes", "longest text", "trained on"]
        return markdown(head, rows)

    def published(self, name: str) -> str:
        """A published table, in italics."""
        source = yaml.safe_load((self._root / "results/published.yaml").read_text(encoding="utf-8"))
        table = source[name]
        rows = [[f"*{v}*" for v in (row, *values)] for row, values in table["rows"].items()]
        return markdown([table["source"], *table["columns"]], rows)

    def mqar_rows(self) -> str:
        """What each row of MQAR is, by the settings in its record."""
        rows: dict[str, list[str]] = {}
        for record in self._records:
            if record.task == "mqar" and not record.sweep:
                about = about_memory(record, ["minutes"])
                rows.setdefault(about, []).append(f"`{record.model.name}`")
        return "".join(f"- {', '.join(names)}: {about}\n" for about, names in rows.items())

    def about_memory_of(self, model: str, *without: str) -> str:
        """What one model's memory is, but for some settings."""
        record = next(r for r in self._records if r.model.name == model)
        return about_memory(record, without)


def shown(value: Value, *, short: bool = False) -> str:
    """A number by its metric, without its interval."""
    metric = value.numbers[0].score.metric
    style, scale = STYLES.get(metric, (".1f", 100.0))
    return format(scale * value.mean, SHORT.get(metric, style) if short else style)


def _within(values: Sequence[Value]) -> str:
    """How far a row's values are from the ends of their intervals, at most."""
    metric = values[0].numbers[0].score.metric
    style, scale = STYLES.get(metric, (".1f", 100.0))
    return format(scale * max(max(v.high - v.mean, v.mean - v.low) for v in values), style)


STYLES = {
    "bits_per_byte": (".3f", 1.0),
    "perplexity": (".2f", 1.0),
    "tokens_per_second": (".0f", 1.0),
    "memory_share": (".0f", 100.0),
    "state_bytes": (",.0f", 1.0),
}
"""Metric -> how it is written and by what it is multiplied; accuracies are in per cent."""
SHORT = {"bits_per_byte": ".2f", "accuracy": ".0f", "last_accuracy": ".0f"}
"""How it is written where there is little room."""
RULES = {
    "chunk": "Titans memory",
    "online": "Titans memory, online rule",
    "ttt": "TTT",
    "delta": "delta rule",
    "gated_delta": "gated delta rule",
    "kda": "Kimi Delta Attention",
}


def about_memory(record: Record, without: Sequence[str] = ()) -> str:
    """A memory's rule and what its settings change about it, in words."""
    settings = settings_of(record)
    rule = str(settings.get("memory.rule", "chunk"))
    parts = [RULES[rule]]
    if rule in ("chunk", "online", "ttt"):
        depth = settings["memory.depth"]
        parts.append("a matrix" if depth == 1 else f"{depth} layers")
    if settings.get("memory.written", "all") != "all":
        parts[-1] += f" of which only the {settings['memory.written']} is written"
    if rule in ("chunk", "online"):
        parts += [
            f"no {part}" for part in ("momentum", "forgetting") if not settings[f"memory.{part}"]
        ]
    parts += [
        text.format(settings[name])
        for name, (usual, text) in AIDS.items()
        if settings.get(name, usual) != usual and name not in without
    ]
    return ", ".join(parts)


AIDS: dict[str, tuple[object, str]] = {
    "memory.features": (None, "{} products of the key in its place"),
    "memory.key_lag": (None, "keys start as the token {} back"),
    "memory.gate_conv_size": (0, "gates see {} tokens"),
    "memory.step_max": (1.0, "steps of at most {}"),
    "decorrelate": (0.0, "decorrelation loss with weight {}"),
    "minutes": (None, "{} CPU minutes"),
}
"""Settings that single rows of MQAR have: what is usual, and what another value means."""


def _term(found: object) -> str:
    return {None: "", True: "yes", False: "no"}.get(found, str(found))  # type: ignore[call-overload]


def _without_repeats(head: list[str], lines: list[list[str]], terms: int) -> str:
    """A table without empty columns; of the first `terms`, those that are equal go above it."""
    known = [i for i in range(len(head)) if any(line[i] for line in lines)]
    above = []
    for i in [i for i in known if 0 < i < terms]:
        found = sorted({line[i] for line in lines})
        if head[i] == "parameters":
            counts = sorted(int(n.replace(",", "")) for n in found if n)
            if counts[-1] < 1.02 * counts[0]:
                found = [" to ".join(dict.fromkeys(f"{n:,}" for n in (counts[0], counts[-1])))]
        if len(found) == 1:
            above.append(f"{head[i]} {found[0]}")
            known.remove(i)
    table = markdown([head[i] for i in known], [[line[i] for i in known] for line in lines])
    return f"Every row: {', '.join(above)}.\n\n{table}" if above else table


def _length(number: Number) -> tuple[object, str]:
    length = number.score.length or 0
    return length, format_length(length)


def _pairs(number: Number) -> tuple[object, str]:
    place = (number.score.length, number.score.detail["pairs"])
    return place, f"{place[1]} pairs"


def _window(number: Number) -> tuple[object, str]:
    end = number.score.detail.get("to")
    return ((1 << 32) + int(str(end)), f"to {end}") if end else _length(number)


def _metric(number: Number) -> tuple[object, str]:
    metric = number.score.metric
    return METRICS[number.record.task].index(metric), metric


def _size(cells: Mapping[object, Sequence[Number]]) -> tuple[str, str]:
    """Parameters, and the minutes of training: the mean of those records that have them."""
    records = [number.record for numbers in cells.values() for number in numbers]
    minutes = [float(str(m)) for record in records if (m := _minutes(record)) is not None]
    shown = f"{statistics.fmean(minutes):.1f}" if minutes else ""
    parameters = records[0].model.num_parameters
    return f"{parameters:,}" if parameters else "", shown


def _minutes(record: Record) -> object:
    settings = record.model.settings
    if "trained_seconds" in settings:
        return float(str(settings["trained_seconds"])) / 60
    return settings.get("minutes")


def _samples(cells: Mapping[object, Sequence[Number]]) -> str:
    counts = sorted({n.score.samples for numbers in cells.values() for n in numbers})
    seeds = max(len(numbers) for numbers in cells.values())
    several = f" x {seeds} seeds" if seeds > 1 else ""
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) + several


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main(words: Sequence[str] | None = None) -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(prog="python -m results.build", description=__doc__)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where to write")
    args = parser.parse_args(words)
    records = load_records(HERE)
    published = load_published(HERE / "published.yaml")
    draw_all(records, all_numbers(records), published, args.docs / "figures")
    write_text(args.docs / "results.md", render())


if __name__ == "__main__":
    main()
