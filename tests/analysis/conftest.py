"""A small checkpoint with its tokenizer, and a text."""

from pathlib import Path

import pytest
import torch

from support.models import tiny_config
from titans.data.tokenizer import byte_tokenizer
from titans.models import TitansForCausalLM

TEXT = """It was the best of times, it was the worst of times, it was the age of wisdom,
it was the age of foolishness, it was the epoch of belief.

“Naïve?” asked the clerk <of the court> & smiled.
"""


def save_checkpoint(folder: Path, case: str, **changes: object) -> Path:
    """A tiny model of bytes, untrained."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = tiny_config(case, vocab_size=len(tokenizer), **changes)
    TitansForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def mag_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("models") / "small-mag", "mag")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "times.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path
