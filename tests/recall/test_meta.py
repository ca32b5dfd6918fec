"""The outer loop: who learns from what, and that values do not collapse."""

import json
from pathlib import Path

import pytest
import torch

from titans.errors import DataError, StateError
from titans.recall import TextMemory, preset
from titans.recall.config import NeuralConfig
from titans.recall.encoder import HashingEncoder
from titans.recall.neural.meta import (
    MetaConfig,
    Pair,
    embed_texts,
    load_questions,
    load_texts,
    measure_retrieval,
    run_episode,
    start_state,
    train_checkpoint,
    train_turn,
    value_variance,
)
from titans.recall.neural.turn import TurnNetwork
from titans.recall.neural.turn_memory import TurnMemory

SMALL = NeuralConfig(**{**preset("classic").neural.__dict__, "dim": 16})
WORDS = "red green blue dog cat bird house tree river stone moon star".split()
TEXTS = [f"the {a} {b} is near the {c}" for a in WORDS[:3] for b in WORDS[3:6] for c in WORDS[6:12]]


@pytest.fixture
def vectors() -> torch.Tensor:
    return embed_texts(HashingEncoder(32), TEXTS)


def gradients(turn: TurnNetwork, config: MetaConfig, vectors: torch.Tensor, part: str) -> set[str]:
    turn.zero_grad()
    state = start_state(turn, config, torch.Generator().manual_seed(0))
    losses = run_episode(turn, vectors[:6], vectors[6:8], vectors[6:8], state, config)
    getattr(losses, part).backward()
    return {
        name.split(".")[0]
        for name, p in turn.named_parameters()
        if p.grad is not None and p.grad.abs().max() > 0
    }


def test_first_order_writes_teach_keys_and_values_reads_teach_queries(vectors):
    turn = TurnNetwork(32, SMALL)
    config = MetaConfig()
    assert gradients(turn, config, vectors, "write") == {"projection", "key", "value"}
    assert gradients(turn, config, vectors, "read") == {"projection", "query"}


def test_second_order_reads_teach_keys_values_and_the_initial_memory(vectors):
    found = gradients(TurnNetwork(32, SMALL), MetaConfig(second_order=True), vectors, "read")
    assert found == {"projection", "query", "key", "value", "initial_memory"}


def test_the_full_turn_teaches_attention_and_persistent_vectors(vectors):
    found = gradients(TurnNetwork(32, SMALL), MetaConfig(full_turn=True), vectors, "write")
    assert {"attention", "persistent", "norm"} <= found


def test_an_episode_by_hand(vectors):
    """Losses of a first-order episode against the formulas with autograd."""
    turn = TurnNetwork(32, SMALL)
    config = MetaConfig()
    state = start_state(turn, config, torch.Generator().manual_seed(3))
    ours = run_episode(turn, vectors[:6], vectors[6:8], vectors[6:8], state, config)
    weights = [w[0, 0].clone() for w in state.weights]
    momentum = [torch.zeros_like(w) for w in weights]

    def memory(x, w):
        return torch.nn.functional.silu(x @ w[0].T + w[1]) @ w[2].T + w[3]

    total = 0.0
    for pooled in vectors[:6]:
        s = torch.nn.functional.normalize(turn.projection(pooled), dim=-1)
        key, value = turn.key(s).detach(), turn.value(s).detach()
        live = [w.clone().requires_grad_(True) for w in weights]
        loss = (memory(key, live) - value).square().sum()
        total += float(loss.detach())
        grads = torch.autograd.grad(loss, live)
        momentum = [0.9 * m - 0.01 * g for m, g in zip(momentum, grads, strict=True)]
        weights = [0.98 * w + m for w, m in zip(weights, momentum, strict=True)]
    assert float(ours.write.detach()) == pytest.approx(total, rel=1e-4)
    s = torch.nn.functional.normalize(turn.projection(vectors[6:8]), dim=-1)
    read = (memory(turn.query(s), weights) - turn.value(s)).square().sum()
    assert float(ours.read.detach()) == pytest.approx(float(read.detach()), rel=1e-4)


def test_training_lowers_the_loss_and_keeps_values_apart(vectors):
    turn = TurnNetwork(32, SMALL)
    pairs = [Pair(vectors[i] + 0.02, i) for i in range(0, len(vectors), 2)]
    before = value_variance(turn, vectors)
    curve = train_turn(turn, vectors, pairs, MetaConfig(epochs=12, learning_rate=3e-3))
    totals = [row["write"] + row["read"] + row["contrast"] for row in curve]
    assert totals[-1] < 0.8 * totals[0]
    assert curve[-1]["value_variance"] > 0.8 * before


@pytest.mark.slow
def test_without_the_contrastive_term_values_do_collapse(vectors):
    turn = TurnNetwork(32, SMALL)
    curve = train_turn(turn, vectors, [], MetaConfig(epochs=30, learning_rate=1e-2, contrast=0.0))
    assert curve[-1]["value_variance"] < 0.5 * curve[0]["value_variance"]


def test_too_few_texts_are_an_error(vectors):
    with pytest.raises(DataError, match="an episode takes 8 texts, there are 7"):
        train_turn(TurnNetwork(32, SMALL), vectors[:7], [], MetaConfig())


def test_a_checkpoint_opens_a_store_and_a_wrong_one_is_refused(tmp_path: Path):
    encoder = HashingEncoder(32)
    questions = [(f"what about {text}", text) for text in TEXTS[::3]]
    report = train_checkpoint(
        tmp_path / "m.safetensors", encoder, SMALL, TEXTS, questions, MetaConfig(epochs=2)
    )
    assert set(report["before"]) == {"read_top1", "search_top1", "encoder_top1"}
    saved = json.loads((tmp_path / "m.json").read_text())
    assert len(saved["curve"]) == 2 and saved["after"] == report["after"]
    config = preset("classic").change(
        encoder="hashing:32", neural=SMALL, checkpoint=str(tmp_path / "m.safetensors")
    )
    with TextMemory(tmp_path / "m.db", config=config) as memory:
        memory.remember("the red dog is near the house")
        assert len(memory.recall("red dog", 1, threshold=0)) == 1
    with pytest.raises(StateError, match="does not fit"):
        TurnMemory(32, preset("classic").neural, str(tmp_path / "m.safetensors"))


def test_retrieval_of_the_encoder_is_a_yardstick(vectors):
    found = measure_retrieval(TurnNetwork(32, SMALL), vectors[:10], [])
    assert found["encoder_top1"] == 1.0


def test_second_order_training_teaches_recall_in_use(vectors):
    """Measured as the memory is used: the whole turn, from the learned initial memory."""
    mixed = vectors[torch.randperm(len(vectors), generator=torch.Generator().manual_seed(1))]
    held, train = mixed[:24].split(8), mixed[24:]
    turn = TurnNetwork(32, SMALL)

    def top1() -> float:
        return sum(measure_retrieval(turn, texts, [])["read_top1"] for texts in held) / len(held)

    before = top1()
    pairs = [Pair(vector, number) for number, vector in enumerate(train)]
    config = MetaConfig(epochs=15, learning_rate=3e-3, second_order=True, full_turn=True)
    curve = train_turn(turn, train, pairs, config)
    assert curve[-1]["contrast"] < 0.5 * curve[0]["contrast"]
    assert top1() > before + 0.15


def test_texts_and_questions_are_read(tmp_path: Path):
    (tmp_path / "t").write_text('plain line\n{"text": "from json"}\n\n')
    assert load_texts(tmp_path / "t") == ["plain line", "from json"]
    (tmp_path / "q").write_text('{"question": "a", "text": "b"}\n')
    assert load_questions(tmp_path / "q") == [("a", "b")]
    with pytest.raises(DataError, match="question"):
        load_questions(tmp_path / "t")
