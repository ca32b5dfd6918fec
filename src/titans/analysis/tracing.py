"""Read a text once with a model and keep what its memories did, in constant memory.

The text is read block by block with three caches side by side: the memory live, frozen at its
start, and off. The live reading is cut finer, so that the memory can be looked at in between.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from titans.analysis.curves import CurveBuilder, Thinned
from titans.analysis.forgetting import ForgettingRecorder
from titans.analysis.probes import Moment, WorthRecorder, life, measure
from titans.analysis.records import (
    MEMORY_QUANTITIES,
    FloatArray,
    LayerTrace,
    Passage,
    Peak,
    TokenTrace,
    Trace,
)
from titans.analysis.watching import Call, Watched, memories, watching
from titans.errors import CheckpointError, DataError
from titans.layers.memory import NeuralMemory
from titans.models import TitansForCausalLM
from titans.models.mixer import MemoryMode
from titans.ops import MemoryState

BLOCK = 2_048
"""Tokens read at a time, at most."""
LARGEST_LOGITS = 1 << 24
"""Logits held at a time, at most: with a large vocabulary blocks are smaller."""
PEAKS = 12
CONTEXT = 40
"""Tokens shown on either side of a peak."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of a text is kept, however long it is."""

    tokens: int = 50_000
    """Tokens kept one by one, from the start of the text."""
    bins: int = 512
    """Points of a curve over the whole text."""
    reads: int = 256
    """Moments at which the memory itself is looked at."""
    probes: int = 64
    """Associations that are asked for again and again."""

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("bins", 2), ("reads", 2), ("probes", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@torch.no_grad()
def trace(
    model: TitansForCausalLM,
    ids: Tensor | Iterable[Tensor | Passage],
    *,
    name: str = "",
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    on_read: Callable[[int], None] | None = None,
) -> Trace:
    """Read `ids` with `model` and record what its memories did.

    Args:
        ids: tokens `[time]` or `[1, time]`, or such pieces in order: a list of them, or a stream of
            any length.
        name: a title for pictures.
        limits: what is kept; nothing else grows with the text.
        on_read: called with the number of tokens of every block that was read.
    """
    found = memories(model)
    if not found:
        raise CheckpointError(
            f"this {model.config.variant!r} model has no neural memory, so there is nothing to "
            "look at; give a model of variant lmm, mac, mag or mal"
        )
    was_training = model.training
    modes: list[MemoryMode] = [watched.mixer.memory_mode for watched in found]
    model.eval()
    try:
        return _Tracer(model, found, limits, ids).run(name, on_read)
    finally:
        for watched, mode in zip(found, modes, strict=True):
            watched.mixer.memory_mode = mode
        model.train(was_training)


@torch.no_grad()
def trace_memory(
    memory: NeuralMemory,
    x: Tensor,
    *,
    name: str = "",
    limits: Limits = Limits(),  # noqa: B008 (frozen)
) -> Trace:
    """Record what a memory on its own does with vectors `[time, dim]` or `[1, time, dim]`."""
    rows = x if x.ndim == 3 else x[None]
    if rows.ndim != 3 or rows.shape[0] != 1 or not rows.shape[1]:
        raise ValueError(f"x must be [time, dim] or [1, time, dim], got {tuple(x.shape)}")
    recorder = LayerRecorder(0, memory, limits)
    interval = _interval(rows.shape[1], limits)
    state = memory.initial_state(1)
    recorder.look(0, 0, state.memory)
    for start in range(0, rows.shape[1], interval):
        part = rows[:, start : start + interval]
        _, after, found = memory(part, state, return_trace=True)
        recorder.watch([Call(part, state, after, found)], None)
        if part.shape[1] == interval:
            recorder.look(start // interval + 1, start + interval, after.memory)
        state = after
    return Trace(
        name=name,
        variant="memory",
        num_parameters=sum(p.numel() for p in memory.parameters()),
        chunk_size=memory.chunk_size,
        num_tokens=rows.shape[1],
        ids=np.zeros(0, dtype=np.int64),
        texts=(),
        layers=(recorder.record(state.memory),),
        worth=None,
        peaks=(),
        state_bytes=state.num_bytes,
    )


class _Tracer:
    """One reading of one text."""

    def __init__(
        self,
        model: TitansForCausalLM,
        found: list[Watched],
        limits: Limits,
        ids: Tensor | Iterable[Tensor | Passage],
    ) -> None:
        self._model, self._found, self._limits = model, found, limits
        self._ids = ids
        self._layers = [LayerRecorder(w.layer, w.memory, limits) for w in found]
        self._worth = WorthRecorder(model, limits.bins, limits.tokens)
        self._cache = model.new_cache(1)
        self._peaks = _Peaks()
        self._kept_ids: list[NDArray[np.int64]] = []
        self._kept_texts: list[str] = []
        self._position = 0
        self._pace = Thinned[None](limits.reads)
        self._interval = 1
        length = _length(ids)
        if length is not None:
            self._interval = _interval(length, limits)

    def run(self, name: str, on_read: Callable[[int], None] | None) -> Trace:
        self._look()
        config = self._model.config
        size = max(16, min(BLOCK, LARGEST_LOGITS // config.vocab_size))
        for block in _blocks(self._ids, size, config.vocab_size):
            self._read(block)
            if on_read is not None:
                on_read(len(block.ids))
        if self._position < 2:
            raise DataError(
                f"nothing to analyse: the text has {self._position} token"
                f"{'' if self._position == 1 else 's'}, and at least 2 are needed"
            )
        ids = np.concatenate(self._kept_ids)
        complete = len(self._kept_texts) == len(ids)
        return Trace(
            name=name,
            variant=config.variant,
            num_parameters=sum(p.numel() for p in self._model.parameters()),
            chunk_size=self._found[0].memory.chunk_size,
            num_tokens=self._position,
            ids=ids,
            texts=tuple(self._kept_texts) if complete else (),
            layers=tuple(layer.record(m) for layer, m in self._memories()),
            worth=self._worth.record(),
            peaks=self._peaks.best(),
            state_bytes=self._cache.num_bytes,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        notes = []
        chunk = max(watched.memory.chunk_size for watched in self._found)
        if self._position < chunk:
            notes.append(
                f"The text has {self._position} tokens, fewer than one chunk of {chunk}: every "
                "token's surprise is measured at the initial memory, so nothing written here "
                "could lower it."
            )
        lost = [str(w.layer) for w, layer in self._watched() if layer.diverged]
        if lost:
            notes.append(
                f"The memory of layer {', '.join(lost)} is not finite at the end: it diverged "
                "while reading. Means below leave out NaN."
            )
        if self._position > self._limits.tokens:
            notes.append(
                f"The text has {self._position:,} tokens. Curves cover all of it; the first "
                f"{self._limits.tokens:,} are shown one by one."
            )
        return tuple(notes)

    def _read(self, block: Passage) -> None:
        room = max(0, self._limits.tokens - self._position)
        _keep(self._kept_ids, block.ids.cpu().numpy(), room)
        self._kept_texts += block.texts[:room]
        ids = block.ids.to(self._model.device)[None]
        logits, sizes, losses = [], [], []
        done = 0
        self._model.set_memory_mode("live")
        while done < len(block.ids):
            step = self._interval * self._pace.stride
            part = ids[:, done : done + step - self._position % step]
            logits.append(self._live(part, sizes, losses))
            done += part.shape[1]
            self._position += part.shape[1]
            if self._position % step == 0:
                self._look()
        self._worth.add(ids, torch.cat(logits, dim=1))
        self._peaks.add(block, self._position - done, np.concatenate(sizes), np.concatenate(losses))

    def _live(self, part: Tensor, sizes: list[FloatArray], losses: list[FloatArray]) -> Tensor:
        with watching(self._found):
            logits = self._model(part, past_key_values=self._cache).logits
        size, loss = [], []
        for watched, layer in zip(self._found, self._layers, strict=True):
            calls, share = watched.take()
            layer.watch(calls, share)
            size.append(torch.cat([c.write_size[0] for c in calls]).mean(-1))
            loss.append(torch.cat([c.trace.surprise.loss[0] for c in calls]).mean(-1))
        sizes.append(torch.stack(size).mean(0).float().cpu().numpy())
        losses.append(torch.stack(loss).mean(0).float().cpu().numpy())
        return logits

    def _look(self) -> None:
        """Look at every memory as it is now."""
        number = self._position // self._interval
        self._pace.offer(number, None)
        for layer, memory in self._memories():
            layer.look(number, self._position, memory)

    def _watched(self) -> Iterator[tuple[Watched, "LayerRecorder"]]:
        return zip(self._found, self._layers, strict=True)

    def _memories(self) -> Iterator[tuple["LayerRecorder", MemoryState]]:
        for watched, layer in self._watched():
            state = self._cache.blocks[watched.layer].memory
            assert state is not None
            yield layer, state.memory


def _length(ids: Tensor | Iterable[Tensor | Passage]) -> int | None:
    """Tokens to come, if that can be told without reading."""
    if isinstance(ids, Tensor):
        return ids.numel()
    if isinstance(ids, Sequence):
        return sum(p.ids.numel() if isinstance(p, Passage) else p.numel() for p in ids)
    return None


def _interval(length: int, limits: Limits) -> int:
    """Tokens between two looks at a memory, so that all of them are kept."""
    return max(1, -(-length // (limits.reads - 1)))


class LayerRecorder:
    """What is kept of one memory."""

    def __init__(self, layer: int, memory: NeuralMemory, limits: Limits) -> None:
        self._layer, self._memory, self._limits = layer, memory, limits
        self._heads = memory.num_heads
        self._position = 0
        self.diverged = False
        """Whether the last call's surprise was not finite."""
        self._kept: list[FloatArray] = []
        self._shares: list[FloatArray] = []
        self._curves = CurveBuilder((len(MEMORY_QUANTITIES) + 1) * self._heads, limits.bins)
        self._share_curve = CurveBuilder(1, limits.bins)
        self._moments: Thinned[tuple[int, Moment]] = Thinned(limits.reads)
        self._forgetting = ForgettingRecorder(memory, limits.probes, limits.reads)

    def watch(self, calls: list[Call], share: Tensor | None) -> None:
        """The calls of the next tokens, in order, and the memory's share in the layer's output."""
        for call in calls:
            parts = (*call.trace.surprise, *call.trace.gates, call.trace.written)
            values = torch.cat([part[0].float() for part in parts], dim=-1).cpu().numpy()
            self.diverged = not np.isfinite(values).all()
            room = max(0, self._limits.tokens - self._position)
            _keep(self._kept, values, room)
            size = call.write_size[0].float().cpu().numpy()
            self._curves.add(np.concatenate([values, size], axis=1))
            self._forgetting.watch(call, self._position)
            self._position += len(values)
        if share is not None:
            shares = share.float().cpu().numpy()
            room = max(0, self._limits.tokens - (self._position - len(shares)))
            _keep(self._shares, shares, room)
            self._share_curve.add(shares[:, None])

    def look(self, number: int, position: int, memory: MemoryState) -> None:
        """The memory after `position` tokens; `number` counts the looks."""
        if self._moments.wants(number):
            self._moments.offer(number, (position, measure(memory)))
        self._forgetting.read(number, position, memory)

    def record(self, memory: MemoryState) -> LayerTrace:
        """Everything, as a record, with a last look at the end of the text."""
        heads = self._heads
        kept = np.concatenate(self._kept)
        names = (*MEMORY_QUANTITIES, "write_size")
        curves = {
            name: self._curves.curve(n * heads, (n + 1) * heads) for n, name in enumerate(names)
        }
        if self._shares:
            curves["memory_share"] = self._share_curve.curve()
        moments = [moment for _, moment in self._moments]
        if moments[-1][0] != self._position:
            moments.append((self._position, measure(memory)))
        return LayerTrace(
            layer=self._layer,
            num_heads=heads,
            tokens=TokenTrace(
                **{
                    name: np.ascontiguousarray(kept[:, n * heads : (n + 1) * heads])
                    for n, name in enumerate(MEMORY_QUANTITIES)
                }
            ),
            curves=curves,
            life=life([p for p, _ in moments], [m for _, m in moments]),
            forgetting=self._forgetting.record(self._position, memory),
            memory_share=np.concatenate(self._shares) if self._shares else None,
        )


def _keep(kept: list, values: NDArray, room: int) -> None:
    """Append the first `room` rows as a copy: a view, even an empty one, would hold all of them."""
    if room > 0:
        kept.append(values[:room].copy())


class _Peaks:
    """The strongest writes so far, no two of them next to each other."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Peak]] = []

    def add(self, block: Passage, start: int, sizes: FloatArray, losses: FloatArray) -> None:
        order = np.argsort(-sizes, kind="stable")[: 4 * PEAKS]
        for place in order[np.isfinite(sizes[order])].tolist():
            first = max(0, place - CONTEXT)
            around = slice(first, place + CONTEXT + 1)
            peak = Peak(
                position=start + place,
                write_size=float(sizes[place]),
                loss=float(losses[place]),
                ids=tuple(block.ids[around].tolist()),
                texts=tuple(block.texts[around]),
                offset=place - first,
            )
            item = (peak.write_size, -peak.position, peak)
            if len(self._heap) < 4 * PEAKS:
                heapq.heappush(self._heap, item)
            elif item > self._heap[0]:
                heapq.heapreplace(self._heap, item)

    def best(self) -> tuple[Peak, ...]:
        chosen: list[Peak] = []
        for _, _, peak in sorted(self._heap, reverse=True):
            apart = all(abs(peak.position - other.position) > 3 for other in chosen)
            if apart and peak.write_size > 0 and len(chosen) < PEAKS:
                chosen.append(peak)
        return tuple(chosen)


def _blocks(
    ids: Tensor | Iterable[Tensor | Passage], size: int, vocab_size: int
) -> Iterator[Passage]:
    """The text in blocks of at most `size` tokens."""
    pieces: Iterable[Tensor | Passage] = [ids] if isinstance(ids, Tensor) else ids
    for piece in pieces:
        passage = piece if isinstance(piece, Passage) else Passage(piece, [])
        tokens = passage.ids
        if tokens.ndim == 2 and tokens.shape[0] == 1:
            tokens = tokens[0]
        if tokens.ndim != 1 or tokens.is_floating_point():
            raise ValueError(
                f"ids must be whole numbers, [time] or [1, time]; got {tokens.dtype} "
                f"{tuple(passage.ids.shape)} (trace one text at a time)"
            )
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
            raise DataError(
                f"token {int(tokens.max()) if int(tokens.min()) >= 0 else int(tokens.min())} is "
                f"outside the model's vocabulary of {vocab_size}: was another tokenizer used?"
            )
        for start in range(0, len(tokens), size):
            part = slice(start, start + size)
            yield Passage(tokens[part].long(), passage.texts[part])
