"""What every shipped checkpoint is: its settings, its weights' names and shapes, its logits."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from golden.names import effective, load_model, weight_shapes

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(p.parent for p in (ROOT / "checkpoints").glob("*/config.json"))
TEXT = (
    "It was nearly dark when the carriage stopped. One of the special magic numbers for "
    "long-context is: 4518603. The old man looked at the house, and at the road behind him, and "
    "said nothing for a while. Mary went to the kitchen. John picked up the apple there. "
    '"You are late," said a voice from the window; "we had given you up." The rain had begun '
    "again. Sandra travelled to the garden, and the lamp was carried to the door. "
    "What is the special magic number for long-context? One of the special magic numbers for "
    "long-context is: 4518603."
)
EVERY = 16
"""Positions between those whose logits are kept."""
COLUMNS = 6
"""How many entries of the vocabulary are kept of each."""
CLEAR = 1e-2
"""The first choice counts only if it leads the second by this much: rounding cannot swap them."""


def describe(folder: Path) -> dict[str, Any]:
    """Settings and weights of a checkpoint, with what it makes of `TEXT`."""
    model = load_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, return_tensors="pt").input_ids[:, :320]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].float()
    best = logits.topk(2).values
    is_clear = (best[:, 0] - best[:, 1]) > CLEAR
    columns = torch.linspace(0, logits.shape[-1] - 1, COLUMNS).long()
    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        stored = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return {
        "settings": effective(model.config),
        "weights": weight_shapes(model),
        "stored_weights": stored,
        "ids": ids[0].tolist(),
        "choices": torch.where(is_clear, logits.argmax(-1), -1).tolist(),
        "log_sums": logits.logsumexp(-1)[::EVERY].tolist(),
        "logits": logits[::EVERY, columns].flatten().tolist(),
    }
