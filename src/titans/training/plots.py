"""Curves of runs, as PNG (or any picture format) or as one HTML page."""

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from titans.errors import DataError
from titans.files import plain_label, write_figure, write_text
from titans.training.log import Record, read_log

DEFAULT_METRICS = (
    "loss",
    "bits_per_byte",
    "accuracy",
    "surprise",
    "forget_gate",
    "momentum_decay",
    "step_size",
    "learning_rate",
    "grad_norm",
)
"""Drawn where a run has them."""
KINDS = ("train", "held_out")


@dataclass(frozen=True)
class RunCurves:
    """The log of one run, by metric."""

    name: str
    records: list[Record]

    def points(self, kind: str, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric."""
        rows = [
            (step, float(value))
            for r in self.records
            if r.get("kind") == kind
            and isinstance(step := r.get("step"), int)
            and isinstance(value := r.get(metric), (int, float))
        ]
        return [s for s, _ in rows], [v for _, v in rows]

    def has(self, metric: str) -> bool:
        """Whether there is anything to draw."""
        return any(self.points(kind, metric)[0] for kind in KINDS)


def load_curves(runs: Sequence[str | Path]) -> list[RunCurves]:
    """The curves of runs, named by their folders."""
    curves = [RunCurves(Path(run).name, read_log(run)) for run in runs]
    for run, curve in zip(runs, curves, strict=True):
        if not any(r.get("kind") == "train" for r in curve.records):
            raise DataError(f"{run}: its log has no training lines yet")
    return curves


def choose_metrics(curves: Sequence[RunCurves], wanted: Sequence[str]) -> list[str]:
    """`wanted`, or the usual ones that some run has."""
    known = sorted({key for c in curves for r in c.records for key in r} - {"kind", "step", "text"})
    for metric in wanted:
        if metric not in known:
            raise DataError(f"no run has the metric {metric!r}; there are {', '.join(known)}")
    return list(wanted) or [m for m in DEFAULT_METRICS if any(c.has(m) for c in curves)]


def draw(curves: Sequence[RunCurves], metrics: Sequence[str]) -> Figure:
    """One panel per metric: training as a line, held-out with markers, one colour per run."""
    columns = min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(5 * columns, 3.4 * rows), squeeze=False, layout="constrained"
    )
    for place, axes in enumerate(grid.flat):
        if place < len(metrics):
            _panel(axes, curves, metrics[place])
        else:
            axes.set_visible(False)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _panel(axes: Axes, curves: Sequence[RunCurves], metric: str) -> None:
    for number, curve in enumerate(curves):
        colour, name = f"C{number % 10}", plain_label(curve.name)
        steps, values = curve.points("train", metric)
        axes.plot(steps, values, color=colour, alpha=0.6, label=f"{name}, training")
        steps, values = curve.points("held_out", metric)
        if steps:
            axes.plot(steps, values, color=colour, marker="o", label=f"{name}, held out")
    axes.set_title(plain_label(metric.replace("_", " ")))
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)


def save(figure: Figure, curves: Sequence[RunCurves], path: Path) -> None:
    """Write a picture, or an HTML page with the picture and a table of last values."""
    if path.suffix in (".html", ".htm"):
        write_text(path, _page(figure, curves))
    else:
        write_figure(path, figure, dpi=130)
    plt.close(figure)


def summary(curves: Sequence[RunCurves]) -> list[dict[str, object]]:
    """The last values of each run."""
    rows: list[dict[str, object]] = []
    for curve in curves:
        row: dict[str, object] = {"run": curve.name}
        for kind in KINDS:
            last = next((r for r in reversed(curve.records) if r.get("kind") == kind), None)
            for key in ("step", "loss", "bits_per_byte", "accuracy", "tokens_per_second"):
                if last is not None and key in last:
                    row[f"{kind}_{key}"] = last[key]
        rows.append(row)
    return rows


def _page(figure: Figure, curves: Sequence[RunCurves]) -> str:
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    svg = picture.getvalue()
    rows = summary(curves)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{html.escape(key.replace('_', ' '))}</th>" for key in keys)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row.get(key))}</td>" for key in keys) + "</tr>"
        for row in rows
    )
    return (
        "<!doctype html><meta charset=utf-8><title>Training curves</title>"
        "<style>body{font:15px system-ui;margin:2em}td,th{padding:.3em .8em;text-align:right}"
        "svg{max-width:100%;height:auto}</style>"
        f"<h1>Training curves</h1><table><tr>{head}</tr>{body}</table>{svg[svg.index('<svg') :]}"
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return html.escape(str(value)) if value is not None else ""
