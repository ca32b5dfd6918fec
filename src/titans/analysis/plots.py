"""Pictures of traces. Every function takes one trace or several and returns a matplotlib figure.

Several traces stand side by side on common scales. Figures are made without pyplot: nothing global
changes, and a notebook shows what is returned.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from titans.analysis.forgetting import forgetting_curve, show_tokens
from titans.analysis.plot_text import plot_text
from titans.analysis.records import MODES, FloatArray, LayerTrace, Trace
from titans.files import plain_label, write_figure

INK, SOFT, LINE = "#1d1b16", "#6b6558", "#e5e0d5"
COLOURS = ("#c2410c", "#1d6fb8", "#15803d", "#8b3fb8", "#b08900", "#c0266b", "#0f7f8a", "#6b6558")
MODE_COLOURS = {"live": "#c2410c", "frozen": "#1d6fb8", "off": "#8a8475"}
HEAT = LinearSegmentedColormap.from_list("heat", ["#ffffff", "#fbd3b4", "#e85d04", "#8c2f00"])
MEASURES = {
    "loss": "surprise (loss)",
    "grad_norm": "gradient norm",
    "write_size": "write size",
}
GATES = (
    ("forget_gate", "forgetting (alpha)"),
    ("momentum_decay", "momentum (eta)"),
    ("step_size", "step size (theta)"),
    ("memory_share", "memory's share"),
)
LIFE = (
    ("weight_norm", "norm of the weights"),
    ("drift", "drift from the start"),
    ("momentum_norm", "norm of the momentum"),
    ("effective_rank", "effective rank"),
    ("drift_rank", "rank of what was written"),
)


def plot_surprise(*traces: Trace, measure: str = "loss") -> Figure:
    """Surprise over the whole text: the mean of every bin, and its highest token."""
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(MEASURES)}; got {measure!r}")
    figure, grid = _grid(traces, 1, 2.4)
    for axes, trace in zip(grid[0], traces, strict=True):
        for number, layer in enumerate(trace.layers):
            curve = layer.curves[measure]
            x = curve.positions + curve.width / 2
            colour = _colour(number)
            axes.fill_between(x, 0, curve.high.max(1), color=colour, alpha=0.22, lw=0, step="mid")
            axes.plot(x, curve.mean.mean(1), color=colour, lw=1.4, label=f"layer {layer.layer}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("token")
        axes.set_ylabel(f"{MEASURES[measure]}:\nmean, and highest")
        _legend(axes, trace)
    return figure


def plot_gates(*traces: Trace, layer: int | None = None) -> Figure:
    """Forgetting, momentum, step size and the memory's share over the text.

    Args:
        layer: draw the heads of this layer; None: one line per layer.
    """
    names = [
        (name, title)
        for name, title in GATES
        if any(name in one.curves for trace in traces for one in _layers(trace, layer))
    ]
    figure, grid = _grid(traces, len(names), 1.75)
    for row, (name, title) in zip(grid, names, strict=True):
        for axes, trace in zip(row, traces, strict=True):
            _gate(axes, trace, layer, name)
            axes.set_ylabel(title)
    return _finish(figure, grid, traces, layer)


def plot_life(*traces: Trace, layer: int | None = None) -> Figure:
    """Norm, drift, momentum and effective ranks of the memory over the text."""
    figure, grid = _grid(traces, len(LIFE), 1.6)
    for row, (name, title) in zip(grid, LIFE, strict=True):
        for axes, trace in zip(row, traces, strict=True):
            for number, (label, one, heads) in enumerate(_lines(trace, layer)):
                values = getattr(one.life, name)
                if values.ndim == 3:
                    values = values.mean(-1) if values.shape[-1] else values.sum(-1)
                mean = values[:, heads].mean(1)
                axes.plot(one.life.positions, mean, color=_colour(number), lw=1.4, label=label)
            axes.set_ylabel(title)
    return _finish(figure, grid, traces, layer)


def plot_forgetting(*traces: Trace, layer: int | None = None, head: int | None = None) -> Figure:
    """Above, recall of every association at every later point; below, the forgetting curve."""
    figure, grid = _grid(traces, 2, 2.7, share_y=False)
    for column, trace in enumerate(traces):
        chosen = _layers(trace, layer)
        _recall_map(grid[0][column], chosen[0], head)
        axes = grid[1][column]
        for number, one in enumerate(chosen):
            curve = forgetting_curve(one.forgetting, head)
            if not len(curve.ages):
                continue
            told = "beyond the text"
            if curve.half_life is not None:
                told = f"{show_tokens(curve.half_life)} tokens"
                axes.axvline(curve.half_life, color=_colour(number), lw=0.8, ls=":")
            label = f"layer {one.layer}, half-life {told}"
            axes.plot(curve.ages, curve.retention, color=_colour(number), lw=1.6, label=label)
            if len(chosen) == 1:
                label = "forgetting gates alone"
                axes.plot(curve.ages, curve.gate_only, color=SOFT, lw=1, ls="--", label=label)
        axes.axhline(0.5, color=LINE, lw=0.8, zorder=0)
        axes.set_xscale("symlog", linthresh=10)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlim(left=0)
        axes.set_xlabel("age in tokens")
        axes.set_ylabel("retention")
        if axes.lines[1:]:
            axes.legend(frameon=False, fontsize=8)
    limits = [axes.get_ylim() for axes in grid[1]]
    for axes in grid[1]:
        axes.set_ylim(min(0.0, *(low for low, _ in limits)), max(1.05, *(h for _, h in limits)))
    return figure


def plot_worth(*traces: Trace) -> Figure:
    """Loss of the next token with the memory live, frozen at its start, and off."""
    figure, grid = _grid(traces, 1, 2.8)
    for axes, trace in zip(grid[0], traces, strict=True):
        if trace.worth is None:
            raise ValueError(f"{trace.name or 'the trace'} holds a memory without a model")
        curve = trace.worth.loss
        for number, mode in enumerate(MODES):
            x, y = _coarse(curve.positions + curve.width / 2, curve.mean[:, number], 100)
            label = f"{mode}: {trace.worth.mean_loss[number]:.3f} nats"
            axes.plot(x, y, color=MODE_COLOURS[mode], lw=1.4, label=label)
        axes.set_xlabel("token")
        axes.set_ylabel("loss of the next token")
        axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
        axes.margins(y=0.22)
    return figure


def save_figures(traces: Sequence[Trace], folder: Path) -> list[Path]:
    """Write every picture that these traces have, and tell where."""
    makers: dict[str, Callable[..., Figure]] = {
        "surprise": plot_surprise,
        "gates": plot_gates,
        "life": plot_life,
        "forgetting": plot_forgetting,
    }
    figures = {name: make(*traces) for name, make in makers.items()}
    if all(trace.worth is not None for trace in traces):
        figures["worth"] = plot_worth(*traces)
    for number, trace in enumerate(traces):
        if trace.texts:
            suffix = "" if len(traces) == 1 else f"-{'ab'[number]}"
            figures[f"text{suffix}"] = plot_text(trace)
    written = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        write_figure(path, figure, dpi=130)
        written.append(path)
    return written


def _grid(
    traces: Sequence[Trace], rows: int, height: float, *, share_y: bool = True
) -> tuple[Figure, np.ndarray]:
    if not traces:
        raise ValueError("give at least one trace")
    columns = len(traces)
    figure = Figure(figsize=(8.6 if columns == 1 else 5.6 * columns, rows * height + 0.5))
    figure.set_layout_engine("constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row" if share_y else False)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(LINE)
        axes.tick_params(colors=SOFT, labelsize=8, length=0)
        axes.yaxis.label.set(color=INK, size=9)
        axes.xaxis.label.set(color=SOFT, size=8.5)
        axes.grid(axis="y", color=LINE, lw=0.6)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.margins(x=0.01)
    for axes, trace in zip(grid[0], traces, strict=True):
        axes.set_title(
            plain_label(trace.name), loc="left", fontsize=10, color=INK, fontweight="bold"
        )
    return figure, grid


def _finish(figure: Figure, grid: np.ndarray, traces: Sequence[Trace], layer: int | None) -> Figure:
    for axes in grid[-1]:
        axes.set_xlabel("token")
    for axes, trace in zip(grid[0], traces, strict=True):
        _legend(axes, trace, layer)
    return figure


def _legend(axes: Axes, trace: Trace, layer: int | None = None) -> None:
    if len(_lines(trace, layer)) > 1:
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper right")


def _layers(trace: Trace, layer: int | None) -> list[LayerTrace]:
    return list(trace.layers) if layer is None else [trace.layer(layer)]


def _lines(trace: Trace, layer: int | None) -> list[tuple[str, LayerTrace, list[int]]]:
    """What to draw a line of: every layer, or every head of one."""
    if layer is None:
        return [(f"layer {one.layer}", one, list(range(one.num_heads))) for one in trace.layers]
    one = trace.layer(layer)
    return [(f"head {head}", one, [head]) for head in range(one.num_heads)]


def _gate(axes: Axes, trace: Trace, layer: int | None, name: str) -> None:
    lines = [line for line in _lines(trace, layer) if name in line[1].curves]
    for number, (label, one, heads) in enumerate(lines):
        curve = one.curves[name]
        heads = [0] if curve.mean.shape[1] == 1 else heads
        x = curve.positions + curve.width / 2
        colour = _colour(number)
        if len(lines) <= 4:
            low, high = curve.low[:, heads].min(1), curve.high[:, heads].max(1)
            axes.fill_between(x, low, high, color=colour, alpha=0.14, lw=0)
        axes.plot(x, curve.mean[:, heads].mean(1), color=colour, lw=1.4, label=label)
    highest = max((float(one.curves[name].high.max()) for _, one, _ in lines), default=0.0)
    axes.set_ylim(0, None if highest > 0 else 1)


def _recall_map(axes: Axes, layer: LayerTrace, head: int | None) -> None:
    record = layer.forgetting
    axes.grid(visible=False)
    axes.set_ylabel(f"written at token\n(layer {layer.layer})")
    axes.set_xlabel("read at token")
    if not len(record.written_at):
        axes.text(0.5, 0.5, "nothing was written", ha="center", transform=axes.transAxes)
        return
    chosen = slice(None) if head is None else slice(head, head + 1)
    part = record.recall[:, :, chosen]
    known = np.isfinite(part)
    total = np.where(known, part, 0).sum(-1)
    values = np.where(known.any(-1), total / np.maximum(known.sum(-1), 1), np.nan)
    rows = np.arange(len(record.written_at) + 1)
    edges = np.concatenate([[0], record.read_at]).astype(float)
    edges = np.maximum.accumulate(edges + 1e-6 * np.arange(len(edges)))
    mesh = axes.pcolormesh(edges, rows, values, cmap=HEAT, vmin=0, vmax=1)
    every = max(1, len(record.written_at) // 8)
    ticks = rows[:-1][::every]
    axes.set_yticks(ticks + 0.5, [f"{record.written_at[n]:,}" for n in ticks])
    axes.set_ylim(len(record.written_at), 0)
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.01, aspect=18)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label("recall", color=SOFT, size=8.5)
    bar.ax.tick_params(colors=SOFT, labelsize=8, length=0)


def _coarse(x: np.ndarray, y: FloatArray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `count` points, each the mean of its neighbours."""
    step = -(-len(y) // count)
    starts = np.arange(0, len(y), step)
    known = np.isfinite(y)
    total = np.add.reduceat(np.where(known, y, 0.0), starts)
    number = np.add.reduceat(known.astype(int), starts)
    means = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    return np.add.reduceat(x, starts) / np.diff(np.append(starts, len(y))), means


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
