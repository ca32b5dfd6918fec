"""`trace`: every variant, any split, constant size, nothing left behind in the model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from support.models import tiny_model, tiny_tokens
from titans.analysis import Passage, Trace, trace
from titans.analysis.curves import CurveBuilder, Thinned
from titans.analysis.export import to_plain
from titans.analysis.plots import save_figures
from titans.analysis.records import MEMORY_QUANTITIES
from titans.analysis.report import build_page
from titans.analysis.tracing import Limits
from titans.errors import CheckpointError, DataError

WITH_MEMORY = (
    "lmm",
    "mac",
    "mac-product",
    "mac-normalised",
    "mac-one-layer",
    "mac-uneven",
    "mag",
    "mag-paper",
    "mag-chunk-gates",
    "mal",
    "mal-bare",
    "lmm-associative",
    "mac-predictive",
    "mag-predictive",
    "lmm-threshold",
)
TIME = 43


def ids(time: int = TIME) -> torch.Tensor:
    return tiny_tokens(batch=1, time=time)[0]


@pytest.mark.parametrize("rule", ["ttt", "delta", "gated_delta", "kda"])
def test_the_published_rules_are_traced_too(rule: str) -> None:
    found = trace(tiny_model("lmm", memory={"rule": rule}), ids(), limits=Limits(reads=7))
    for layer in found.layers:
        forgets = layer.tokens.forget_gate.max() > 0
        assert forgets == (rule in ("gated_delta", "kda"))
        left = layer.forgetting.gate_only[np.isfinite(layer.forgetting.gate_only)]
        assert (left.min(initial=1) < 1) == forgets


@pytest.mark.parametrize("case", WITH_MEMORY)
def test_means_are_those_that_the_model_reports(case: str) -> None:
    model = tiny_model(case)
    with torch.no_grad():
        stats = model(ids()[None]).memory_stats
    found = trace(model, ids(), limits=Limits(reads=7))
    names = {"surprise": "loss", "written_share": "written"}
    for name, values in stats.items():
        traced = [getattr(layer.tokens, names.get(name, name)).mean() for layer in found.layers]
        np.testing.assert_allclose(traced, values.numpy(), rtol=1e-5, atol=1e-7, err_msg=name)
    for layer in found.layers:
        for name in MEMORY_QUANTITIES:
            values = getattr(layer.tokens, name)
            assert values.shape == (TIME, layer.num_heads)
            np.testing.assert_allclose(layer.curves[name].mean, values, rtol=1e-6)
        assert layer.life.positions[0] == 0 and layer.life.positions[-1] == TIME
        assert layer.forgetting.read_at[-1] == TIME
        assert (layer.memory_share is not None) == (case.startswith("mag") or case in GATED_MAC)
    assert found.state_bytes == model.new_cache(1).num_bytes
    json.dumps(to_plain(found), allow_nan=False)


GATED_MAC = ("mac", "mac-normalised", "mac-one-layer", "mac-uneven", "mac-predictive")


def same_tokens(one: Trace, other: Trace) -> None:
    assert one.num_tokens == other.num_tokens
    np.testing.assert_array_equal(one.ids, other.ids)
    for ours, theirs in zip(one.layers, other.layers, strict=True):
        for name in MEMORY_QUANTITIES:
            ours_, theirs_ = getattr(ours.tokens, name), getattr(theirs.tokens, name)
            np.testing.assert_allclose(ours_, theirs_, rtol=1e-6, atol=1e-9)
        if ours.memory_share is not None:
            np.testing.assert_allclose(ours.memory_share, theirs.memory_share, rtol=1e-6)
    np.testing.assert_allclose(one.worth.tokens, other.worth.tokens, rtol=1e-6)


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
def test_any_split_gives_the_same_numbers(case: str) -> None:
    model, whole = tiny_model(case), ids()
    once = trace(model, whole, limits=Limits(reads=2))
    stream = (Passage(part, []) for part in whole.split(5))
    same_tokens(once, trace(model, stream))
    same_tokens(once, trace(model, [whole[:1], whole[1:9], whole[9:]], limits=Limits(reads=9)))


def test_the_model_is_left_as_it_was() -> None:
    model = tiny_model("mag").train()
    model.set_memory_mode("frozen")
    trace(model, ids(9))
    assert model.training
    for block in model.model.layers:
        assert block.mixer.memory_mode == "frozen"
        for part in block.modules():
            assert not part._forward_hooks


def test_a_trace_is_the_same_whatever_the_mode_was() -> None:
    model = tiny_model("lmm")
    live = trace(model, ids(20))
    model.set_memory_mode("off")
    same_tokens(live, trace(model, ids(20)))


def test_share_of_the_memory_adds_up() -> None:
    """Output = attention's part + memory's part, for the paper's gate and the convex one."""
    for case in ("mag", "mag-paper"):
        model = tiny_model(case)
        mixer = model.model.layers[0].mixer
        seen: dict[str, torch.Tensor] = {}
        mixer.register_forward_hook(lambda m, a, out, s=seen: s.update(x=a[0], o=out.out))
        mixer.memory.register_forward_hook(lambda m, a, out, s=seen: s.update(m=out[0]))
        with torch.no_grad():
            model(ids()[None])
            model.set_memory_mode("off")
            m = seen["m"]
            live = seen["o"]
            if case == "mag-paper":
                model(ids()[None])
                attention = seen["o"]
            else:
                gate = torch.sigmoid(mixer.gate_proj(torch.cat((seen["x"], m), dim=-1)))
                attention = live - (1 - gate) * m
        ours = (live - attention).norm(dim=-1)
        share = (ours / (ours + attention.norm(dim=-1)))[0]
        mixer._forward_hooks.clear()
        mixer.memory._forward_hooks.clear()
        found = trace(model, ids())
        np.testing.assert_allclose(found.layers[0].memory_share, share.numpy(), rtol=1e-5)
        assert 0.01 < share.mean() < 0.99


@pytest.mark.slow
def test_size_does_not_grow_with_the_text() -> None:
    model = tiny_model("mag", dtype=torch.float32)
    limits = Limits(tokens=100, bins=32, reads=8, probes=6)

    def stream(pieces: int):
        for _ in range(pieces):
            yield ids(64)

    sizes = []
    for pieces in (10, 40):
        found = trace(model, stream(pieces), limits=limits)
        assert found.num_tokens == 64 * pieces
        assert len(found.ids) == len(found.layers[0].tokens.loss) == len(found.worth.tokens) == 100
        for layer in found.layers:
            assert len(layer.forgetting.written_at) <= 6
            assert len(layer.life.positions) <= 9 and layer.life.positions[-1] == 64 * pieces
            steps = np.diff(layer.life.positions[:-1])
            assert steps.min() == steps.max(), "looks are evenly spread"
        sizes.append(len(json.dumps(to_plain(found))))
        assert f"first {100} are shown" in found.notes[0]
    assert sizes[1] < 1.3 * sizes[0]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 31, 100])
def test_curves_keep_means_and_extremes(length: int) -> None:
    values = np.random.default_rng(0).normal(size=(length, 2))
    values[0, 0] = np.nan
    builder = CurveBuilder(2, max_bins=8)
    for part in np.array_split(values, 3):
        builder.add(part)
    curve = builder.curve()
    assert len(curve.mean) <= 8
    for number, start in enumerate(curve.positions):
        part = values[start : start + curve.width]
        if np.isnan(part[:, 0]).all():
            assert np.isnan(curve.mean[number, 0])
            part = part[:, 1:]
            np.testing.assert_allclose(curve.mean[number, 1:], part.mean(0), rtol=1e-6)
            continue
        np.testing.assert_allclose(curve.mean[number], np.nanmean(part, axis=0), rtol=1e-6)
        np.testing.assert_allclose(curve.low[number], np.nanmin(part, axis=0), rtol=1e-6)
        np.testing.assert_allclose(curve.high[number], np.nanmax(part, axis=0), rtol=1e-6)
    if length > 1:
        np.testing.assert_allclose(builder.totals(), np.nanmean(values, axis=0))


def test_thinning_keeps_an_even_spread() -> None:
    kept: Thinned[int] = Thinned(5)
    for number in range(1_000):
        kept.offer(number, number)
    numbers = [number for number, _ in kept]
    assert 2 < len(numbers) <= 5
    assert len(set(np.diff(numbers))) == 1


def test_what_cannot_be_traced_is_said() -> None:
    model = tiny_model("lmm")
    with pytest.raises(CheckpointError, match="'swa' model has no neural memory"):
        trace(tiny_model("swa"), ids())
    with pytest.raises(DataError, match="the text has 0 tokens"):
        trace(model, [])
    with pytest.raises(DataError, match="the text has 1 token, and at least 2"):
        trace(model, ids(1))
    with pytest.raises(DataError, match="token 50 is outside the model's vocabulary of 50"):
        trace(model, torch.tensor([3, 50]))
    with pytest.raises(ValueError, match="one text at a time"):
        trace(model, tiny_tokens(batch=2))
    with pytest.raises(ValueError, match="reads must be at least 2"):
        Limits(reads=1)
    short = trace(model, ids(3))
    assert "fewer than one chunk of 4" in short.notes[0]
    assert np.isnan(short.worth.tokens[0]).all()
    with pytest.raises(ValueError, match="layer 7 has no memory; there are 0, 1"):
        short.layer(7)
    with pytest.raises(ValueError, match="got 'joy'"):
        short.surprise("joy")


def test_a_memory_that_diverged_is_shown_and_said(tmp_path: Path) -> None:
    model = tiny_model("lmm", dtype=torch.float32)
    memory = model.model.layers[1].mixer.memory
    with torch.no_grad():
        memory.memory_0.fill_(float("inf"))
    words = [f" w{n}" for n in range(TIME)]
    found = trace(model, [Passage(ids(), words)], limits=Limits(reads=5))
    assert "memory of layer 1 is not finite" in found.notes[0]
    assert np.isfinite(found.layers[0].life.effective_rank).all()
    assert np.isnan(found.layers[1].life.effective_rank[-1]).any()
    json.dumps(to_plain(found), allow_nan=False)
    assert "is not finite" in build_page([found])
    assert len(save_figures([found], tmp_path)) == 6


@pytest.mark.slow
def test_a_million_tokens_in_constant_memory() -> None:
    """Resident memory at the end is that after the first tenth."""
    import psutil

    model = tiny_model("lmm", dtype=torch.float32, num_hidden_layers=1, memory={"chunk_size": 256})
    process, sizes, total = psutil.Process(), {}, 0

    def read(count: int) -> None:
        nonlocal total
        total += count
        sizes[total] = process.memory_info().rss

    generator = torch.Generator().manual_seed(0)
    stream = (torch.randint(1, 50, (4_000,), generator=generator) for _ in range(250))
    found = trace(model, stream, limits=Limits(tokens=10_000), on_read=read)
    assert found.num_tokens == 1_000_000
    assert sizes[1_000_000] - sizes[100_000] < 30_000_000
    assert len(found.layers[0].tokens.loss) == 10_000
    assert len(found.layers[0].curves["loss"].mean) <= 512
