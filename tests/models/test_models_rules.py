"""The baselines' update rules against loops written from the published equations."""

from pathlib import Path

import pytest
import torch

from support.models import tiny_model, tiny_tokens
from titans import NeuralMemory, NeuralMemoryState
from titans.ops import Gates, MemoryState

BATCH, TIME, HEADS, DIM = 2, 9, 2, 8


def inputs() -> tuple[tuple[torch.Tensor, ...], Gates]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tokens = [draw(BATCH, TIME, HEADS, DIM) for _ in range(3)]
    tokens[1] = torch.nn.functional.normalize(tokens[1], dim=-1)
    alpha, beta = draw(BATCH, TIME, HEADS).sigmoid(), draw(BATCH, TIME, HEADS).sigmoid()
    return tuple(tokens), Gates(alpha, torch.zeros_like(alpha), beta / 2)


@pytest.mark.parametrize("rule", ["delta", "gated_delta"])
def test_delta_rules_match_the_published_recurrence(rule: str) -> None:
    (queries, keys, values), gates = inputs()
    if rule == "delta":
        gates = gates._replace(forget_gate=torch.zeros_like(gates.forget_gate))
    memory = NeuralMemory(DIM * HEADS, num_heads=HEADS, rule=rule).double()
    state = MemoryState.from_parameters(memory.initial_memory, BATCH)
    got, _, _ = memory._scan((queries, keys, values), gates, state, None, None)
    for row in range(BATCH):
        for head in range(HEADS):
            matrix = torch.zeros(DIM, DIM, dtype=torch.float64)
            for t in range(TIME):
                k, v = keys[row, t, head], values[row, t, head]
                beta = 2 * gates.step_size[row, t, head]
                matrix = (1 - gates.forget_gate[row, t, head]) * matrix
                matrix = matrix - beta * torch.outer(matrix @ k - v, k)
                wanted = matrix @ queries[row, t, head]
                torch.testing.assert_close(got[row, t, head], wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize("rule", ["ttt", "delta", "gated_delta", "kda", "least_squares"])
def test_rules_stream_and_are_causal(rule: str) -> None:
    depth = 1 if rule == "least_squares" else 2
    model, ids = tiny_model("mag", memory={"rule": rule, "depth": depth}), tiny_tokens(time=15)
    cache = model.new_cache(2)
    with torch.no_grad():
        whole = model(ids).logits
        parts = [model(part, past_key_values=cache).logits for part in ids.split(4, dim=1)]
        changed = ids.clone()
        changed[:, 9] += 1 - 2 * (changed[:, 9] > 40).long()
        assert torch.equal(model(changed).logits[:, :9], whole[:, :9])
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-9, rtol=0)


def test_kda_forgets_by_channel_and_the_trace_has_the_mean() -> None:
    memory = NeuralMemory(DIM * HEADS, num_heads=HEADS, rule="kda").double()
    x = torch.randn(BATCH, TIME, DIM * HEADS, dtype=torch.float64)
    down, up = memory.gates.channel_down.weight, memory.gates.channel_up
    alpha = torch.sigmoid(x @ down.T @ up.weight.T + up.bias).unflatten(-1, (HEADS, DIM))
    y, _, trace = memory(x, return_trace=True)
    torch.testing.assert_close(trace.gates.forget_gate, alpha.mean(-1))
    y.square().sum().backward()
    for parameter in memory.gates.parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0
    with torch.no_grad():
        memory.gates.channel_up.bias[:4] += 3
        assert not torch.allclose(memory(x)[0], y)


@pytest.mark.parametrize(("rule", "width"), [("kda", None), ("least_squares", 3)])
def test_padding_and_saved_states_change_nothing(
    rule: str, width: int | None, tmp_path: Path
) -> None:
    memory = NeuralMemory(DIM * HEADS, num_heads=HEADS, rule=rule, value_dim=width).double()
    x = torch.randn(1, TIME, DIM * HEADS, dtype=torch.float64)
    padded = torch.cat((torch.randn(1, 3, DIM * HEADS, dtype=x.dtype), x), dim=1)
    mask = torch.arange(TIME + 3)[None] >= 3
    with torch.no_grad():
        whole, _ = memory(x)
        torch.testing.assert_close(memory(padded, mask=mask)[0][:, 3:], whole)
        memory(x[:, :4])[1].save(tmp_path / "state.safetensors")
        state = NeuralMemoryState.load(tmp_path / "state.safetensors")
        torch.testing.assert_close(memory(x[:, 4:], state)[0], whole[:, 4:])


def test_ttt_has_neither_momentum_nor_forgetting() -> None:
    model, ids = tiny_model("lmm", memory={"rule": "ttt"}), tiny_tokens()
    with torch.no_grad():
        stats = model(ids).memory_stats
    assert stats["momentum_decay"].tolist() == [0.0, 0.0]
    assert stats["forget_gate"].tolist() == [0.0, 0.0]
    assert (stats["step_size"] > 0).all()
