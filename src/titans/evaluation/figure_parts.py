"""What the pictures of the results page share: panels, lines, the axis of lengths, the file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from titans.evaluation.lengths import format_length
from titans.files import write_figure

Points = Mapping[int, float]
"""Length or depth -> value."""
Lines = Mapping[str, Points]
"""Label -> points."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
Style = Literal["-", ":", "-."]
STYLES: tuple[Style, ...] = ("-", ":", "-.")
ON = ", on "
"""In a label, what stands between a model and the text that it was measured on."""


class Look(NamedTuple):
    """How a line of ours is drawn."""

    colour: str
    marker: str
    style: Style


def make_panels(*widths: float, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, sizes in inches."""
    figure = Figure(figsize=(sum(widths), height), layout="constrained")
    axes = list(figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0])
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


def plot_ours(axis: Axes, lines: Lines, looks: Mapping[str, Look], apart: float = 0.0) -> None:
    """Lines in colour; hollow markers, so that lines on top of each other are seen.

    Args:
        apart: by how many typographic points each model is drawn to the right of the one before
            it, where many have the same values; their data stay as they are.
    """
    models = list(dict.fromkeys(label.partition(ON)[0] for label in lines))
    for label, points in lines.items():
        (line,) = axis.plot(
            *_coordinates(points),
            label=label,
            color=looks[label].colour,
            marker=looks[label].marker,
            linestyle=looks[label].style,
            markerfacecolor="none",
            markersize=6,
            linewidth=1.2 if apart else 1.6,
        )
        place = models.index(label.partition(ON)[0]) - (len(models) - 1) / 2
        _move(axis, line, apart * place)


def _move(axis: Axes, line: Line2D, points: float) -> None:
    """Draw a line, which the axis has seen already, so many typographic points further right."""
    if points:
        root = axis.get_figure(root=True)
        assert root is not None
        right = ScaledTranslation(points / 72, 0, root.dpi_scale_trans)
        line.set_transform(axis.transData + right)


def plot_band(axis: Axes, lines: Lines, label: str) -> None:
    """The grey ground between the lowest and the highest of some lines of the same lengths."""
    lengths, _ = _coordinates(next(iter(lines.values())))
    values = [[points[length] for points in lines.values()] for length in lengths]
    low, high = [min(row) for row in values], [max(row) for row in values]
    axis.fill_between(lengths, low, high, color="#d0d0d0", linewidth=0, label=label, zorder=1)


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


def add_legend(figure: Figure, columns: int, looks: Mapping[str, Look] | None = None) -> None:
    """One legend for all panels, below them.

    Args:
        looks: of our lines, to name each model and each text once instead of every line.
    """
    entries: dict[str, Artist] = {} if looks is None else _keys(looks)
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            if looks is None or label not in looks:
                entries[label] = handle
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=columns, fontsize=9
    )


def _keys(looks: Mapping[str, Look]) -> dict[str, Artist]:
    """A colour and marker for each model, a style for each text."""
    models: dict[str, Artist] = {}
    texts: dict[str, Artist] = {}
    for label, (colour, marker, style) in looks.items():
        model, _, text = label.partition(ON)
        models[model] = Line2D([], [], color=colour, marker=marker, markerfacecolor="none")
        if text:
            texts[f"in {text}"] = Line2D([], [], color="#404040", linestyle=style)
    return models | dict(sorted(texts.items()))


def save_figure(figure: Figure, path: Path) -> Figure:
    """Write the picture and hand the figure on."""
    write_figure(path, figure)
    return figure
