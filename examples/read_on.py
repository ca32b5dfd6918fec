"""A MAC trained on one text file; it reads on, is saved, and is asked again. About a minute.

python examples/read_on.py [TEXT] [STEPS]
"""

import sys
import tempfile
from pathlib import Path

import torch

from titans import shipped
from titans.models import TitansCache
from titans.models.checkpoint import load
from titans.models.generation import read
from titans.training.config import load_config
from titans.training.stages import train

PASSAGE = 4_000
"""Bytes that are read after the training."""


def main(text: str = str(shipped.SAMPLE_TEXT), steps: str = "80") -> None:
    out = Path(tempfile.mkdtemp())
    settings = [f"data.path={text}", f"train.steps={steps}", f"out={out}", "log.sample_every=0"]
    train(load_config("mac", settings))  # what `titans train mac --data TEXT` does
    model, tokenizer = load(out)

    book = tokenizer(Path(text).read_text(encoding="utf-8")[:PASSAGE], return_tensors="pt")
    cache = model.new_cache(1)
    read(model, book["input_ids"], cache)
    cache.save(out / "book.safetensors")
    print(f"read {book['input_ids'].shape[1]:,} bytes; the state has {cache.num_bytes:,} bytes")

    # Tomorrow, in another process: every question starts from the same state.
    kept = TitansCache.load(out / "book.safetensors")
    for prompt in ("The castle ", "I asked him "):
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            tokens = model.generate(ids, past_key_values=kept.fork(), max_new_tokens=40)
        print(repr(tokenizer.decode(tokens[0], skip_special_tokens=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
