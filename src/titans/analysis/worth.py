"""What a memory is worth: the same text read with the memory live, frozen at its start, and off."""

import numpy as np
import torch
from torch import Tensor

from titans.analysis.curves import CurveBuilder
from titans.analysis.records import FloatArray, Worth
from titans.models import TitansForCausalLM


class WorthRecorder:
    """Reads along with a frozen and a switched-off memory, each with a cache of its own."""

    def __init__(self, model: TitansForCausalLM, max_bins: int, max_tokens: int) -> None:
        self._model = model
        self._caches = {"frozen": model.new_cache(1), "off": model.new_cache(1)}
        # Prediction of the next block's first token, one row per mode.
        self._pending: Tensor | None = None
        self._kept: list[FloatArray] = []
        self._room = max_tokens
        # Losses of the three modes, then whether each prediction was right, then the two gains.
        self._curves = CurveBuilder(8, max_bins)

    def add(self, ids: Tensor, live: Tensor) -> None:
        """The next tokens `[1 time]`, and the logits `[1 time vocab]` of the live reading."""
        logits = [live[0]]
        for mode in ("frozen", "off"):
            self._model.set_memory_mode(mode)  # type: ignore[arg-type]
            logits.append(self._model(ids, past_key_values=self._caches[mode]).logits[0])
        stacked = torch.stack(logits).float()
        known = self._pending is not None
        first = stacked[:, :1] if self._pending is None else self._pending
        before = torch.cat([first, stacked[:, :-1]], dim=1)
        self._pending = stacked[:, -1:].clone()
        targets = ids[0].expand(3, -1)
        losses = torch.nn.functional.cross_entropy(before.mT, targets, reduction="none").T
        right = (before.argmax(-1) == targets).T.float()
        values = torch.cat([losses, right, losses[:, 1:] - losses[:, :1]], dim=1).cpu().numpy()
        if not known:
            values[0] = np.nan
        if self._room:
            self._kept.append(values[: self._room, :3].astype(np.float32))
            self._room = max(0, self._room - len(values))
        self._curves.add(values)

    def record(self) -> Worth:
        """All modes compared."""
        totals = self._curves.totals()
        gains = self._curves.curve(6, 8).mean.astype(np.float64)
        gains = gains[np.isfinite(gains).all(1)]
        if len(gains) > 1:
            # Neighbouring tokens are not independent; bins nearly are.
            errors = gains.std(0, ddof=1) / np.sqrt(len(gains))
        else:
            errors = np.full(2, np.nan)
        return Worth(
            loss=self._curves.curve(0, 3),
            tokens=np.concatenate(self._kept),
            mean_loss=(float(totals[0]), float(totals[1]), float(totals[2])),
            accuracy=(float(totals[3]), float(totals[4]), float(totals[5])),
            gain=(float(totals[6]), float(totals[7])),
            gain_error=(float(errors[0]), float(errors[1])),
        )


def verdict(worth: Worth) -> str:
    """One sentence: does the memory do anything, as far as this text can tell?"""
    names = ("frozen at its start", "switched off")
    told = []
    for name, gain, error in zip(names, worth.gain, worth.gain_error, strict=True):
        if not np.isfinite(gain):
            continue
        if not np.isfinite(error):
            told.append(f"{gain:+.3g} nats per token against one {name} (text too short to judge)")
        elif abs(gain) <= 2 * error:
            told.append(f"no clear difference to one {name} ({gain:+.2g} ± {2 * error:.1g})")
        else:
            word = "lower" if gain > 0 else "higher"
            told.append(f"{abs(gain):.3g} ± {2 * error:.1g} nats {word} than {name}")
    return "Loss per token with the live memory: " + "; ".join(told) + "."
