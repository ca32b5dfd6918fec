"""Saved states: files of the first release, and what continues from them, in float64."""

import random
from pathlib import Path
from typing import Any

import torch

from golden.names import make_layer
from golden.traces import build
from titans import NeuralMemory, NeuralMemoryState
from titans.models import TitansForCausalLM
from titans.models.cache import TitansCache

MODELS: dict[str, dict[str, Any]] = {
    "lmm": {"variant": "lmm"},
    "mac": {"variant": "mac"},
    "mag": {"variant": "mag", "memory_gate_kernel": 3},
    "mal": {"variant": "mal"},
    "delta": {"variant": "lmm", "memory_rule": "gated_delta"},
    "predictive": {"variant": "lmm", "write_gate": "predictive", "surprise_threshold": 0.2},
    "swa": {"variant": "swa"},
    "transformer": {"variant": "transformer"},
}
"""Name -> settings of the models whose caches are kept."""


def layer() -> tuple[NeuralMemory, torch.Tensor]:
    """A layer whose gates look back, and something to read."""
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    try:
        built = make_layer(8, num_heads=2, chunk_size=4, gates="chunk", gate_conv_size=3)
    finally:
        torch.set_default_dtype(torch.float32)
    return built.double().eval(), torch.randn(2, 30, 8, dtype=torch.float64)


@torch.no_grad()
def write_layer_state(path: Path) -> None:
    """Read 14 vectors (three chunks and a half) and save."""
    built, x = layer()
    built(x[:, :14])[1].save(path)


@torch.no_grad()
def continue_layer(path: Path) -> list[float]:
    """What a saved state answers to the rest."""
    built, x = layer()
    out, state = built(x[:, 14:], NeuralMemoryState.load(path))
    return [*out.flatten().tolist(), *built.read(x[:, :3], state)[0].flatten().tolist()]


def _model(settings: dict[str, Any]) -> tuple[TitansForCausalLM, torch.Tensor]:
    model = build(settings, seed=4).eval()
    draw = random.Random(5)
    return model, torch.tensor([[draw.randrange(23) for _ in range(45)]])


@torch.no_grad()
def write_cache(name: str, path: Path) -> None:
    """Read 29 tokens (an open segment, an open chunk) and save."""
    model, ids = _model(MODELS[name])
    cache = model.new_cache()
    model(input_ids=ids[:, :29], past_key_values=cache)
    cache.save(path)


@torch.no_grad()
def continue_cache(name: str, path: Path) -> list[float]:
    """Logits of the rest, some as a piece, some token by token."""
    model, ids = _model(MODELS[name])
    cache = TitansCache.load(path)
    assert cache.has_read(ids[:, :29], None)
    seen = [model(input_ids=ids[:, 29:40], past_key_values=cache).logits]
    for t in range(40, 45):
        seen.append(model(input_ids=ids[:, t : t + 1], past_key_values=cache).logits)
    return torch.cat(seen, dim=1)[..., ::7].flatten().tolist()
