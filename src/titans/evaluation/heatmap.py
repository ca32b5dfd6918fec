"""A picture of accuracy by depth and length, from a record that has both."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from titans.errors import DataError
from titans.evaluation.lengths import format_length
from titans.evaluation.record import Record, Score
from titans.files import plain_label, write_figure

SUFFIXES = (".png", ".pdf")
"""What a map can be drawn as."""


def depth_scores(record: Record) -> list[Score]:
    """The accuracies that have both a depth and a length."""
    return [
        score
        for score in record.scores
        if score.metric == "accuracy" and "depth" in score.detail and score.length
    ]


def draw_heat_map(record: Record, path: str | Path) -> None:
    """One panel per kind of needle: depth downwards, length to the right, accuracy in colour."""
    scores = depth_scores(record)
    if not scores:
        raise DataError(f"the record of {record.task} has no accuracy by depth and length")
    kinds = sorted({str(score.detail.get("kind", "")) for score in scores})
    figure = Figure(figsize=(4.2 * len(kinds) + 0.8, 3.6))
    axes = figure.subplots(1, len(kinds), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        _draw_panel(axis, [s for s in scores if str(s.detail.get("kind", "")) == kind], kind)
    figure.suptitle(
        f"{plain_label(record.model.name)}: {record.task}, {scores[0].samples} samples per cell"
    )
    figure.tight_layout()
    write_figure(path, figure)


def _draw_panel(axis: Axes, scores: list[Score], kind: str) -> None:
    lengths = sorted({score.length for score in scores if score.length})
    depths = sorted({float(str(score.detail["depth"])) for score in scores})
    grid = np.full((len(depths), len(lengths)), np.nan)
    for score in scores:
        row = depths.index(float(str(score.detail["depth"])))
        grid[row, lengths.index(score.length or 0)] = score.value
    axis.imshow(grid, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
    axis.set_xticks(range(len(lengths)), [format_length(length) for length in lengths])
    axis.set_yticks(range(len(depths)), [f"{100 * depth:.0f} %" for depth in depths])
    axis.set_xlabel("length (tokens)")
    axis.set_ylabel("depth of the needle")
    axis.set_title(kind.upper())
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if abs(value - 0.5) > 0.4 else "black"  # both ends are dark
            shown = f"{100 * value:.0f}"
            axis.text(column, row, shown, ha="center", va="center", fontsize=8, color=colour)
