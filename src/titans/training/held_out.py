"""Looking at a model while it trains: held-out loss and sample generations."""

from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from titans.data.batch import StepDataset, load_batches
from titans.data.streams import TrainingData
from titans.training.carry import CarriedStates
from titans.training.config import LogConfig
from titans.training.meter import Meter, means
from titans.training.objective import language_loss


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
