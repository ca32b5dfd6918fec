"""docs/results.md and its figures from the records: `make results` (`python -m results.build`).

`page.md.j2` has the sentences and chooses the numbers; `published.yaml` has the published ones,
`targets.yaml` what was aimed at. The same files give the same page, byte for byte.
"""

import argparse
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
    "throughput": ("tokens_per_second", "memory_share"),
    "locomo": ("recall@5", "recall@10", "recall@20"),
}
"""What the appendix shows of a task."""
TERMS = {
    "needle": ("distractors",),
    "s-niah": ("kind", "haystack", "each_file", "words", "answer_tokens"),
    "babilong": ("question",),
    "permutations": ("degree",),
    "mqar": ("setting",),
    "lm": ("text", "from", "to"),
    "throughput": ("phase", "depth"),
    "locomo": ("category", "keep"),
}
"""What tells the rows of a model apart, beside the model."""


def render(root: Path = ROOT) -> str:
    """The whole page."""
    records = load_records(root / "results")
    numbers = all_numbers(records)
    page = Page(records, numbers, load_published(root / "results" / "published.yaml"), root)
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

    def __init__(
        self,
        records: Sequence[Record],
        numbers: Sequence[Number],
        published: Mapping[str, Mapping[str, Mapping[Any, float]]],
        root: Path,
    ) -> None:
        self._records, self._numbers, self._published = records, numbers, published
        self._root = root

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
        return shown(found, short=True)

    def table(self, task: str, sweep: str = "", **where: Any) -> str:
        """Every number of a task or a sweep with its interval, a row for each model and terms."""
        asked = {"task": task, "sweep": sweep, "metric": list(METRICS[task]), **where}
        numbers = find(self._numbers, asked)
        varying = [n for n in TERMS[task] if len({str(fact(x, n)) for x in numbers}) > 1]
        column = {"mqar": _pairs, "locomo": _metric}.get(task, _length)
        varying += ["metric"] * (len(METRICS[task]) > 1 and column is not _metric)
        columns = sorted({column(n) for n in numbers})
        groups: dict[tuple[str, ...], dict[object, list[Number]]] = {}
        for number in numbers:
            row = (_label(number.record), *(_term(number, name) for name in varying))
            groups.setdefault(row, {}).setdefault(column(number), []).append(number)
        head = ["model", "parameters", "minutes", *varying, "samples", *(t for _, t in columns)]
        lines = [
            [
                *row[:1],
                *_size(cells),
                *row[1:],
                _samples(cells),
                *map(_cell, map(cells.get, columns)),
            ]
            for row, cells in sorted(groups.items(), key=lambda group: group[0][0])
        ]
        known = [i for i in range(len(head)) if any(line[i] for line in lines)]
        return markdown([head[i] for i in known], [[line[i] for i in known] for line in lines])

    def commands(self, task: str, sweep: str = "") -> str:
        """How the numbers of a task were made: one line for each command."""
        made: dict[str, list[Record]] = {}
        for record in self._records:
            if record.task == task and record.sweep == sweep and record.command:
                made.setdefault(record.command, []).append(record)
        lines = []
        for command, records in made.items():
            commits = ", ".join(sorted({record.commit or "-" for record in records}))
            seconds = sum(record.seconds for record in records)
            texts = sorted({str(fact(Number(r, r.scores[0]), "text")) for r in records} - {"None"})
            tested = f" on {', '.join(texts)}" if texts and sweep else ""
            lines.append(f"- `{command}`{tested}: {seconds:.0f} s, commit {commits}\n")
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

    def published(self, *names: str) -> str:
        """Published tables, in italics."""
        source = yaml.safe_load((self._root / "results/published.yaml").read_text(encoding="utf-8"))
        parts = []
        for name in names:
            rows = self._published[name]
            columns = list(dict.fromkeys(c for points in rows.values() for c in points))
            if all(len(points) == len(columns) for points in rows.values()):
                head = [source[name]["source"], *map(_place, columns)]
                cells = [[f"*{v:g}*" for v in points.values()] for points in rows.values()]
            else:
                head = [source[name]["source"], "value at place"]
                cells = [
                    [", ".join(f"*{v:g}* at {place:,}" for place, v in points.items())]
                    for points in rows.values()
                ]
            lines = [[f"*{row}*", *line] for row, line in zip(rows, cells, strict=True)]
            parts.append(markdown(head, lines))
        return "\n".join(parts)

    def mqar_rows(self) -> str:
        """What each row of MQAR is, by the settings in its record."""
        rows = [r for r in self._records if r.task == "mqar" and not r.sweep]
        return "".join(f"- `{r.model.name}`: {about_memory(r)}\n" for r in rows)

    def about_memory_of(self, model: str, *without: str) -> str:
        """What one model's memory is, but for some settings."""
        record = next(r for r in self._records if r.model.name == model)
        return about_memory(record, without)


def shown(value: Value, *, short: bool = False) -> str:
    """A number by its metric; with its interval or spread unless `short`."""
    metric = value.numbers[0].score.metric
    style, scale = STYLES.get(metric, (".1f", 100.0))
    if short:
        return f"{format(scale * value.mean, SHORT.get(metric, style))}"
    mean = format(scale * value.mean, style)
    if value.seeds > 1:
        return f"{mean} ± {format(scale * value.spread, style)}"
    if value.low == value.high:
        return mean
    return f"{mean} [{format(scale * value.low, style)}, {format(scale * value.high, style)}]"


STYLES = {
    "bits_per_byte": (".4f", 1.0),
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


def _label(record: Record) -> str:
    threshold = settings_of(record).get("memory.write_threshold")
    return f"`{row_name(record)}`" + ("" if threshold is None else f", threshold {threshold}")


def _term(number: Number, name: str) -> str:
    found = fact(number, name)
    return "" if found is None else str(found).replace("_", " ")


def _length(number: Number) -> tuple[object, str]:
    length = number.score.length or 0
    return length, format_length(length)


def _pairs(number: Number) -> tuple[object, str]:
    place = (number.score.length, number.score.detail["pairs"])
    return place, f"{format_length(place[0] or 0)}, {place[1]} pairs"


def _metric(number: Number) -> tuple[object, str]:
    metric = number.score.metric
    return int(metric.rpartition("@")[2]), metric


def _place(column: object) -> str:
    return format_length(column) if isinstance(column, int) else str(column)


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


def _cell(numbers: Sequence[Number] | None) -> str:
    return shown(summary(numbers)) if numbers else ""


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
