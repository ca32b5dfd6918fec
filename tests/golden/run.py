"""A small training run through `titans.training`, whole and resumed."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from golden.names import run_tree
from titans.settings import build
from titans.training.config import RunConfig
from titans.training.log import read_log
from titans.training.trainer import Trainer

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew strong tea".split()


def config(folder: Path) -> RunConfig:
    """A MAC on a few kilobytes of text, its state carried along, with every schedule in use."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(12):
        words = [WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(30 + 17 * (number % 4))]
        lines.append(json.dumps({"text": " ".join(words) + "."}) + "\n")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(lines))
    model = {
        "variant": "mac",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "segment_len": 8,
        "chunk_size": 4,
        "num_persistent": 1,
    }
    tree = run_tree(
        model,
        out=str(folder / "run"),
        seed=3,
        data={
            "path": str(corpus),
            "cache_dir": str(folder / "cache"),
            "sequence_len": 16,
            "validation_fraction": 0.1,
            "carry_state": True,
        },
        train={
            "steps": 16,
            "batch_size": 4,
            "micro_batch_size": 2,
            "warmup_steps": 2,
            "learning_rate": 1e-2,
            "memory_loss_weight": 0.1,
            "write_cost": 0.01,
            "core_steps": 6,
        },
        checkpoint={"every": 8},
        log={"every": 1, "held_out_every": 8, "held_out_batches": 2, "tensorboard": False},
    )
    return build(RunConfig, tree)


class Stop(Exception):
    """Ends a run in the middle of a measurement."""


def stop_at_12(step: int, loss: float) -> None:
    """Raise at the measurement in step 12, four steps after a checkpoint."""
    if step >= 12:
        raise Stop


def losses(run: Path) -> dict[str, list[float]]:
    """Every loss in a run's log, by kind."""
    found: dict[str, list[float]] = {}
    for record in read_log(run):
        if "loss" in record:
            found.setdefault(str(record["kind"]), []).append(record["loss"])
    return found


def whole(folder: Path) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Losses of the uninterrupted run, and its last weights."""
    result = Trainer(config(folder)).fit()
    return losses(result.folder), dict(load_file(result.checkpoint / "model.safetensors"))


def resumed(folder: Path) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The same of a run that was broken off and resumed."""
    try:
        Trainer(config(folder), watch=stop_at_12).fit()
        raise AssertionError("the run was to stop")
    except Stop:
        result = Trainer(config(folder), resume=True).fit()
    return losses(result.folder), dict(load_file(result.checkpoint / "model.safetensors"))
