"""One optimizer step: forward and backward over the micro-batches, then AdamW."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titans.data.batch import Batch
from titans.models import TitansForCausalLM
from titans.models.lm import TitansOutput
from titans.training.carry import CarriedStates
from titans.training.config import TrainConfig
from titans.training.metrics import Meter, language_loss
from titans.training.optim import clip_gradients, set_learning_rate
from titans.training.processes import Processes


@dataclass(frozen=True)
class StepResult:
    """What a step came to."""

    is_finite: bool
    grad_norm: float
    learning_rate: float
    num_tokens: int
    """Over all processes, padding left out."""
    should_stop: bool
    """Some process was asked to stop."""


@dataclass
class Stepper:
    """Does optimizer steps. Holds references, no state of its own."""

    config: TrainConfig
    model: nn.Module
    """As prepared for several processes."""
    core: TitansForCausalLM
    """The model itself."""
    optimizer: Optimizer
    processes: Processes
    states: CarriedStates | None
    """None where windows stand alone."""

    def step(self, batch: Batch, number: int, meter: Meter, stop: bool) -> StepResult:
        """Train on this process's rows of batch `number`."""
        rate = set_learning_rate(self.optimizer, self.config, number)
        tokens = _num_tokens(batch)
        total_targets, total_tokens, stops = self.processes.sum(
            [batch.num_targets, tokens, float(stop)]
        )
        micro_batches = self._split(batch)
        loss_sum = 0.0
        for index, part in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with self.processes.no_sync(self.model, last=is_last):
                loss_sum += self._backward(part, index, total_targets, total_tokens, meter)
        norm = clip_gradients(self.model, self.config.max_grad_norm)
        is_finite = self._agree(math.isfinite(norm) and math.isfinite(loss_sum))
        if is_finite:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            meter.add(steps=1, grad_norm=norm)
        elif self.states is not None:
            self.states.drop()
        return StepResult(is_finite, norm, rate, int(total_tokens), stops > 0)

    def _split(self, batch: Batch) -> list[Batch]:
        rows = batch.tokens.shape[0]
        size = min(rows, self.config.micro_batch_size or rows)
        return [batch.rows(begin, begin + size) for begin in range(0, rows, size)]

    def _backward(
        self, part: Batch, index: int, total_targets: float, total_tokens: float, meter: Meter
    ) -> float:
        """Add one micro-batch's gradient; returns its share of the loss."""
        with autocast(self.config, self.processes.device):
            output = self._forward(part, index)
        language = language_loss(output.logits, part)  # type: ignore[arg-type]
        tokens = _num_tokens(part)
        # Processes average their gradients; the shares below add up to the whole batch.
        share = self.processes.count * tokens / total_tokens
        loss = language.total * (self.processes.count / max(1.0, total_targets))
        loss = loss + share * self._side_losses(output)
        self.processes.accelerator.backward(loss)
        total = float(language.total.detach())
        if math.isfinite(total):
            meter.add(loss=total, targets=language.num_targets, correct=language.num_correct)
            meter.add_memory(output.memory_stats, tokens)
            if output.memory_loss is not None:
                meter.add(memory_loss=float(output.memory_loss.detach()) * tokens)
        return total

    def _forward(self, part: Batch, index: int) -> TitansOutput:
        cache = None if self.states is None else self.states.before(index, part)
        output = self.model(
            input_ids=part.tokens,
            attention_mask=part.mask,
            past_key_values=cache,
            use_cache=self.states is not None,
        )
        if self.states is not None:
            self.states.after(index, output.past_key_values)
        return output

    def _side_losses(self, output: TitansOutput) -> Tensor | float:
        """lambda L_memory, the cost of writing, and the predictive write gate's own loss."""
        side: Tensor | float = 0.0
        if self.config.write_cost and output.mean_step is not None:
            side = side + self.config.write_cost * output.mean_step
        if self.config.memory_loss_weight and output.memory_loss is not None:
            side = side + self.config.memory_loss_weight * output.memory_loss
        if output.predictor_loss is not None:
            side = side + self.core.config.predictor_loss_weight * output.predictor_loss
        return side

    def _agree(self, good: bool) -> bool:
        """Whether all processes found the step good."""
        return self.processes.sum([0.0 if good else 1.0])[0] == 0


def autocast(config: TrainConfig, device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 where the configuration asks for it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")


def _num_tokens(batch: Batch) -> int:
    return batch.tokens.numel() if batch.mask is None else int(batch.mask.sum())
