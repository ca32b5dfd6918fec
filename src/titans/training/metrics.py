"""What is measured while a model trains: losses, sums over steps and processes, samples.

The outer loss is `L = L_lm + lambda L_memory`, summed so that any split of a batch adds up.
"""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from titans.data.batch import IGNORED, Batch, StepDataset, load_batches
from titans.data.streams import TrainingData
from titans.training.carry import CarriedStates
from titans.training.config import LogConfig

MEMORY_STATS = (
    "surprise",
    "forget_gate",
    "momentum_decay",
    "step_size",
    "written_share",
)
"""What is logged of the model's `memory_stats`, as means over layers."""


@dataclass(frozen=True)
class LanguageLoss:
    """The next-token loss of some rows, summed: divide by the count of the whole batch."""

    total: Tensor
    """Sum of the cross-entropy over targets, in nats. Differentiable."""
    num_targets: int
    num_correct: int
    """Targets that have the largest logit."""


def language_loss(logits: Tensor, batch: Batch) -> LanguageLoss:
    """Cross-entropy in float32, whatever the model computed in."""
    flat, targets = logits.flatten(0, 1), batch.targets.flatten()
    wanted = targets != IGNORED
    num_targets = int(wanted.sum())
    if 2 * num_targets < len(targets):
        # Recall tasks ask at a few places only: leave the others' softmax out.
        flat, targets = flat[wanted], targets[wanted]
    total = functional.cross_entropy(flat.float(), targets, ignore_index=IGNORED, reduction="sum")
    with torch.no_grad():
        num_correct = int((flat.argmax(-1) == targets).sum())
    return LanguageLoss(total, num_targets, num_correct)


class Meter:
    """Sums since the last line of the log. Everything but the clock survives a checkpoint."""

    def __init__(self, sums: Mapping[str, float] | None = None) -> None:
        self.sums: dict[str, float] = dict(sums or {})
        self.seconds = 0.0
        """Spent on steps, waiting for data included; not on measurements and checkpoints."""
        self.waited = 0.0
        """Spent waiting for data."""

    def add(self, **amounts: float) -> None:
        """Add to some sums."""
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0.0) + amount

    def add_memory(self, stats: Mapping[str, Tensor] | None, num_tokens: int) -> None:
        """Add the memories' means over `num_tokens` tokens."""
        if not stats:
            return
        self.add(memory_tokens=num_tokens)
        for name in MEMORY_STATS:
            if name in stats:
                self.add(**{name: float(stats[name].mean()) * num_tokens})


def means(sums: Mapping[str, float], bytes_per_token: float | None) -> dict[str, object]:
    """What a line of the log says of the sums of all processes."""
    targets = max(1.0, sums.get("targets", 0.0))
    loss = sums.get("loss", 0.0) / targets
    values: dict[str, object] = {"loss": loss}
    if bytes_per_token is not None:
        values["bits_per_byte"] = bits_per_byte(loss, bytes_per_token)
    else:
        values["accuracy"] = sums.get("correct", 0.0) / targets
    for name in ("memory_loss", *MEMORY_STATS):
        if name in sums:
            values[name] = sums[name] / max(1.0, sums.get("memory_tokens", 0.0))
    return values


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """From nats per token."""
    return loss / math.log(2) / bytes_per_token


@torch.no_grad()
def held_out_loss(
    model: nn.Module,
    data: TrainingData,
    device: torch.device,
    *,
    num_batches: int,
    carry: bool,
    autocast: AbstractContextManager[object],
) -> dict[str, object]:
    """Loss over the first batches of the held-out stream, the same ones every time.

    Every process measures all of them, so that they agree without a word.
    """
    meter, states = Meter(), CarriedStates(1)
    rows = range(data.held_out_rows)
    dataset = StepDataset(data.held_out, rows, data.pad_token, 0, num_batches)
    was_training = model.training
    model.eval()
    with autocast:
        for batch in load_batches(dataset, 0):
            batch = batch.to(device)
            cache = states.before(0, batch) if carry else None
            output = model(
                input_ids=batch.tokens,
                attention_mask=batch.mask,
                past_key_values=cache,
                use_cache=carry,
            )
            if carry:
                states.after(0, output.past_key_values)
            loss = language_loss(output.logits, batch)
            meter.add(loss=float(loss.total), targets=loss.num_targets, correct=loss.num_correct)
            meter.add_memory(output.memory_stats, batch.tokens.numel())
    model.train(was_training)
    return means(meter.sums, data.bytes_per_token)


@torch.no_grad()
def sample_text(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: LogConfig, seed: int
) -> str:
    """A continuation of `log.sample_prompt`. The training's random numbers are left alone."""
    was_training = model.training
    model.eval()
    prompt = tokenizer(config.sample_prompt, return_tensors="pt", add_special_tokens=False)
    ids = cast(torch.Tensor, prompt["input_ids"]).to(model.device)
    devices = [model.device] if model.device.type != "cpu" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        out = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=config.sample_tokens,
            do_sample=True,
            temperature=0.8,
            top_k=50,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    model.train(was_training)
    return cast(str, tokenizer.decode(out[0], skip_special_tokens=True))
