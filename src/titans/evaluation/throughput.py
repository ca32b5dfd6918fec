"""Tokens per second of a model: training, prefill and decoding, by length and memory depth.

Weights do not matter here, so depths other than the checkpoint's are built at random. Each
repetition also times the same model with its memories left out, back to back: what differs is the
share of the time that the memory takes.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from titans.errors import ConfigError
from titans.evaluation.model import ModelSubject, with_settings
from titans.models import TitansConfig, TitansForCausalLM
from titans.settings import Count
from titans.tasks.score import Score, mean_score
from titans.tasks.task import Cell, Outcome, Subject, Task

Phase = Literal["train", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("train", "prefill", "decode")
DECODED_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Throughput(Task):
    """Speed on this machine, one thread."""

    lengths: tuple[Count, ...] = (512, 1_024, 2_048)
    """Lengths in tokens."""
    samples: Count = 3
    """Timed repetitions of each cell, after one that is not timed."""
    phases: tuple[Phase, ...] = PHASES
    """What is timed: train, prefill, decode."""
    memory_depths: tuple[Count, ...] = ()
    """Depths of the memory network to time; only the model's own when empty."""
    rows: Count = 4
    """Texts side by side in training and prefill, at every length; decoding has one."""

    name = "throughput"
    example = "--model checkpoints/bytes-mac --phases prefill --memory-depths 1,2"

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [phase for phase in self.phases if phase not in PHASES]
        if unknown:
            raise ConfigError(f"phases are {', '.join(PHASES)}; got {', '.join(unknown)}")

    def options(self) -> dict[str, object]:
        """The options as a record states them."""
        return {"rows": self.rows, "threads": torch.get_num_threads()}

    def cells(self) -> list[Cell]:
        """Lengths within phases within depths; one batch per cell, so that it warms up once."""
        return [
            Cell(
                samples=self.samples,
                length=length,
                detail={"phase": phase} if depth is None else {"phase": phase, "depth": depth},
                batch_size=self.samples,
            )
            for depth in (self.memory_depths or (None,))
            for phase in self.phases
            for length in sorted(self.lengths)
        ]

    def measure(
        self, subject: Subject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Time the model with and without its memories, alternating."""
        if not isinstance(subject, ModelSubject):
            raise ConfigError("throughput is measured on a model of this package")
        # Every depth, not only this cell's: a wrong one is refused before the first is timed.
        configs = {d: _with_depth(subject.config, d) for d in (self.memory_depths or (None,))}
        config = configs[cell.detail.get("depth")]  # type: ignore[index]
        bare = _without_memory(config)
        model = TitansForCausalLM(config)
        other = TitansForCausalLM(bare) if bare is not None else None
        phase = str(cell.detail["phase"])
        self._time(model, phase, cell.length)
        if other is not None:
            self._time(other, phase, cell.length)
        outcomes: list[Outcome] = []
        for _ in samples:
            tokens, seconds = self._time(model, phase, cell.length)
            outcome = {"tokens_per_second": tokens / seconds}
            if other is not None:
                _, without = self._time(other, phase, cell.length)
                outcome["without_memory"] = tokens / without
                outcome["memory_share"] = 1 - without / seconds
            outcomes.append(outcome)
        return outcomes

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Means over the repetitions."""
        return [
            mean_score(
                [o[metric] for o in outcomes], metric, length=cell.length, detail=cell.detail
            )
            for metric in outcomes[0]
        ]

    def _time(self, model: TitansForCausalLM, phase: str, length: int) -> tuple[int, float]:
        """Tokens and seconds of one repetition."""
        ids = torch.randint(model.config.vocab_size, (self.rows, length))
        if phase == "train":
            model.train()
            began = time.perf_counter()
            model(input_ids=ids, labels=ids).loss.backward()
            seconds = time.perf_counter() - began
            model.zero_grad()
            return ids.numel(), seconds
        model.eval()
        with torch.inference_mode():
            if phase == "prefill":
                began = time.perf_counter()
                model(input_ids=ids, use_cache=True, logits_to_keep=1)
                return ids.numel(), time.perf_counter() - began
            cache = model(input_ids=ids[:1], use_cache=True, logits_to_keep=1).past_key_values
            began = time.perf_counter()
            for column in range(DECODED_TOKENS):
                token = ids[:1, column % length : column % length + 1]
                cache = model(input_ids=token, past_key_values=cache).past_key_values
            return DECODED_TOKENS, time.perf_counter() - began


def _with_depth(config: TitansConfig, depth: int | None) -> TitansConfig:
    if depth is None:
        return copy.deepcopy(config)
    if not config.has_memory:
        raise ConfigError(f"the variant {config.variant} has no memory whose depth could vary")
    return with_settings(config, {"memory": {"depth": depth}})


def _without_memory(config: TitansConfig) -> TitansConfig | None:
    """The same model with its memories left out; None if it has none."""
    if not config.has_memory:
        return None
    changed = copy.deepcopy(config)
    changed.memory_layers = []
    return changed
