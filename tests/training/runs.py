"""Tiny runs for tests: a corpus of a few kilobytes, a model of a few thousand parameters."""

from pathlib import Path

from titans.settings import apply_settings, build
from titans.training.config import RunConfig
from titans.training.log import TIMES, Record, read_log

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew strong tea".split()


def write_corpus(folder: Path, num_documents: int = 12) -> Path:
    """Documents of different lengths, as JSON lines."""
    lines = []
    for number in range(num_documents):
        words = [WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(30 + 17 * (number % 4))]
        lines.append('{"text": "' + " ".join(words) + '."}\n')
    path = folder / "corpus.jsonl"
    path.write_text("".join(lines))
    return path


def tiny_config(folder: Path, *settings: str, variant: str = "swa") -> RunConfig:
    """A run that takes a few seconds, with `settings` such as `train.steps=5` on top."""
    tree: dict[str, object] = {
        "out": str(folder / "run"),
        "model": {
            "variant": variant,
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "window": 8,
            "segment_len": 8,
            "memory": {"chunk_size": 4},
            "num_persistent": 1,
        },
        "data": {
            "path": str(folder / "corpus.jsonl"),
            "cache_dir": str(folder / "cache"),
            "sequence_len": 16,
            "validation_fraction": 0.1,
        },
        "train": {"steps": 8, "batch_size": 4, "warmup_steps": 2, "learning_rate": 1e-2},
        "checkpoint": {"every": 4},
        "log": {"every": 2, "held_out_every": 4, "held_out_batches": 2, "tensorboard": False},
    }
    apply_settings(tree, settings)
    if not (folder / "corpus.jsonl").exists():
        write_corpus(folder)
    return build(RunConfig, tree)


def timeless(run: str | Path) -> list[Record]:
    """A run's log without what depends on the clock."""
    return [Record({k: v for k, v in r.items() if k not in TIMES}) for r in read_log(run)]
