"""What the memory does inside a model: modes, gated writing, reports, learning."""

import pytest
import torch
from torch import nn

from support.models import VARIANTS, tiny_model, tiny_tokens
from titans.layers.gates import MemoryGates
from titans.layers.rows import Rows
from titans.models import TitansConfig, TitansForCausalLM
from titans.models.predictor import SurprisePredictor


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
def test_frozen_memory_stays_as_it_is(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens()
    cache = model.new_cache(2)
    with torch.no_grad():
        model(ids, past_key_values=cache)
        weights = [block.memory.memory.weights for block in cache.blocks]
        model.set_memory_mode("frozen")
        out = model(ids, past_key_values=cache)
    for before, block in zip(weights, cache.blocks, strict=True):
        for one, two in zip(before, block.memory.memory.weights, strict=True):
            assert torch.equal(one, two)
    assert out.memory_stats["written_share"].tolist() == [0.0, 0.0]
    model.set_memory_mode("off")
    assert model(ids).memory_stats is None
    with pytest.raises(ValueError, match="live, frozen or off"):
        model.set_memory_mode("on")


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
def test_every_mode_is_causal_and_streams(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens()
    for mode in ("frozen", "off"):
        model.set_memory_mode(mode)
        cache = model.new_cache(2)
        with torch.no_grad():
            whole = model(ids).logits
            parts = [model(part, past_key_values=cache).logits for part in ids.split(5, dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-9, rtol=0)


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
def test_a_memory_that_is_off_is_out_of_the_computation(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens()
    model.set_memory_mode("off")
    model(ids, use_cache=False).logits.sum().backward()
    heard = [name for name, p in model.named_parameters() if p.grad is not None]
    assert heard and not [name for name in heard if ".memory." in name]


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
def test_report_is_the_mean_over_real_tokens(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens(batch=1, time=20)
    with torch.no_grad():
        alone = model(ids)
        padded = model(
            torch.cat((ids.new_zeros(1, 9), ids), 1),
            attention_mask=torch.tensor([[0] * 9 + [1] * 20]),
        )
    torch.testing.assert_close(alone.memory_loss, padded.memory_loss)
    for name, value in alone.memory_stats.items():
        assert value.shape == (2,)
        torch.testing.assert_close(padded.memory_stats[name], value)
    assert model(ids).memory_loss.requires_grad


def test_write_threshold_holds_outside_training_or_as_asked() -> None:
    model, ids = tiny_model("lmm"), tiny_tokens()
    with torch.no_grad():
        assert model(ids).memory_stats["written_share"].tolist() == [1.0, 1.0]
        model.set_write_threshold(0.9)
        assert model(ids).memory_stats["written_share"].tolist() == [0.0, 0.0]
        frozen = model(ids).logits
        model.train()
        assert model(ids).memory_stats["written_share"].tolist() == [1.0, 1.0]
        with_threshold = tiny_model(
            "lmm", memory={"write_threshold": 0.9, "train_with_threshold": True}
        ).train()
        assert with_threshold(ids).memory_stats["written_share"].tolist() == [0.0, 0.0]
        model.eval()
        model.set_memory_mode("frozen")
        torch.testing.assert_close(model(ids).logits, frozen, atol=1e-12, rtol=0)


def test_associative_gate_writes_what_surprises() -> None:
    ids = tiny_tokens()
    shares = []
    # An untrained memory answers little: its loss lies around the squared length of a value, 16.
    for threshold in (0.0, 16.0, 1e6):
        model = tiny_model("lmm-associative", memory={"surprise_threshold": threshold})
        with torch.no_grad():
            shares.append(model(ids).memory_stats["written_share"].mean().item())
    assert shares[0] == 1.0
    assert 0.0 < shares[1] < 1.0
    assert shares[2] == 0.0


def test_predictor_by_hand() -> None:
    """s_t = |f(h_{t-1}) - e_t|^2, written above tau; the first token always."""
    predictor = SurprisePredictor(2, threshold=1.0)
    with torch.no_grad():
        predictor.proj.weight.copy_(torch.eye(2))
        predictor.proj.bias.zero_()
    h = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
    embedded = torch.tensor([[[9.0, 9.0], [1.0, 0.5], [0.0, 0.0]]])
    rows = Rows(torch.zeros(1, dtype=torch.long), 3, 0)
    written, loss, last = predictor(h, torch.zeros(1, 1, 2), embedded, rows)
    # Errors: token 0 has no past; |(1,0)-(1,.5)|^2 = .25; |(0,2)-(0,0)|^2 = 4.
    assert written.tolist() == [[True, False, True]]
    assert loss.item() == pytest.approx((0.25 + 4.0) / 2)
    assert last.tolist() == [[[0.0, 0.0]]]


def test_predictor_learns_and_touches_nothing_else() -> None:
    model, ids = tiny_model("mac-predictive"), tiny_tokens()
    out = model(ids, labels=ids)
    out.predictor_loss.backward()
    touched = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert touched == {
        f"model.layers.{i}.predictor.proj.{part}" for i in (0, 1) for part in ("weight", "bias")
    }


@pytest.mark.parametrize("case", [*VARIANTS, "mag-paper"])
def test_overfits_a_small_batch(case: str) -> None:
    model = tiny_model(case, dtype=torch.float32, hidden_size=32, initializer_range=0.05).train()
    ids = tiny_tokens(batch=2, time=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(50):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert loss.item() < 0.3


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
@pytest.mark.parametrize("threshold", [None, 0.1, 0.9])
def test_reading_without_reports_gives_the_same(case: str, threshold: float | None) -> None:
    model, ids = tiny_model(case, memory={"write_threshold": threshold}), tiny_tokens()
    with torch.no_grad():
        wanted = model(ids)
        model.set_memory_report(False)
        cache = model.new_cache(2)
        parts = [model(part, past_key_values=cache) for part in ids.split(7, dim=1)]
    assert wanted.memory_stats is not None and parts[0].memory_stats is None
    got = torch.cat([part.logits for part in parts], dim=1)
    torch.testing.assert_close(got, wanted.logits, atol=1e-9, rtol=0)
    assert model.train()(ids).memory_stats is not None, "training always reports"


def test_a_deep_memory_trains_as_calmly_as_a_shallow_one() -> None:
    def gradient(**settings: object) -> float:
        torch.manual_seed(0)
        config = TitansConfig(
            variant="mac", vocab_size=64, hidden_size=128, num_hidden_layers=2,
            num_attention_heads=2, segment_len=32, memory={"rule": "chunk", **settings},
        )  # fmt: skip
        model = TitansForCausalLM(config)
        ids = torch.randint(64, (1, 256), generator=torch.Generator().manual_seed(1))
        model(ids, labels=ids).loss.backward()
        return nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()

    calm = gradient(depth=2)
    assert gradient(depth=4) < 2 * calm
    # Values as long as a shallow memory's, which are four times as long.
    assert gradient(depth=4, value_norm=16.0) > 10 * calm


def test_gates_are_computed_once_in_a_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    made = MemoryGates.forward

    def counted(self: MemoryGates, *args: object) -> object:
        calls.append(self)
        return made(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryGates, "forward", counted)
    model, ids = tiny_model("lmm").train(), tiny_tokens()
    out = model(ids, labels=ids)
    (out.loss + out.memory_loss + out.mean_step).backward()
    assert len(calls) == len(set(calls)) == 2, "one call per layer"
