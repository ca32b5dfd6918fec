"""What the pictures of the results page share: panels, lines, the axis of lengths, the file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from titans.evaluation.lengths import format_length

Points = Mapping[int, float]
"""Length or depth -> value."""
Lines = Mapping[str, Points]
"""Label -> points."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLES = ("-", ":", "-.")
ON = ", on "
"""In a label, what stands between a model and the text that it was measured on."""


class Look(NamedTuple):
    """How a line of ours is drawn."""

    colour: str
    marker: str
    style: str


def make_panels(count: int, width: float, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side."""
    figure = Figure(figsize=(width * count, height), layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    for axis in axes:
        axis.grid(color="#e4e4e4", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def choose_looks(panels: Iterable[Lines]) -> dict[str, Look]:
    """A look for each label, in all panels: a model's colour and marker, a text's style."""
    labels = dict.fromkeys(label for lines in panels for label in lines)
    models = list(dict.fromkeys(label.partition(ON)[0] for label in labels))
    texts = sorted({label.partition(ON)[2] for label in labels} - {""})
    looks = {}
    for label in labels:
        model, _, text = label.partition(ON)
        i, style = models.index(model), texts.index(text) if text else 0
        looks[label] = Look(
            COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], STYLES[style % len(STYLES)]
        )
    return looks


def plot_ours(axis: Axes, lines: Lines, looks: Mapping[str, Look]) -> None:
    """Lines in colour; hollow markers, so that lines on top of each other are seen."""
    for label, points in lines.items():
        axis.plot(
            *_coordinates(points),
            label=label,
            color=looks[label].colour,
            marker=looks[label].marker,
            linestyle=looks[label].style,
            markerfacecolor="none",
            markersize=6,
            linewidth=1.6,
        )


def plot_published(axis: Axes, lines: Lines) -> None:
    """Thin dashed grey lines with small full markers, below ours."""
    for (label, points), marker in zip(lines.items(), MARKERS, strict=False):
        axis.plot(
            *_coordinates(points),
            label=label,
            color="#808080",
            linestyle="--",
            marker=marker,
            markersize=3.5,
            linewidth=0.8,
            zorder=1.5,
        )


def _coordinates(points: Points) -> tuple[list[int], list[float]]:
    places = sorted(points)
    return places, [points[place] for place in places]


def scale_lengths(axis: Axes, *shown: Lines) -> None:
    """Lengths to the right, each doubling one step; a tick at every length that is shown."""
    lengths = sorted({n for lines in shown for points in lines.values() for n in points})
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(lengths))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_length(round(value))))
    axis.set_xlabel("length (tokens)")


def add_legend(figure: Figure, columns: int) -> None:
    """One legend for all panels, below them."""
    entries = {
        label: handle
        for axis in figure.axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=columns, fontsize=9
    )


def save_figure(figure: Figure, path: Path) -> Figure:
    """Write the PNG without date and version: the same lines give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return figure
