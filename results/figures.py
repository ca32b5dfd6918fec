"""The pictures of docs/results.md, one for each question: ours in colour, published in grey."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from results.query import KINDS, Number, Value, fact, find, kind_of, row_name, values
from titans.evaluation.heatmap import depth_scores, draw_heat_map
from titans.evaluation.lengths import format_length
from titans.evaluation.record import Record
from titans.files import write_figure

Points = Mapping[Any, float]
Published = Mapping[str, Mapping[str, Points]]
COLOURS = dict(
    zip(
        KINDS,
        "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #7A5195 #8C6D31 #000000 #999999".split(),
        strict=True,
    )
)
"""Okabe and Ito's, which colour-blind readers can tell apart: one for each kind of model."""
MARKERS = dict(zip(KINDS, "os^DvPX*ph", strict=True))
STYLES = ("-", ":", "-.", (0, (5, 1)), (0, (1, 3)))
"""Of several lines of one kind of model, in their order."""
PERCENT = (-4, 104)


class Line:
    """A line of ours: its points, its kind of model and its label."""

    def __init__(self, label: str, kind: str | None, points: Points) -> None:
        self.label, self.kind, self.points = label, kind, points


def by_place(
    numbers: Sequence[Number], where: Mapping[str, Any], place: str = "length", scale: float = 1.0
) -> list[Line]:
    """A line for each model: its value at every place that it has one."""
    lines: dict[str, dict[Any, float]] = {}
    kinds: dict[str, str | None] = {}
    for point in sorted({fact(n, place) for n in find(numbers, where)} - {None}):  # type: ignore[type-var]
        for value in values(numbers, {**where, place: point}):
            lines.setdefault(value.model, {})[point] = scale * value.mean
            kinds[value.model] = kind_of(value.numbers[0].record)
    order = list(KINDS)
    ranked = sorted(lines, key=lambda name: order.index(kinds[name] or "transformer"))
    return [Line(name, kinds[name], lines[name]) for name in ranked]


def draw(
    path: Path,
    panels: Mapping[str, Sequence[Line]],
    published: Mapping[str, Mapping[str, Points]] = {},
    *,
    xlabel: str = "length (tokens)",
    ylabel: str = "accuracy (per cent)",
    limits: tuple[float | None, float | None] = PERCENT,
    is_log: bool = False,
    columns: int = 4,
) -> Figure:
    """One panel of lines for each title; `published` has the dashed grey ones by title."""
    figure = Figure(figsize=(max(6.4, 4.0 * len(panels)), 4.4), layout="constrained")
    axes = list(figure.subplots(1, len(panels), squeeze=False)[0])
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        others = published.get(title, {})
        for label, points in others.items():
            axis.plot(*_xy(points), "--.", label=label, color="#909090", linewidth=0.8, zorder=1.5)
        _plot(axis, lines)
        _scale(axis, [line.points for line in lines] + list(others.values()))
        axis.set(title=title, xlabel=xlabel)
        axis.set_yscale("log" if is_log else "linear")
        if not is_log:
            axis.set_ylim(*limits)
    axes[0].set_ylabel(ylabel)
    entries = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=columns, fontsize=9
    )
    write_figure(path, figure, dpi=100)
    return figure


def _plot(axis: Axes, lines: Sequence[Line]) -> None:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines):
        look = line.kind or list(KINDS)[number]
        style = STYLES[seen.get(look, 0) % len(STYLES)]
        seen[look] = seen.get(look, 0) + 1
        axis.plot(
            *_xy(line.points),
            label=line.label,
            color=COLOURS[look],
            marker=MARKERS[look],
            linestyle=style,
            markerfacecolor="none",
            linewidth=1.5,
        )
    axis.grid(color="#e4e4e4", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _xy(points: Points) -> tuple[list[Any], list[float]]:
    places = sorted(points)
    return places, [points[place] for place in places]


def _scale(axis: Axes, lines: Iterable[Points]) -> None:
    """Each doubling one step to the right, a tick at every place that has a value."""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sorted({x for points in lines for x in points})))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_length(round(value))))


def draw_s_niah(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """Needles in text by length, a panel for each kind."""
    panels = {
        f"S-NIAH-{kind.upper()}": by_place(numbers, {"task": "s-niah", "kind": kind}, scale=100)
        for kind in ("pk", "n", "w")
    }
    papers = {
        f"S-NIAH-{kind.upper()}": {
            f"{name} (paper)": points
            for name, points in published[f"s_niah_{kind}"].items()
            if name in ("Titans LMM", "Titans MAC", "TTT")
        }
        for kind in ("pk", "n", "w")
    }
    return draw(path, panels, papers)


def draw_babilong(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """Facts in books by length, a panel for each model and a line for each question."""
    panels: dict[str, list[Line]] = {}
    for model in sorted({row_name(n.record) for n in find(numbers, {"task": "babilong"})}):
        lines = []
        for question in [f"qa{number}" for number in range(1, 6)]:
            where = {"task": "babilong", "model": model, "question": question}
            lines += [
                Line(question, None, line.points) for line in by_place(numbers, where, scale=100)
            ]
        panels[model] = lines
    last = list(panels)[-1]
    papers = {f"{name} (paper, mean of 5)": p for name, p in published["babilong"].items()}
    return draw(path, panels, {last: papers}, columns=3)


def draw_mqar(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """Associative recall by the number of pairs, a panel for each width, after an hour each."""
    where = {"task": "mqar", "setting": "b", "vocab_size": 8_192, "minutes": 60.0}
    panels = {}
    for width in (64, 128):
        chosen = [n for n in find(numbers, {**where, "hidden_size": width})]
        lines = by_place(chosen, where, "pairs", scale=100)
        panels[f"width {width}"] = [
            Line(line.label.replace(f" {width}", "", 1), line.kind, line.points) for line in lines
        ]
    return draw(path, panels, xlabel="key-value pairs in the text")


def draw_language(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """Bits per byte of models that were trained at the length of the windows they are asked in."""
    where = {"task": "lm", "metric": "bits_per_byte", "from": None}
    trained = [n for n in numbers if n.record.sweep == f"language-{n.score.length}"]
    sweeps = {"sweep": sorted({n.record.sweep for n in trained})}
    panels = {"enwik8": by_place(trained, {**where, **sweeps})}
    return draw(path, panels, ylabel="bits per byte", limits=(None, None), columns=2)


def draw_state_tracking(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """The running product by the number of elements, a panel for each group."""
    panels = {}
    for group in ("S3", "S5"):
        sweep = {"task": "permutations", "sweep": f"state-tracking-{group}"}
        panels[group] = by_place(numbers, {**sweep, "metric": "last_accuracy"}, scale=100)
    return draw(path, panels, xlabel="elements", columns=3)


def draw_throughput(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """Tokens per second by length, a panel for each phase."""
    where = {"task": "throughput", "metric": "tokens_per_second", "depth": None}
    panels = {
        phase: by_place(numbers, {**where, "phase": phase})
        for phase in ("train", "prefill", "decode")
    }
    return draw(path, panels, ylabel="tokens per second", is_log=True, columns=6)


def draw_relative_speed(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """Training speed, each model relative to itself, beside the paper's figures 9 and 8."""
    where = {"task": "throughput", "metric": "tokens_per_second", "phase": "train"}
    by_length = [
        Line(line.label, line.kind, _relative(line.points))
        for line in by_place(numbers, {**where, "depth": None})
    ]
    by_depth = [
        Line(f"{line.label}, {format_length(length)}", None, _relative(line.points))
        for length in (2_048, 8_192)
        for line in by_place(numbers, {**where, "length": length, "model": "lmm"}, "depth")
    ]
    papers = {
        "by length": {
            f"{name} (paper)": _relative(points)
            for name, points in published["speed"].items()
            if name.startswith(("Titans", "Transformer"))
        },
        "by depth of the memory": {
            "Titans LMM (paper)": _relative(
                {
                    int(depth): next(iter(p.values()))
                    for depth, p in published["speed_by_depth"].items()
                }
            )
        },
    }
    panels = {"by length": by_length, "by depth of the memory": by_depth}
    return draw(
        path,
        panels,
        papers,
        xlabel="length (tokens), layers",
        ylabel="training speed (1 = own at the left)",
        limits=(0, None),
    )


def _relative(points: Points) -> Points:
    """Points divided by the first of them."""
    first = points[min(points)]
    return {place: value / first for place, value in points.items()}


def draw_needle(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """Needles in noise by length, without and with distractors."""
    panels = {
        title: by_place(numbers, {"task": "needle", "distractors": wanted}, scale=100)
        for title, wanted in (("no distractors", False), ("with distractors", True))
    }
    return draw(path, panels)


def draw_parts(numbers: Sequence[Number], published: Published, path: Path) -> Figure:
    """What leaving a part out costs: mean and standard deviation over the seeds."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    recall = {"task": "mqar", "sweep": "recall"}
    text = {
        "task": "lm",
        "sweep": "ablation",
        "metric": "bits_per_byte",
        "from": None,
        "length": 512,
    }
    _bars(left, values(numbers, recall), 100, "recall: accuracy, per cent")
    _bars(right, values(numbers, text), 1, "text: bits per byte")
    write_figure(path, figure, dpi=100)
    return figure


def _bars(axis: Axes, rows: Sequence[Value], scale: float, title: str) -> None:
    names = [row.model for row in rows]
    means, spreads = [scale * row.mean for row in rows], [scale * row.spread for row in rows]
    colours = ["#0072B2" if name == "full" else "#909090" for name in names]
    axis.scatter(means, range(len(names)), c=colours, zorder=2)
    axis.errorbar(means, range(len(names)), xerr=spreads, fmt="none", ecolor="#909090", zorder=1)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_title(title, fontsize=10)
    axis.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


FIGURES: dict[str, Callable[[Sequence[Number], Published, Path], Figure]] = {
    "needle": draw_needle,
    "s-niah": draw_s_niah,
    "babilong": draw_babilong,
    "mqar": draw_mqar,
    "language": draw_language,
    "state-tracking": draw_state_tracking,
    "parts": draw_parts,
    "throughput": draw_throughput,
    "relative-speed": draw_relative_speed,
}
"""Name of the file -> what draws it."""


def draw_all(
    records: Sequence[Record], numbers: Sequence[Number], published: Published, folder: Path
) -> None:
    """Every picture of the page, and a map for each record that has depths."""
    for name, function in FIGURES.items():
        function(numbers, published, folder / f"{name}.png")
    for record in records:
        if depth_scores(record):
            draw_heat_map(record, folder / f"{record.task}-{record.model.name}-depths.png")
