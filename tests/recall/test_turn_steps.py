"""Each step of a turn against plain formulas, written here without the package's operations."""

import math

import pytest
import torch
from torch import Tensor

from titans.recall import RecallConfig, preset
from titans.recall.config import NeuralConfig, neural_from_json, neural_to_json
from titans.recall.neural.memory import CONTENT, CONTEXT, OnlineMemory, Surroundings, Write
from titans.recall.neural.sketch import sketch_words
from titans.recall.neural.turn import TurnNetwork


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return silu(x @ w1.T + b1) @ w2.T + b2


@pytest.fixture
def scope() -> OnlineMemory:
    return OnlineMemory(24, NeuralConfig(**{**preset("classic").neural.__dict__, "dim": 16}))


def attention_by_hand(turn: TurnNetwork, s: Tensor, h: Tensor) -> Tensor:
    x = torch.cat([turn.persistent.vectors, h[None], s[None]])
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    n = (x - mean) / (var + turn.norm.eps).sqrt() * turn.norm.weight + turn.norm.bias
    q, k, v = (n @ turn.attention.in_proj_weight.T + turn.attention.in_proj_bias).chunk(3, -1)
    heads, width = turn.config.num_attention_heads, turn.dim // turn.config.num_attention_heads
    mixed = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = (q[-1, part] @ k[:, part].T / math.sqrt(width)).softmax(-1)
        mixed.append(scores @ v[:, part])
    out = turn.attention.out_proj
    return s + torch.cat(mixed) @ out.weight.T + out.bias


def test_every_step_of_the_classic_turn(scope: OnlineMemory):
    turn = scope.turn
    state = scope.initial_state()
    weights = [w[0].clone() for w in turn.initial_memory]
    momentum = [torch.zeros_like(w) for w in weights]
    for step in range(5):
        pooled = torch.randn(24, generator=torch.Generator().manual_seed(step))
        seen = scope.observe(pooled, state, Surroundings({}))
        # 1. s = normalise(W_proj pooled)
        s = pooled @ turn.projection.weight.T + turn.projection.bias
        s = s / s.norm()
        torch.testing.assert_close(seen.s, s)
        # 2. h = M(W_Q s)
        h = mlp(s @ turn.query.weight.T + turn.query.bias, *weights)
        torch.testing.assert_close(seen.h, h)
        # 3. attention over [p | h | s], last position
        y = attention_by_hand(turn, s, h)
        torch.testing.assert_close(seen.y, y)
        # 4. surprise and write, at float16 keys and values
        key = (y @ turn.key.weight.T + turn.key.bias).half().float()
        value = (y @ turn.value.weight.T + turn.value.bias).half().float()
        torch.testing.assert_close(seen.write.keys[0], key, atol=1e-3, rtol=1e-3)
        key, value = seen.write.keys[0], seen.write.values[0]
        parameters = [w.clone().requires_grad_(True) for w in weights]
        loss = (mlp(key, *parameters) - value).square().sum()
        assert seen.surprise == pytest.approx(float(loss.detach()), rel=1e-5)
        grads = torch.autograd.grad(loss, parameters)
        momentum = [0.9 * m - 0.01 * g for m, g in zip(momentum, grads, strict=True)]
        weights = [(1 - 0.02) * w + m for w, m in zip(weights, momentum, strict=True)]
        state = scope.absorb(state, seen.write)
        for ours, expected in zip(state.weights, weights, strict=True):
            torch.testing.assert_close(ours[0, 0], expected, atol=1e-6, rtol=1e-5)
        # 5. o = y * M(y)
        o = y * mlp(y @ turn.query.weight.T + turn.query.bias, *weights)
        torch.testing.assert_close(scope.search_vector(seen.y, state), o, atol=1e-5, rtol=1e-4)


def test_classic_constants():
    config = preset("classic")
    neural = config.neural
    assert (neural.dim, neural.num_attention_heads, neural.num_persistent) == (128, 4, 4)
    assert (neural.step_size, neural.momentum_decay, neural.forget_gate) == ((0.01,), 0.9, 0.02)
    assert (neural.num_heads, neural.depth, neural.bias) == (1, 2, True)
    assert (config.top_k, config.threshold) == (3, 0.05)
    turn = TurnNetwork(384, neural)
    assert [tuple(w.shape) for w in turn.initial_memory] == [(1, 128, 128), (1, 128)] * 2
    assert float(turn.persistent.vectors.detach().std()) == pytest.approx(0.02, rel=0.2)


def test_classic_memory_forgets_with_a_half_life_of_34_writes():
    assert pytest.approx(0.5, abs=0.01) == 0.98**34


def test_default_turn_puts_nothing_random_before_the_search():
    scope = OnlineMemory(32, NeuralConfig())
    pooled = torch.nn.functional.normalize(torch.randn(32), dim=0)
    seen = scope.observe(pooled, scope.initial_state(), Surroundings({"dog": 5.0}))
    torch.testing.assert_close(seen.y, pooled)
    torch.testing.assert_close(seen.write.keys[CONTENT], pooled, atol=1e-3, rtol=1e-3)
    # A memory that knows nothing is surprised by all of a text's words: 5 nats here.
    words = torch.from_numpy(sketch_words({"dog": 5.0}, 32))
    assert seen.surprise == pytest.approx(float(words.square().sum()), rel=1e-2)


def test_default_write_is_the_delta_rule():
    scope = OnlineMemory(16, NeuralConfig())
    state = scope.initial_state()
    expected = torch.zeros(2, 16, 16)
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        recent = tuple(torch.randn(2, 16, generator=generator)) if step else ()
        pooled = torch.randn(16, generator=generator)
        around = Surroundings({f"word{step}": 3.0, "often": 1.0}, recent)
        write = scope.observe(pooled, state, around).write
        state = scope.absorb(state, write)
        for head, theta in enumerate(scope.config.step_size):
            key, value = write.keys[head], write.values[head]
            error = expected[head] @ key - value
            expected[head] -= 2 * theta * torch.outer(error, key)
        torch.testing.assert_close(state.weights[0][0], expected, atol=1e-6, rtol=1e-5)


def test_context_head_writes_a_text_when_its_successor_comes():
    scope = OnlineMemory(8, NeuralConfig())
    unit = torch.eye(8)
    around = Surroundings({"a": 1.0}, (unit[0], unit[1]))
    write = scope.observe(unit[2], scope.initial_state(), around).write
    torch.testing.assert_close(write.keys[CONTEXT], unit[1])
    third = torch.tensor([3.0**-0.5] * 3 + [0.0] * 5)
    torch.testing.assert_close(write.values[CONTEXT], third, atol=1e-3, rtol=1e-3)
    first = scope.observe(unit[0], scope.initial_state(), Surroundings({"a": 1.0})).write
    assert not first.values[CONTEXT].any()


def test_a_write_survives_its_bytes_and_a_state_its_snapshot(scope: OnlineMemory):
    state = scope.initial_state()
    for step in range(3):
        pooled = torch.randn(24, generator=torch.Generator().manual_seed(step))
        write = scope.observe(pooled, state, Surroundings({})).write
        again = Write.from_bytes(write.to_bytes(), 1)
        assert torch.equal(again.keys, write.keys) and torch.equal(again.values, write.values)
        state = scope.absorb(state, again)
    restored = scope.restore(scope.dump(state))
    for name, tensor in state.named_tensors().items():
        if not name.startswith("chunk_weights"):
            assert torch.equal(restored.named_tensors()[name], tensor), name
    pooled = torch.randn(24)
    write = scope.observe(pooled, state, Surroundings({})).write
    one, two = scope.absorb(state, write), scope.absorb(restored, write)
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))


def test_configuration_survives_json():
    for config in (RecallConfig().neural, preset("classic").neural):
        assert neural_from_json(neural_to_json(config)) == config
