"""Three questions to a model while it reads.

What its memory is like at this moment (`measure`), how much of a layer's output is the memory's
(`memory_share`), and what the memory is worth (`WorthRecorder`): the same text read with the memory
live, frozen at its start, and off.

A layer's output is written as a sum of two parts, one of which is what the layer would give with
the memory switched off:

    MAG and MAC, convex         g a            + (1 - g) m
    MAG, paper; MAC, normalised norm(a) / 2    + norm(a) (sigmoid(norm(m)) - 1/2)
                                attention        memory

A memory that is off counts as one that answers zero, whose gate is 1/2. The memory's share of a
token is |memory part| / (|attention part| + |memory part|). LMM and MAL have no such sum.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from titans.analysis.curves import CurveBuilder
from titans.analysis.records import FloatArray, Life, Worth
from titans.models import TitansForCausalLM
from titans.models.mixer import Mixer
from titans.ops import MemoryState


class Moment(NamedTuple):
    """One row of `Life`, `[heads]` and `[heads matrices]`."""

    weight_norm: FloatArray
    drift: FloatArray
    momentum_norm: FloatArray
    effective_rank: FloatArray
    drift_rank: FloatArray


def measure(state: MemoryState) -> Moment:
    """Norms and ranks of the memory of the first row."""
    weights = [w[0] for w in state.weights]
    drift = [w - w0[0] for w, w0 in zip(weights, state.initial_weights, strict=True)]
    matrices = [n for n, w in enumerate(weights) if w.ndim == 3]
    return Moment(
        _norm(weights),
        _norm(drift),
        _norm([s[0] for s in state.momentum]),
        _ranks([weights[n] for n in matrices], state.num_heads),
        _ranks([drift[n] for n in matrices], state.num_heads),
    )


def effective_rank(matrix: Tensor) -> Tensor:
    """exp of the entropy of the singular values as shares of their sum; 0 for a zero matrix.

    n equal singular values count n. Roy and Vetterli, EUSIPCO 2007. NaN for a memory that has
    diverged.
    """
    finite = matrix.isfinite().flatten(-2).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], matrix.double(), 0.0))
    total = values.sum(-1, keepdim=True)
    shares = values / total.clamp_min(torch.finfo(values.dtype).tiny)
    entropy = torch.special.entr(shares).sum(-1)
    rank = torch.where(total[..., 0] > 0, entropy.exp(), torch.zeros_like(entropy))
    return torch.where(finite, rank, torch.nan)


def life(positions: list[int], moments: list[Moment]) -> Life:
    """Moments in order as one record."""
    columns = [np.stack(column) for column in zip(*moments, strict=True)]
    return Life(
        positions=np.asarray(positions, dtype=np.int64),
        weight_norm=columns[0],
        drift=columns[1],
        momentum_norm=columns[2],
        effective_rank=columns[3],
        drift_rank=columns[4],
    )


def _ranks(matrices: list[Tensor], num_heads: int) -> FloatArray:
    if not matrices:
        return np.zeros((num_heads, 0), dtype=np.float32)
    return _array(torch.stack([effective_rank(matrix) for matrix in matrices], dim=-1))


def _norm(tensors: list[Tensor]) -> FloatArray:
    squared = [t.double().flatten(1).square().sum(1) for t in tensors]
    return _array(torch.stack(squared).sum(0).sqrt())


def _array(tensor: Tensor) -> FloatArray:
    return tensor.detach().float().cpu().numpy()


@dataclass
class PartOutputs:
    """Outputs of the modules that the two parts are made of, call by call."""

    outputs: dict[str, list[Tensor]] = field(default_factory=dict)

    def joined(self, name: str) -> Tensor:
        """All calls of one module, `[time dim]`."""
        return torch.cat([part[0] for part in self.outputs[name]])

    def clear(self) -> None:
        """Forget all calls."""
        self.outputs.clear()


def watch_parts(mixer: Mixer, parts: PartOutputs) -> list[RemovableHandle]:
    """Note the outputs that `memory_share` needs; nothing where there is no such sum."""
    watched: dict[str, nn.Module] = {}
    if hasattr(mixer, "attention_norm"):
        watched = {"attention": mixer.attention_norm, "memory": mixer.memory_norm}  # type: ignore[dict-item]
    elif hasattr(mixer, "gate_proj"):
        attention = mixer.attention.o_proj  # type: ignore[union-attr]
        watched = {"gate": mixer.gate_proj, "attention": attention, "memory": mixer.memory}  # type: ignore[dict-item]
    return [_watch(module, name, parts) for name, module in watched.items()]


def memory_share(mixer: Mixer, parts: PartOutputs) -> Tensor | None:
    """The memory's share in the layer's output at every token, `[time]`."""
    if not parts.outputs:
        return None
    attention, memory = parts.joined("attention"), parts.joined("memory")
    if "gate" in parts.outputs:
        gate = torch.sigmoid(parts.joined("gate"))
        attention = attention * getattr(mixer, "attention_scale", 1.0)
        attention, memory = gate * attention, (1 - gate) * memory
    else:
        memory = attention * (torch.sigmoid(memory) - 0.5)
        attention = attention * 0.5
    ours, theirs = memory.norm(dim=-1), attention.norm(dim=-1)
    return ours / (ours + theirs).clamp_min(torch.finfo(ours.dtype).tiny)


def _watch(module: nn.Module, name: str, parts: PartOutputs) -> RemovableHandle:
    def note(module: nn.Module, args: tuple, output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output
        assert isinstance(first, Tensor)
        parts.outputs.setdefault(name, []).append(first)

    return module.register_forward_hook(note)


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
