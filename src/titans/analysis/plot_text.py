"""The text itself as a picture, every token shaded by surprise."""

from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Rectangle

from titans.analysis.records import Trace
from titans.files import plain_label

SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", "#fbd3b4", "#f08a3c", "#e85d04"])
INK, SOFT, FAINT = "#1d1b16", "#6b6558", "#a8a294"
RIGHT: dict[str, Any] = {"ha": "right", "va": "center"}
TYPED: dict[str, Any] = {"family": "DejaVu Sans Mono", "ha": "left", "va": "center"}
NAMES = {"loss": "surprise", "grad_norm": "gradient norm", "write_size": "write size"}
BOX = "\N{WHITE SQUARE}"
COLUMNS = 92
MARGIN = 7
"""Columns left of the text, for positions."""
LINES = 26
FONT_SIZE = 9.2
ADVANCE = 0.60205
"""Width of a character of that font (matplotlib brings it along), in font sizes."""
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
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [0.25, 0.998]) if len(known) else (0.0, 1.0)
    last = min(places[-1][0], first + lines - 1)
    rows = last - first + 1
    width = (COLUMNS + MARGIN + 1) * ADVANCE * FONT_SIZE / 72
    figure = Figure(figsize=(width, (rows + 3) * LINE_HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-MARGIN, COLUMNS + 1)
    axes.set_ylim(rows + 0.8, -2.2)
    axes.text(
        -MARGIN + 1,
        -1.1,
        plain_label(trace.name),
        fontsize=11,
        fontweight="bold",
        color=INK,
        va="center",
    )
    axes.text(COLUMNS, -1.1, f"shade: {NAMES[measure]}", fontsize=8.5, color=SOFT, **RIGHT)
    shown: dict[int, list[tuple[int, int]]] = {}
    for token, (line, column) in enumerate(places):
        if not first <= line <= last:
            continue
        shown.setdefault(line - first, []).append((token, column))
        shade = float(np.clip((values[token] - low) / max(high - low, 1e-12), 0, 1))
        if shade > 0.01:
            corner, length = (column - 0.1, line - first + 0.06), len(_shown(trace.texts[token]))
            axes.add_patch(Rectangle(corner, length + 0.2, 0.88, color=SHADES(shade), lw=0))
    for row, tokens in shown.items():
        axes.text(-1.2, row + 0.53, f"{tokens[0][0]:,}", fontsize=6.5, color=FAINT, **RIGHT)
        for column, text in _runs([(_shown(trace.texts[token]), c) for token, c in tokens]):
            axes.text(column, row + 0.53, text, fontsize=FONT_SIZE, color=INK, **TYPED)
    return figure


def _runs(tokens: list[tuple[str, int]]) -> list[tuple[int, str]]:
    """The words of a line, each with its column: tokens that touch are drawn as one."""
    runs: list[tuple[int, str]] = []
    for text, column in tokens:
        if not text.strip():
            continue
        if runs and runs[-1][0] + len(runs[-1][1]) == column:
            runs[-1] = (runs[-1][0], runs[-1][1] + text)
        else:
            runs.append((column, text))
    return [(column, plain_label(_drawable(text))) for column, text in runs]


def _drawable(text: str) -> str:
    """The text with a box for every character that the font does not have."""
    return "".join(c if c.isascii() or _has_glyph(c) else BOX for c in text)


@lru_cache(maxsize=4_096)
def _has_glyph(character: str) -> bool:
    font = get_font(findfont(str(TYPED["family"])))
    return bool(font.get_char_index(ord(character)))


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
