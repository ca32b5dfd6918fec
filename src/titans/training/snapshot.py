"""What a checkpoint holds, and how a run continues from it, bit for bit.

    model.safetensors, config.json, tokenizer files     for `from_pretrained`
    optimizer.safetensors                               AdamW's averages, by parameter name
    progress.json                                       step, sums of the open log line, RNG
    rng-RANK.safetensors, carried/                      per process: random numbers, memory states
    run.yaml, provenance.json                           the resolved config, version, commit

The learning rate and the position in the data follow from the step. Nothing is pickled.
"""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from titans.errors import CheckpointError
from titans.files import provenance
from titans.models import TitansForCausalLM
from titans.settings import to_yaml
from titans.training.config import RunConfig
from titans.training.launch import whole
from titans.training.optim import optimizer_tensors, set_optimizer_tensors


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    """Optimizer steps done (skipped ones count)."""
    tokens: int = 0
    """Tokens trained on, over all processes."""
    skipped_steps: int = 0
    """Steps left out because they were not finite."""
    bad_in_row: int = 0
    """How many of them were the last ones."""
    sums: list[dict[str, float]] = field(default_factory=list)
    """The open line of the log, one entry per process."""
    micro_batch_size: int = 0
    """Rows per carried state."""


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep Hugging Face's bars for each file out of a run's display."""
    was_on = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers.utils.logging.enable_progress_bar()


def read_model(folder: Path) -> TitansForCausalLM:
    """The model of a checkpoint."""
    with no_progress_bars():
        return TitansForCausalLM.from_pretrained(folder)


def collect_weights(model: nn.Module) -> dict[str, Tensor]:
    """The whole weights. Every process must ask."""
    return {name: whole(t).detach().cpu() for name, t in model.state_dict().items()}


def collect_optimizer(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's whole state. Every process must ask."""
    return optimizer_tensors(model, optimizer)


def write_weights(
    folder: Path,
    model: PreTrainedModel,
    weights: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """What `from_pretrained` needs."""
    with no_progress_bars():
        model.save_pretrained(folder, state_dict=weights)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def write_progress(
    folder: Path, config: RunConfig, progress: Progress, optimizer: dict[str, Tensor]
) -> None:
    """What a resumed run needs beside the weights, and where the checkpoint came from."""
    save_file({k: v.contiguous() for k, v in optimizer.items()}, folder / "optimizer.safetensors")
    (folder / "progress.json").write_text(json.dumps(asdict(progress)))
    (folder / "run.yaml").write_text(to_yaml(config))
    (folder / "provenance.json").write_text(json.dumps(provenance(), indent=1))


def write_rng(folder: Path, rank: int) -> None:
    """This process's random number generators."""
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, folder / f"rng-{rank}.safetensors")
    numpy_state = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()  # type: ignore[index, call-overload]
    plain = {"python": random.getstate(), "numpy": numpy_state}
    (folder / f"rng-{rank}.json").write_text(json.dumps(plain))


def restore_rng(folder: Path, rank: int) -> None:
    """Put back what `write_rng` wrote. A process that was not there before keeps its own."""
    if not (folder / f"rng-{rank}.safetensors").is_file():
        return
    tensors = load_file(folder / f"rng-{rank}.safetensors")
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    plain = json.loads((folder / f"rng-{rank}.json").read_text())
    version, internal, gauss = plain["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(plain["numpy"])


def read_progress(folder: Path) -> Progress:
    """How far the run was."""
    try:
        return Progress(**json.loads((folder / "progress.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder}: not a checkpoint to resume from ({error})") from error


def restore_optimizer(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Put the optimizer's state back."""
    path = folder / "optimizer.safetensors"
    try:
        set_optimizer_tensors(model, optimizer, load_file(path))
    except (OSError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{path}: does not belong to this model ({error})") from error
