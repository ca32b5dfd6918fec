"""All numbers of a trace as JSON: the same names as the records, NaN as null."""

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from titans.analysis.forgetting import forgetting_curve
from titans.analysis.probes import verdict
from titans.analysis.records import MODES, Curve, LayerTrace, Trace
from titans.files import write_text

FORMAT_VERSION = 1


def to_plain(value: Any) -> Any:
    """Records and arrays as lists, dicts and numbers of seven digits."""
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.7g}") if np.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, Curve):
            plain["positions"] = to_plain(value.positions)
        if isinstance(value, LayerTrace):
            plain["forgetting_curve"] = to_plain(forgetting_curve(value.forgetting))
        return plain
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    return value


def write_json(traces: Sequence[Trace], path: Path) -> None:
    """`{"format_version": 1, "traces": [...]}`, one entry per trace."""
    content = {"format_version": FORMAT_VERSION, "traces": [to_plain(trace) for trace in traces]}
    write_text(path, json.dumps(content, allow_nan=False) + "\n")


def summary(trace: Trace) -> dict[str, object]:
    """The figures that a report begins with."""
    found: dict[str, object] = {
        "name": trace.name,
        "variant": trace.variant,
        "tokens": trace.num_tokens,
        "state_bytes": trace.state_bytes,
        "notes": list(trace.notes),
        "layers": [_layer_summary(layer) for layer in trace.layers],
        "peaks": [
            {
                "position": peak.position,
                "text": peak.texts[peak.offset].strip() if peak.texts else "",
                "write_size": to_plain(peak.write_size),
                "loss": to_plain(peak.loss),
            }
            for peak in trace.peaks
        ],
    }
    if trace.worth is not None:
        worth = trace.worth
        found["worth"] = {
            "mean_loss": _by_mode(MODES, worth.mean_loss),
            "accuracy": _by_mode(MODES, worth.accuracy),
            "gain": _by_mode(MODES[1:], worth.gain),
            "gain_error": _by_mode(MODES[1:], worth.gain_error),
            "verdict": verdict(worth),
        }
    return found


def _by_mode(modes: Sequence[str], values: Sequence[float]) -> dict[str, object]:
    return dict(zip(modes, to_plain(tuple(values)), strict=True))


def _layer_summary(layer: LayerTrace) -> dict[str, object]:
    curve = forgetting_curve(layer.forgetting)
    return {
        "layer": layer.layer,
        "heads": layer.num_heads,
        "written_share": to_plain(_mean(layer.curves["written"])),
        "surprise": to_plain(_mean(layer.curves["loss"])),
        "drift": to_plain(float(layer.life.drift[-1].mean())),
        "half_life": to_plain(curve.half_life),
        "oldest_age": to_plain(float(curve.ages[-1])) if len(curve.ages) else None,
        "retention_at_oldest": to_plain(float(curve.retention[-1])) if len(curve.ages) else None,
    }


def _mean(curve: Curve) -> float:
    """The mean over the text; its last bin may be shorter, which is left aside."""
    known = curve.mean[np.isfinite(curve.mean)]
    return float(known.mean()) if len(known) else float("nan")
