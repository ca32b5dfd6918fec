"""The outer gradient of an untrained memory does not grow with the text it reads."""

import pytest
import torch

from titans import NeuralMemory
from titans.models import TitansConfig, TitansForCausalLM
from titans.models.config import MEMORY_VARIANTS

SHORTEST = 512
LENGTHS = [2048, pytest.param(16384, marks=pytest.mark.slow)]


def norm_of(module: torch.nn.Module) -> float:
    found = [p.grad.norm() for p in module.parameters() if p.grad is not None]
    return float(torch.stack(found).norm())


def layer(time: int, **settings: object) -> float:
    torch.manual_seed(0)
    memory = NeuralMemory(64, **settings)  # type: ignore[arg-type]
    memory(torch.randn(1, time, 64))[0].square().mean().backward()
    return norm_of(memory)


def model(variant: str, time: int) -> float:
    torch.manual_seed(0)
    config = TitansConfig(
        variant=variant,  # type: ignore[arg-type]
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model, ids = TitansForCausalLM(config), torch.randint(0, 256, (1, time))
    model(ids, labels=ids, use_cache=False).loss.backward()
    return norm_of(model)


@pytest.mark.parametrize("time", LENGTHS)
def test_of_the_layer(time: int) -> None:
    assert 0.1 < layer(time) / layer(SHORTEST) < 10


@pytest.mark.parametrize("time", LENGTHS)
@pytest.mark.parametrize("variant", MEMORY_VARIANTS)
def test_of_every_variant(variant: str, time: int) -> None:
    assert 0.1 < model(variant, time) / model(variant, SHORTEST) < 10


def test_gradients_at_the_start_of_a_chunk_grow() -> None:
    """What the tests above would see of the default of before."""
    before = {"rule": "chunk", "depth": 2, "chunk_size": 64}
    assert layer(2048, **before) > 1000 * layer(SHORTEST, **before)
