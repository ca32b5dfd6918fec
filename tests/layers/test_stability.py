"""A default layer trains and soaks without a single non-finite number, at any chunk size."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from titans import NeuralMemory
from titans.ops.online import largest_rate

VOCAB = 64


def mqar(batch: int, generator: torch.Generator, length: int = 64, pairs: int = 4):
    """Keys and values in pairs, noise, and each key once more; the label is its value."""
    keys = torch.stack([torch.randperm(VOCAB // 2, generator=generator) for _ in range(batch)])
    values = VOCAB // 2 + torch.randint(0, VOCAB // 2, (batch, pairs), generator=generator)
    tokens = torch.randint(0, VOCAB, (batch, length), generator=generator)
    keys = keys[:, :pairs]
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    places = torch.stack([torch.randperm(length // 4, generator=generator) for _ in range(batch)])
    places = 2 * pairs + 2 * places[:, :pairs]
    return tokens.scatter(1, places, keys), places, values


class Model(nn.Module):
    def __init__(self, chunk_size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.norm = nn.LayerNorm(32)
        self.memory = NeuralMemory(32, num_heads=2, rule="chunk", depth=2, chunk_size=chunk_size)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.memory(self.norm(x))[0])


@pytest.mark.parametrize(
    "chunk_size",
    [
        pytest.param(c, marks=[] if c in (16, 256) else pytest.mark.slow)
        for c in (1, 4, 16, 64, 256)
    ],
)
def test_two_hundred_steps_of_training(chunk_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    model = Model(chunk_size)
    optimiser = torch.optim.AdamW(model.parameters(), lr=6e-3)
    losses = []
    for _ in range(200):
        tokens, places, values = mqar(16, generator)
        logits = model(tokens).gather(1, places[..., None].expand(-1, -1, VOCAB))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), values.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        assert torch.isfinite(loss)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert sum(losses[-20:]) < sum(losses[:20])


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [16, 64, 256])
@torch.no_grad()
def test_soak_of_64k_tokens(chunk_size: int) -> None:
    """Text-like tokens (a few frequent ones, many repeats), then a memory that still learns."""
    embed = torch.randn(256, 64)
    ids = (torch.distributions.Geometric(0.08).sample((65536,)) % 256).long()
    memory = NeuralMemory(64, num_heads=2, rule="chunk", depth=2, chunk_size=chunk_size)
    state = None
    for part in ids.split(4096):
        y, state = memory(embed[part][None], state)
        assert torch.isfinite(y).all()
    passage, losses = torch.randn(1, 16, 64), []
    for _ in range(8 * chunk_size // 16):
        _, state, trace = memory(passage, state, return_trace=True)
        losses.append(trace.surprise.loss.mean().item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("gates", ["token", "chunk", "look back"])
@pytest.mark.parametrize("size", [1.0, 30.0, 1e4, 1e30])
def test_no_gate_logits_make_an_online_step_unsafe(size: float, gates: str) -> None:
    """`2 theta <= 1.5 largest_rate(eta)`, for which docs/decisions/0006-online-rule.md has a bound:
    with logits of any size and sign, side by side with those of the other gates."""
    kind = {"gates": "chunk"} if gates == "chunk" else {}
    kind |= {"gate_conv_size": 3} if gates == "look back" else {}
    memory = NeuralMemory(16, num_heads=8, rule="online", depth=1, chunk_size=4, **kind)  # type: ignore[arg-type]
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=3))).T.flatten()
    x = size * torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0))
    start, position = memory.initial_state(2), torch.zeros(2, dtype=torch.long)
    for weight, bias in ((0.0, size * signs), (1.0, torch.zeros(24))):
        with torch.no_grad():
            memory.gates.proj.weight.normal_(std=1.0).mul_(weight)
            memory.gates.proj.bias.copy_(bias)
        alpha, eta, theta = memory.gates(x, position, start.gate_past, None)[0]
        for gate in (alpha, eta):
            assert ((gate >= 0) & (gate <= 1)).all()
        assert (theta >= 0).all()
        assert (2 * theta <= 1.5 * largest_rate(eta) * (1 + 1e-6)).all()
