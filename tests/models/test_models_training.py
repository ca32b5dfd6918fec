"""Memories in training, at texts long enough that a memory could run away."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from titans.models import TitansConfig, TitansForCausalLM
from titans.models.config import MEMORY_VARIANTS

LENGTH, VOCAB = 512, 32
RATE = 3e-2
"""Too high, so that gates are soon where nothing but their bound holds the memory."""


def babble(batch: int, generator: torch.Generator) -> Tensor:
    """Letters of words that come back, as in a text."""
    words = torch.randint(1, VOCAB, (40, 6), generator=torch.Generator().manual_seed(1))
    words[:, -1] = 0
    chosen = torch.randint(40, (batch, LENGTH // 6 + 1), generator=generator)
    return words[chosen].flatten(1)[:, :LENGTH]


def train(*, steps: int = 12, batch: int = 4, **settings: object) -> tuple[float, float]:
    """Largest inner loss, in squares of a value's length, and largest norm of the gradient."""
    torch.manual_seed(0)
    config = TitansConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        **settings,  # type: ignore[arg-type]
    )
    model = TitansForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(0)
    losses, norms = [], []
    for _ in range(steps):
        tokens = babble(batch, generator)
        output = model(tokens)
        loss = cross_entropy(output.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(output.memory_loss.item())
    assert config.memory.value_norm is not None
    length = config.memory.value_norm * 0.5 ** max(0, config.memory.depth - 2)
    return max(losses) / length**2, max(norms)


@pytest.mark.parametrize("variant", MEMORY_VARIANTS)
def test_no_memory_runs_away_in_training(variant: str) -> None:
    loss, norm = train(variant=variant)
    assert loss < 4 and norm < 10


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("variant", MEMORY_VARIANTS)
def test_no_depth_of_it_runs_away(variant: str, depth: int) -> None:
    memory = {"depth": depth, "chunk_size": 64}
    loss, norm = train(steps=6, batch=2, variant=variant, memory=memory)
    assert loss < 4 and norm < 10


@pytest.mark.parametrize("memory", [{"features": 32}, {"rule": "least_squares"}], ids=str)
def test_no_kind_of_it_runs_away(memory: dict[str, object]) -> None:
    loss, norm = train(variant="lmm", memory=memory)
    assert loss < 4 and norm < 10


def test_gradients_at_the_start_of_a_chunk_do() -> None:
    """The reason for the default: what the tests above would see of it."""
    assert train(variant="lmm", memory={"rule": "chunk", "depth": 2})[1] > 1000
