"""The forgetting curve: associations as they were written, asked for again at every later point."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from titans.analysis.curves import Thinned
from titans.analysis.records import FloatArray, Forgetting, IntArray
from titans.analysis.watching import Call
from titans.layers.memory import NeuralMemory
from titans.ops import MemoryState

MAX_AGES = 256
"""More different ages than this are joined in bins, finer for young associations."""


@dataclass(frozen=True, kw_only=True)
class ForgettingCurve:
    """What is left of an association, by its age in tokens; a mean over associations."""

    ages: FloatArray
    recall: FloatArray
    """1: the memory answers with the value; 0: as if it had read nothing."""
    retention: FloatArray
    """Recall as a share of what the same associations had right after their write."""
    gate_only: FloatArray
    """The retention that the forgetting gates alone would leave."""
    half_life: float | None
    """Age at which the falling curve that fits retention best is down to half of its beginning;
    None if it is not within the text. Single ages with few or weak associations, whose retention
    may be far too high or too low, do not decide."""
    num_probes: int

    def at(self, age: float) -> float:
        """Retention at an age, between the nearest ones measured."""
        return float(np.interp(age, self.ages, self.retention))


@np.errstate(over="ignore")
def forgetting_curve(record: Forgetting, head: int | None = None) -> ForgettingCurve:
    """Average the associations of one head, or of all heads, by age.

    Retention is a ratio of sums over the same associations, so that one that was hardly written
    counts for little.
    """
    ages, recall, start, gate_only = _samples(record, head)
    if not len(ages):
        nothing = np.zeros(0, dtype=np.float32)
        return ForgettingCurve(
            ages=nothing,
            recall=nothing,
            retention=nothing,
            gate_only=nothing,
            half_life=None,
            num_probes=0,
        )
    bins = _bins(ages)
    count = np.bincount(bins)
    used = count > 0
    sums = [
        np.bincount(bins, weights)[used] for weights in (ages, recall, start, start * gate_only)
    ]
    count = count[used]
    with np.errstate(divide="ignore", invalid="ignore"):
        retention = np.where(sums[2] > 0, sums[1] / sums[2], np.nan)
        gates = np.where(sums[2] > 0, sums[3] / sums[2], np.nan)
    mean_age = sums[0] / count
    return ForgettingCurve(
        ages=mean_age.astype(np.float32),
        recall=(sums[1] / count).astype(np.float32),
        retention=retention.astype(np.float32),
        gate_only=gates.astype(np.float32),
        half_life=_half_life(mean_age, retention, sums[2]),
        num_probes=int(np.isfinite(record.at_once).any(1).sum()),
    )


def show_tokens(age: float) -> str:
    """An age for people: 1.4, 35, 12,000."""
    return f"{age:.1f}" if age < 9.95 else f"{age:,.0f}"


def _samples(record: Forgetting, head: int | None) -> tuple[np.ndarray, ...]:
    """age, recall, recall at age 0 and gate-only retention of every read of every association."""
    chosen = slice(None) if head is None else slice(head, head + 1)
    at_once = record.at_once[:, chosen].astype(np.float64)
    recall = record.recall[:, :, chosen].astype(np.float64)
    gate_only = record.gate_only[:, :, chosen].astype(np.float64)
    ages = np.broadcast_to(record.ages[:, :, None], recall.shape)
    start = np.broadcast_to(at_once[:, None], recall.shape)
    known = np.isfinite(recall) & np.isfinite(start) & (ages > 0)
    fresh = np.isfinite(at_once)
    # The write itself is a read at age 0.
    return (
        np.concatenate([np.zeros(fresh.sum()), ages[known]]),
        np.concatenate([at_once[fresh], recall[known]]),
        np.concatenate([at_once[fresh], start[known]]),
        np.concatenate([np.ones(fresh.sum()), gate_only[known]]),
    )


def _bins(ages: np.ndarray) -> np.ndarray:
    """The bin of every age: one per age if they are few, else growing with the age."""
    distinct, inverse = np.unique(ages, return_inverse=True)
    if len(distinct) <= MAX_AGES:
        return inverse
    edges = np.unique(np.geomspace(1, ages.max() + 1, 48).round())
    return np.searchsorted(edges, ages, side="right")


def _half_life(ages: np.ndarray, retention: np.ndarray, weights: np.ndarray) -> float | None:
    """Where the fitted curve crosses half of its beginning."""
    known = np.isfinite(retention)
    ages, fit = ages[known], _falling(retention[known], weights[known])
    below = np.flatnonzero(fit < fit[:1] / 2)
    if not len(below):
        return None
    after, before = below[0], below[0] - 1
    share = (fit[before] - fit[0] / 2) / (fit[before] - fit[after])
    return float(ages[before] + share * (ages[after] - ages[before]))


def _falling(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest curve that never rises, by weighted least squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        count = 1
        while blocks and blocks[-1][0] < value:
            level, mass, size = blocks.pop()
            value = (level * mass + value * weight) / (mass + weight)
            weight, count = weight + mass, count + size
        blocks.append((value, weight, count))
    return np.repeat([level for level, _, _ in blocks], [count for _, _, count in blocks])


class _Probe(NamedTuple):
    position: int
    key: Tensor
    """`[heads dim]`."""
    base: Tensor
    """M_0(k)."""
    target: Tensor
    """v - M_0(k)."""
    written: Tensor
    """`[heads]`, bool."""
    at_once: Tensor
    """Recall right after the write, `[heads]`."""
    kept: np.ndarray
    """Sum of log(1 - alpha) up to the write, `[heads]`."""


class _Answers(NamedTuple):
    position: int
    recalls: dict[int, np.ndarray]
    """Probe -> recall, `[heads]`."""
    kept: np.ndarray
    """Sum of log(1 - alpha) so far, `[heads]`."""


class ForgettingRecorder:
    """Chooses associations while a text is read and asks for all of them again and again.

    Of every call the strongest write is a candidate; those kept are spread over the text.
    """

    def __init__(self, memory: NeuralMemory, max_probes: int, max_reads: int) -> None:
        self._memory = memory
        self._probes: Thinned[_Probe] = Thinned(max_probes)
        self._candidates = 0
        self._reads: Thinned[_Answers] = Thinned(max_reads)
        self._kept = np.zeros(memory.num_heads)
        """Sum of log(1 - alpha) over the tokens that forgot so far."""

    def watch(self, call: Call, start: int) -> None:
        """A call whose first token is number `start` of the text."""
        decay = (1 - call.trace.gates.forget_gate[0].double()).clamp_min(1e-30).log()
        kept = self._kept + (decay * call.trace.active[0]).cumsum(0).cpu().numpy()
        self._kept = kept[-1].copy()
        size = call.write_size[0].mean(-1)
        token = int(size.argmax())
        if not size[token] > 0:
            return
        if self._probes.wants(self._candidates):
            probe = self._make(call, token, start + token, kept[token].copy())
            self._probes.offer(self._candidates, probe)
        self._candidates += 1

    def _make(self, call: Call, token: int, position: int, kept: np.ndarray) -> _Probe:
        keys, values = self._memory.associations(call.x, call.before)
        # Copies: a view would hold the whole call for as long as the probe lives.
        key, value = keys[:, [token]], values[:, [token]]
        allowed = None if call.write_mask is None else call.write_mask[:, : token + 1]
        _, state = self._memory(call.x[:, : token + 1], call.before, write_mask=allowed)
        now = state.memory
        base = self._memory.recall(key, _initial(now))
        written = call.trace.written[0, token].clone()
        probe = _Probe(
            position, key[0, 0], base[0, 0], (value - base)[0, 0], written, value[0, 0, :, 0], kept
        )
        return probe._replace(at_once=self._ask([probe], now)[0])

    def _ask(self, probes: list[_Probe], memory: MemoryState) -> Tensor:
        """Recall of every association at the weights of `memory`, `[probes heads]`."""
        keys = torch.stack([probe.key for probe in probes])[None]
        base = torch.stack([probe.base for probe in probes])
        target = torch.stack([probe.target for probe in probes])
        change = self._memory.recall(keys, memory)[0] - base
        size = target.double().square().sum(-1)
        recall = (change.double() * target.double()).sum(-1) / size
        written = torch.stack([probe.written for probe in probes])
        return torch.where(written & (size > 0), recall, torch.nan)

    def read(self, number: int, position: int, memory: MemoryState) -> None:
        """Ask for all associations after `position` tokens; `number` counts the looks."""
        if self._reads.wants(number):
            self._reads.offer(number, self._answers(position, memory))

    def _answers(self, position: int, memory: MemoryState) -> "_Answers":
        if not len(self._probes):
            return _Answers(position, {}, self._kept.copy())
        numbers, probes = zip(*self._probes, strict=True)
        recalls = self._ask(list(probes), memory).cpu().numpy()
        return _Answers(position, dict(zip(numbers, recalls, strict=True)), self._kept.copy())

    @np.errstate(over="ignore")
    def record(self, position: int, memory: MemoryState) -> Forgetting:
        """All that is still kept, and a last read at the end of the text."""
        probes = list(self._probes)
        reads = [read for _, read in self._reads]
        if not reads or reads[-1].position != position:
            reads.append(self._answers(position, memory))
        heads = self._memory.num_heads
        recall = np.full((len(probes), len(reads), heads), np.nan, dtype=np.float32)
        gate_only = np.full_like(recall, np.nan)
        for column, read in enumerate(reads):
            for row, (number, probe) in enumerate(probes):
                if number in read.recalls:
                    recall[row, column] = read.recalls[number]
                    gate_only[row, column] = np.exp(read.kept - probe.kept)
        at_once = [probe.at_once.cpu().numpy() for _, probe in probes]
        return Forgetting(
            written_at=_integers([probe.position for _, probe in probes]),
            at_once=np.array(at_once, dtype=np.float32).reshape(len(probes), heads),
            read_at=_integers([read.position for read in reads]),
            recall=recall,
            gate_only=gate_only,
        )


def _initial(memory: MemoryState) -> MemoryState:
    return memory.replace(weights=memory.initial_weights)


def _integers(values: list[int]) -> IntArray:
    return np.asarray(values, dtype=np.int64)
