"""Pictures of the results page: ours as lines in colour, the paper's dashed and grey.

Each `draw_*` takes the records of its task, writes a PNG and returns the figure; where no record
has what it shows, it writes nothing and returns None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from titans.evaluation import paper
from titans.evaluation.figure_parts import (
    Lines,
    add_legend,
    choose_looks,
    make_panels,
    plot_band,
    plot_ours,
    plot_published,
    save_figure,
    scale_lengths,
)
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record
from titans.evaluation.report_cells import by_haystack, by_model, first_score, lengths_of

TITANS = ("Titans LMM", "Titans MAC", "Titans MAG", "Titans MAL")
"""Of the paper's rows, those that are drawn; its other ones are in the tables."""


def draw_s_niah(records: Sequence[Record], path: Path) -> Figure | None:
    """Accuracy by length, one panel per kind of needle; our models side by side at each length."""
    kinds = {
        kind: _by_length(by_haystack(records, kind), "accuracy", kind=kind)
        for kind in ("pk", "n", "w")
    }
    kinds = {kind: _in_percent(ours) for kind, ours in kinds.items() if ours}
    if not kinds:
        return None
    figure, axes = make_panels(*(3 + 0.3 * _doublings(ours) for ours in kinds.values()), height=5)
    looks = choose_looks(kinds.values())
    for axis, (kind, ours) in zip(axes, kinds.items(), strict=True):
        variants, ttt = (
            _published({model: paper.S_NIAH[model][kind] for model in models}, paper.S_NIAH_LENGTHS)
            for models in (TITANS, ("TTT",))
        )
        plot_ours(axis, ours, looks, apart=5)
        plot_published(axis, ttt)
        plot_band(axis, variants, "Titans LMM, MAC, MAG, MAL (paper)")
        scale_lengths(axis, ttt, ours)
        axis.margins(x=0.12)
        axis.set_ylim(-4, 104)
        axis.set_title(f"S-NIAH-{kind.upper()}")
    axes[0].set_ylabel("accuracy (per cent)")
    add_legend(figure, columns=4, looks=looks)
    return save_figure(figure, path)


def draw_babilong(records: Sequence[Record], path: Path) -> Figure | None:
    """Accuracy by length, one line per model and task."""
    tasks = sorted({str(s.detail["task"]) for r in records for s in r.scores if "task" in s.detail})
    models = by_model(records)
    ours = {
        f"{name}, {task}": points
        for task in tasks
        for name, points in _in_percent(_by_length(models, "accuracy", task=task)).items()
    }
    if not ours:
        return None
    figure, (axis,) = make_panels(8, height=5.4)
    published = _published(paper.BABILONG, paper.BABILONG_LENGTHS, "paper, mean qa1-5")
    plot_ours(axis, ours, choose_looks([ours]))
    plot_published(axis, published)
    scale_lengths(axis, published, ours)
    axis.set_ylim(-4, 104)
    axis.set_title("BABILong")
    axis.set_ylabel("accuracy (per cent)")
    add_legend(figure, columns=2)
    return save_figure(figure, path)


def draw_throughput(records: Sequence[Record], path: Path) -> Figure | None:
    """Tokens per second by length, one panel per phase, each model at its own memory depth."""
    phases = {phase: _speeds(records, phase) for phase in ("train", "prefill", "decode")}
    phases = {phase: ours for phase, ours in phases.items() if ours}
    if not phases:
        return None
    figure, axes = make_panels(*[4] * len(phases))
    looks = choose_looks(phases.values())
    for axis, (phase, ours) in zip(axes, phases.items(), strict=True):
        plot_ours(axis, ours, looks)
        scale_lengths(axis, ours)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_title(phase)
    axes[0].set_ylabel("tokens per second")
    add_legend(figure, columns=6)
    return save_figure(figure, path)


def draw_speed_by_length(records: Sequence[Record], path: Path) -> Figure | None:
    """Training speed beside the paper's figure 9, each relative to its own at the first length."""
    first = paper.THROUGHPUT_LENGTHS[0]
    ours = _relative(_speeds(records, "train"), first)
    if not ours:
        return None
    rows = {model: paper.THROUGHPUT[model] for model in ("Transformer++", *TITANS)}
    published = _relative(_published(rows, paper.THROUGHPUT_LENGTHS), first)
    figure, (axis,) = make_panels(6.4, height=4.6)
    plot_ours(axis, ours, choose_looks([ours]))
    plot_published(axis, published)
    scale_lengths(axis, published, ours)
    axis.set_ylim(bottom=0)
    axis.set_title("Training by length, beside the paper's figure 9")
    axis.set_ylabel(f"speed (1 = own at {format_length(first)})")
    add_legend(figure, columns=3)
    return save_figure(figure, path)


def draw_speed_by_depth(records: Sequence[Record], path: Path) -> Figure | None:
    """Training speed beside the paper's figure 8, each relative to its own at memory depth 1."""
    ours = _relative(_by_depth(records), 1)
    if not ours:
        return None
    first = format_length(paper.DEPTH_THROUGHPUT_LENGTHS[0])
    depths = {depth: speeds[0] for depth, speeds in paper.DEPTH_THROUGHPUT.items()}
    published = _relative({f"Titans LMM, {first} (paper)": depths}, 1)
    figure, (axis,) = make_panels(6.4)
    plot_ours(axis, ours, choose_looks([ours]))
    plot_published(axis, published)
    axis.set_xticks(sorted({n for line in (*ours.values(), depths) for n in line}))
    axis.set_xlabel("memory depth (layers)")
    axis.set_ylim(bottom=0)
    axis.set_title("Training by memory depth, beside the paper's figure 8")
    axis.set_ylabel("speed (1 = own at depth 1)")
    add_legend(figure, columns=3)
    return save_figure(figure, path)


class Picture(NamedTuple):
    """A picture of a task's section."""

    task: str
    file: str
    title: str
    draw: Callable[[Sequence[Record], Path], Figure | None]


PICTURES = (
    Picture("s-niah", "s-niah-length.png", "S-NIAH: accuracy by length", draw_s_niah),
    Picture("babilong", "babilong-length.png", "BABILong: accuracy by length", draw_babilong),
    Picture("throughput", "throughput.png", "Tokens per second by length", draw_throughput),
    Picture(
        "throughput",
        "throughput-length.png",
        "Relative training speed by length",
        draw_speed_by_length,
    ),
    Picture(
        "throughput",
        "throughput-depth.png",
        "Relative training speed by memory depth",
        draw_speed_by_depth,
    ),
)


def draw_pictures(records: Sequence[Record], folder: Path) -> dict[str, list[str]]:
    """Draw what the records have; returns the links of each task, for a page beside `folder`."""
    links: dict[str, list[str]] = {}
    for picture in PICTURES:
        chosen = [r for r in records if r.task == picture.task and not r.sweep]
        if picture.draw(chosen, folder / picture.file) is not None:
            link = f"![{picture.title}]({folder.name}/{picture.file})"
            links.setdefault(picture.task, []).append(link)
    return links


def _by_length(groups: Mapping[str, Sequence[Record]], metric: str, **detail: str) -> Lines:
    """One line per group of records: each point from the first of them that has it."""
    lines = {}
    for name, ours in groups.items():
        lengths = lengths_of(ours, metric, depth=None, **detail)
        scores = {n: first_score(ours, metric, n, **detail) for n in lengths}
        points = {n: score.value for n, score in scores.items() if score is not None}
        if points:
            lines[name.replace("`", "")] = points
    return lines


def _doublings(lines: Lines) -> float:
    """How often the shortest length doubles until the longest is reached."""
    lengths = [length for points in lines.values() for length in points]
    return math.log2(max(lengths) / min(lengths))


def _speeds(records: Sequence[Record], phase: str) -> Lines:
    return _by_length(by_model(records), "tokens_per_second", phase=phase)


def _by_depth(records: Sequence[Record]) -> Lines:
    """Training speed by memory depth, one line per model and length."""
    lines: dict[str, dict[int, float]] = {}
    scores = [
        (name, score)
        for name, ours in by_model(records).items()
        for length in lengths_of(ours, "tokens_per_second", phase="train")
        for record in ours
        for score in record.scores
        if score.matches("tokens_per_second", length, phase="train")
    ]
    for name, score in scores:
        if isinstance(depth := score.detail.get("depth"), int):
            label = f"{name.replace('`', '')}, {format_length(score.length or 0)}"
            lines.setdefault(label, {}).setdefault(depth, score.value)
    return lines


def _published(
    rows: Mapping[str, Sequence[float]], lengths: Sequence[int], source: str = "paper"
) -> Lines:
    return {
        f"{name} ({source})": dict(zip(lengths, values, strict=True))
        for name, values in rows.items()
    }


def _in_percent(lines: Lines) -> Lines:
    return {label: {n: 100 * v for n, v in points.items()} for label, points in lines.items()}


def _relative(lines: Lines, first: int) -> Lines:
    """Each line divided by its own value at `first`; lines without one, or of one, are left out."""
    return {
        label: {n: value / points[first] for n, value in points.items()}
        for label, points in lines.items()
        if first in points and len(points) > 1
    }
