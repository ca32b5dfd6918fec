"""Each step of a turn against plain formulas, written here without the package's operations."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from titans.recall import RecallConfig, preset
from titans.recall.config import NeuralConfig, neural_from_json, neural_to_json
from titans.recall.neural.memory import (
    CONTENT,
    CONTEXT,
    REPLAY_CHUNK,
    DeltaMemory,
    Surroundings,
    Write,
    load_online_memory,
)
from titans.recall.neural.sketch import sketch_words
from titans.recall.neural.turn import TurnNetwork
from titans.recall.neural.turn_memory import TurnMemory
from titans.recall.vectors import round_half, unit


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return silu(x @ w1.T + b1) @ w2.T + b2


@pytest.fixture
def scope() -> TurnMemory:
    return TurnMemory(24, NeuralConfig(**{**preset("classic").neural.__dict__, "dim": 16}))


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


def test_every_step_of_the_classic_turn(scope: TurnMemory):
    turn = scope.turn
    state = scope.initial_state()
    weights = [w[0].clone() for w in turn.initial_memory]
    momentum = [torch.zeros_like(w) for w in weights]
    for step in range(5):
        pooled = torch.randn(24, generator=torch.Generator().manual_seed(step))
        seen = scope.observe(pooled.numpy(), state, Surroundings({}))
        # 1. s = normalise(W_proj pooled)
        s = pooled @ turn.projection.weight.T + turn.projection.bias
        s = s / s.norm()
        torch.testing.assert_close(torch.from_numpy(scope.embed(pooled.numpy())), s)
        # 2. h = M(W_Q s)
        h = mlp(s @ turn.query.weight.T + turn.query.bias, *weights)
        torch.testing.assert_close(turn.read(s[None], state)[0, 0], h)
        # 3. attention over [p | h | s], last position
        y = attention_by_hand(turn, s, h)
        torch.testing.assert_close(torch.from_numpy(seen.y), y)
        # 4. surprise and write, at float16 keys and values
        key = (y @ turn.key.weight.T + turn.key.bias).half().float()
        value = (y @ turn.value.weight.T + turn.value.bias).half().float()
        written = [torch.from_numpy(x[0]) for x in (seen.write.keys, seen.write.values)]
        torch.testing.assert_close(written[0], key, atol=1e-3, rtol=1e-3)
        key, value = written
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
        found = torch.from_numpy(scope.search_vector(seen.y, state))
        torch.testing.assert_close(found, o, atol=1e-5, rtol=1e-4)


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
    scope = DeltaMemory(32, NeuralConfig())
    pooled = unit(np.random.default_rng(0).standard_normal(32, np.float32))
    seen = scope.observe(pooled, scope.initial_state(), Surroundings({"dog": 5.0}))
    np.testing.assert_allclose(seen.y, pooled, rtol=1e-6)
    assert np.array_equal(seen.write.keys[CONTENT], round_half(seen.y))
    # A memory that knows nothing is surprised by all of a text's words: 5 nats here.
    words = sketch_words({"dog": 5.0}, 32)
    assert seen.surprise == pytest.approx(float(words @ words), rel=1e-2)


def made_up_writes(scope: DeltaMemory, count: int) -> list[Write]:
    rng = np.random.default_rng(0)
    state, writes = scope.initial_state(), []
    for step in range(count):
        recent = tuple(rng.standard_normal((2, scope.dim), np.float32)) if step % 5 else ()
        pooled = rng.standard_normal(scope.dim, np.float32)
        around = Surroundings({f"word{step}": 3.0, "often": 1.0}, recent)
        writes.append(scope.observe(pooled, state, around).write)
    return writes


def test_default_write_is_the_delta_rule_and_equals_that_of_the_ops():
    scope, other = DeltaMemory(16, NeuralConfig()), TurnMemory(16, NeuralConfig())
    state, theirs = scope.initial_state(), other.initial_state()
    expected = np.zeros((2, 16, 16))
    for write in made_up_writes(scope, 12):
        state, theirs = scope.absorb(state, write), other.absorb(theirs, write)
        for head, theta in enumerate(scope.config.step_size):
            key, value = write.keys[head], write.values[head]
            error = expected[head] @ key - value
            expected[head] -= 2 * theta * np.outer(error, key)
        np.testing.assert_allclose(state.weights, expected, atol=1e-6, rtol=1e-5)
        np.testing.assert_allclose(state.weights, theirs.weights[0][0], atol=1e-6, rtol=1e-5)
        one = scope.observe(write.keys[0], state, Surroundings({"dog": 5.0}))
        two = other.observe(write.keys[0], theirs, Surroundings({"dog": 5.0}))
        assert one.surprise == pytest.approx(two.surprise, rel=1e-4)
    again = scope.restore(other.dump(theirs))
    assert again.position == state.position == 12
    np.testing.assert_allclose(again.weights, state.weights, atol=1e-6, rtol=1e-5)


def test_a_replay_is_all_writes_one_after_the_other():
    scope = DeltaMemory(16, NeuralConfig())
    writes = made_up_writes(scope, 2 * REPLAY_CHUNK + 7)
    state = scope.initial_state()
    for write in writes:
        state = scope.absorb(state, write)
    replayed = scope.replay(
        scope.initial_state(), Write.many_from_bytes([w.to_bytes() for w in writes], 2)
    )
    assert replayed.position == state.position
    np.testing.assert_allclose(replayed.weights, state.weights, atol=1e-5, rtol=1e-4)


def test_only_the_default_rule_needs_no_torch():
    assert isinstance(load_online_memory(16, NeuralConfig()), DeltaMemory)
    assert isinstance(load_online_memory(16, NeuralConfig(step_size=(0.1, 0.2))), DeltaMemory)
    for other in (NeuralConfig(momentum_decay=0.5), NeuralConfig(depth=2), NeuralConfig(dim=16)):
        assert isinstance(load_online_memory(16, other), TurnMemory)


def test_context_head_writes_a_text_when_its_successor_comes():
    scope = DeltaMemory(8, NeuralConfig())
    one = np.eye(8, dtype=np.float32)
    around = Surroundings({"a": 1.0}, (one[0], one[1]))
    write = scope.observe(one[2], scope.initial_state(), around).write
    assert np.array_equal(write.keys[CONTEXT], one[1])
    third = [3.0**-0.5] * 3 + [0.0] * 5
    np.testing.assert_allclose(write.values[CONTEXT], third, atol=1e-3, rtol=1e-3)
    first = scope.observe(one[0], scope.initial_state(), Surroundings({"a": 1.0})).write
    assert not first.values[CONTEXT].any()


def test_a_write_survives_its_bytes_and_a_state_its_snapshot(scope: TurnMemory):
    state = scope.initial_state()
    for step in range(3):
        pooled = torch.randn(24, generator=torch.Generator().manual_seed(step))
        write = scope.observe(pooled.numpy(), state, Surroundings({})).write
        again = Write.from_bytes(write.to_bytes(), 1)
        assert np.array_equal(again.keys, write.keys)
        assert np.array_equal(again.values, write.values)
        state = scope.absorb(state, again)
    restored = scope.restore(scope.dump(state))
    for name, tensor in state.named_tensors().items():
        if not name.startswith("chunk_weights"):
            assert torch.equal(restored.named_tensors()[name], tensor), name
    pooled = torch.randn(24)
    write = scope.observe(pooled.numpy(), state, Surroundings({})).write
    one, two = scope.absorb(state, write), scope.absorb(restored, write)
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))


def test_configuration_survives_json():
    for config in (RecallConfig().neural, preset("classic").neural):
        assert neural_from_json(neural_to_json(config)) == config
