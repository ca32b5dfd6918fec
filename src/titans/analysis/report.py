"""The page of `titans analyze`: one HTML file with everything in it, no network needed.

Long arrays travel as base64 (float16 for tokens, float32 for curves), and a model with many heads
is shown by layers, so that the page stays small enough to open at once.
"""

import base64
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from titans.analysis.export import summary, to_plain
from titans.analysis.forgetting import ForgettingCurve, forgetting_curve
from titans.analysis.probes import verdict
from titans.analysis.records import MEMORY_QUANTITIES, Curve, LayerTrace, Trace
from titans.files import write_text

MAX_BYTES = 8_600_000
"""What the arrays of a page may take, of at most 10 MB."""
TOKEN_BYTES = 2.7
CURVE_BYTES = 5.4
"""Size of a number in base64."""


def write_report(traces: Sequence[Trace], path: Path, *, command: str = "") -> None:
    """Write the page of one trace, or of two side by side."""
    write_text(path, build_page(traces, command=command))


def build_page(traces: Sequence[Trace], *, command: str = "") -> str:
    """The page as text."""
    if not 1 <= len(traces) <= 2:
        raise ValueError(f"a page shows one trace or two, got {len(traces)}")
    budget = MAX_BYTES / len(traces)
    data = {"command": command, "runs": [_run(trace, budget) for trace in traces]}
    # "<" would end the script element early; line separators are fine in JSON scripts.
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    assets = files("titans.analysis") / "assets"
    page = (assets / "report.html").read_text(encoding="utf-8")
    for mark, content in (
        ("/*STYLE*/", (assets / "report.css").read_text(encoding="utf-8")),
        ("/*SCRIPT*/", "\n".join(_scripts(assets))),
        ("/*DATA*/", embedded),
    ):
        page = page.replace(mark, content, 1)
    return page


def _scripts(assets: Any) -> list[str]:
    names = ("data.js", "chart.js", "text.js", "report.js")
    return [(assets / name).read_text(encoding="utf-8") for name in names]


def _run(trace: Trace, budget: float) -> dict[str, object]:
    by_head, shown = _fit(trace, budget)
    return {
        **summary(trace),
        "notes": [*trace.notes, *_notes(trace, by_head, shown)],
        "parameters": trace.num_parameters,
        "chunk": trace.chunk_size,
        "shown": shown,
        "byHead": by_head,
        "texts": list(trace.texts[:shown]),
        "ids": trace.ids[:shown].tolist(),
        "memories": [_layer(layer, by_head, shown) for layer in trace.layers],
        "worthCurves": _worth(trace, shown),
        "spots": to_plain(trace.peaks),
    }


def _notes(trace: Trace, by_head: bool, shown: int) -> list[str]:
    """What the page leaves out to stay small."""
    notes = []
    if not by_head and any(layer.num_heads > 1 for layer in trace.layers):
        notes.append("To keep this page small, heads are averaged here; trace.json has them all.")
    if shown < len(trace.ids):
        notes.append(
            f"To keep this page small, the first {shown:,} tokens are shown; trace.json has "
            f"{len(trace.ids):,}."
        )
    return notes


def _fit(trace: Trace, budget: float) -> tuple[bool, int]:
    """Whether heads can be told apart, and how many tokens can be shown."""
    shown = len(trace.ids)
    heads = sum(layer.num_heads for layer in trace.layers)
    bins = len(trace.layers[0].curves["loss"].mean)
    per_memory = 3 * bins * (len(MEMORY_QUANTITIES) + 1) * CURVE_BYTES
    for by_head, memories in ((True, heads), (False, len(trace.layers))):
        room = budget - memories * per_memory
        # Beside what the memories tell: ids, texts, three losses.
        per_token = memories * (len(MEMORY_QUANTITIES)) * TOKEN_BYTES + 25
        if shown * per_token <= room:
            return by_head, shown
    return False, max(0, int(room / per_token))


def _layer(layer: LayerTrace, by_head: bool, shown: int) -> dict[str, object]:
    def heads(array: np.ndarray) -> np.ndarray:
        """The head axis (the last one of tokens and curves) as it is, or averaged."""
        return array if by_head else array.mean(axis=1, keepdims=True)

    life = layer.life
    tokens = {
        name: _channels(heads(getattr(layer.tokens, name)[:shown]), "f2")
        for name in MEMORY_QUANTITIES
    }
    if layer.memory_share is not None:
        tokens["memory_share"] = _channels(layer.memory_share[:shown, None], "f2")
    return {
        "layer": layer.layer,
        "heads": layer.num_heads if by_head else 1,
        "allHeads": layer.num_heads,
        "tokens": tokens,
        "curves": {name: _curve(curve, by_head) for name, curve in layer.curves.items()},
        "life": {
            "positions": life.positions.tolist(),
            **{
                name: _channels(heads(getattr(life, name)), "f4")
                for name in ("weight_norm", "drift", "momentum_norm")
            },
            **{
                name: _channels(heads(getattr(life, name).mean(-1)), "f4")
                for name in ("effective_rank", "drift_rank")
            },
        },
        "forgetting": _forgetting(layer, by_head),
    }


def _forgetting(layer: LayerTrace, by_head: bool) -> dict[str, object]:
    record = layer.forgetting
    with np.errstate(invalid="ignore"):
        known = np.isfinite(record.recall)
        total = np.where(known, record.recall, 0).sum(-1)
        mean = np.where(known.any(-1), total / np.maximum(known.sum(-1), 1), np.nan)
    maps = [mean]
    curves = [forgetting_curve(record)]
    if by_head and layer.num_heads > 1:
        maps += [record.recall[..., head] for head in range(layer.num_heads)]
        curves += [forgetting_curve(record, head) for head in range(layer.num_heads)]
    return {
        "written": record.written_at.tolist(),
        "read": record.read_at.tolist(),
        "maps": [_packed(part.astype(np.float32).ravel(), "f2") for part in maps],
        "curves": [_plain_curve(curve) for curve in curves],
    }


def _plain_curve(curve: ForgettingCurve) -> dict[str, object]:
    return to_plain(curve)


def _worth(trace: Trace, shown: int) -> dict[str, object] | None:
    if trace.worth is None:
        return None
    return {
        "loss": _curve(trace.worth.loss, True),
        "tokens": _channels(trace.worth.tokens[:shown], "f2"),
        "gain": to_plain(trace.worth.gain),
        "error": to_plain(trace.worth.gain_error),
        "verdict": verdict(trace.worth),
    }


def _curve(curve: Curve, by_head: bool) -> dict[str, object]:
    if by_head:
        mean, low, high = curve.mean, curve.low, curve.high
    else:
        mean = curve.mean.mean(1, keepdims=True)
        low, high = curve.low.min(1, keepdims=True), curve.high.max(1, keepdims=True)
    return {
        "width": curve.width,
        "mean": _channels(mean, "f4"),
        "low": _channels(low, "f4"),
        "high": _channels(high, "f4"),
    }


def _channels(array: np.ndarray, kind: str) -> list[object]:
    """One packed array per column."""
    return [_packed(array[:, column], kind) for column in range(array.shape[1])]


def _packed(values: np.ndarray, kind: str) -> object:
    """Base64 with its kind, or a single number if all values are equal."""
    if len(values) and bool((values == values[0]).all()):
        return {"n": len(values), "all": to_plain(float(values[0]))}
    if kind == "f4":
        return {kind: _base64(values, kind)}
    values = np.where(np.isfinite(values), values, np.nan)
    # Scaled by a power of two to the upper end of float16, which keeps eleven bits over 28 octaves.
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    scale = 14 - int(np.frexp(largest)[1]) if largest else 0
    return {kind: _base64(np.ldexp(values.astype(np.float64), scale), kind), "scale": scale}


def _base64(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()).decode()
