"""The text itself as a picture, every token shaded by surprise."""

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from titans.analysis.records import Trace

SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#fbd3b4", "#f08a3c", "#e85d04"])
COLUMNS = 92
LINES = 26
LINE_HEIGHT = 0.235
"""Inches."""


def plot_text(
    trace: Trace, *, measure: str = "loss", start: int | None = None, lines: int = LINES
) -> Figure:
    """A passage with every token shaded; what lies above the 99.8th percentile is full.

    Args:
        measure: loss, grad_norm or write_size; the mean over layers and heads.
        start: first token; None chooses the passage that holds most of the strongest writes.
        lines: how many lines at most.
    """
    if not trace.texts:
        raise ValueError("the trace has no text: give `trace` passages with texts")
    values = trace.surprise(measure)
    places = _lay_out(trace.texts)
    first = _densest(trace, places, lines) if start is None else places[start][0]
    low, high = np.quantile(values, [0.1, 0.998])
    last = min(places[-1][0], first + lines - 1)
    figure = Figure(figsize=(8.1, (last - first + 1) * LINE_HEIGHT + 0.75))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set_axis_off()
    axes.set_xlim(-7, COLUMNS + 1)
    axes.set_ylim(last - first + 1.2, -1.9)
    axes.text(-6, -1.0, trace.name, fontsize=11, fontweight="bold", color="#1d1b16", va="center")
    names = {"loss": "surprise", "grad_norm": "gradient norm", "write_size": "write size"}
    axes.text(COLUMNS, -1.0, f"shade: {names[measure]}", fontsize=8.5, color="#6b6558", ha="right")
    labelled: set[int] = set()
    for token, (line, column) in enumerate(places):
        if not first <= line <= last:
            continue
        if line not in labelled:
            labelled.add(line)
            row = line - first + 0.5
            axes.text(
                -1.2, row, f"{token:,}", fontsize=6.5, color="#a8a294", ha="right", va="center"
            )
        shade = float(np.clip((values[token] - low) / max(high - low, 1e-12), 0, 1))
        _draw_token(axes, trace.texts[token], line - first, column, shade)
    return figure


def _lay_out(texts: tuple[str, ...]) -> list[tuple[int, int]]:
    """Line and column of every token in a typewriter's page of `COLUMNS` columns."""
    places: list[tuple[int, int]] = []
    line = column = 0
    for text in texts:
        shown = _shown(text)
        if "\n" in text[: len(text) - len(text.lstrip())]:
            line, column = line + 1, 0
        elif text[:1] == " " and column and shown != " ":
            column += 1
        if column + len(shown) > COLUMNS and column:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(shown)
        if text.endswith("\n") and shown:
            line, column = line + 1, 0
    return places


def _shown(text: str) -> str:
    bare = text.strip()
    if bare:
        return bare.replace("\n", " ")
    return " " if text and "\n" not in text else ""


def _draw_token(axes, text: str, row: int, column: int, shade: float) -> None:
    shown = _shown(text)
    if shade > 0.01:
        box = Rectangle(
            (column - 0.1, row + 0.06), len(shown) + 0.2, 0.88, color=SHADES(shade), lw=0
        )
        axes.add_patch(box)
    for offset, character in enumerate(shown):
        axes.text(
            column + offset + 0.5,
            row + 0.53,
            # A dollar sign would start a formula.
            r"\$" if character == "$" else character,
            family="monospace",
            fontsize=9,
            ha="center",
            va="center",
            color="#1d1b16",
        )


def _densest(trace: Trace, places: list[tuple[int, int]], lines: int) -> int:
    """The first line of the passage with the most of the strongest writes in it."""
    hits = [places[peak.position][0] for peak in trace.peaks if peak.position < len(places)]
    if not hits:
        return 0
    end = max(0, places[-1][0] - lines + 1)
    starts = sorted({min(max(0, hit - 2), end) for hit in hits} | {0})
    return max(
        starts, key=lambda start: (sum(start <= hit < start + lines for hit in hits), -start)
    )
