"""Figures: what is drawn is what was traced."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from support.models import tiny_model, tiny_tokens
from titans.analysis import Passage, Trace, forgetting_curve, trace, trace_memory
from titans.analysis.plot_text import SHADES
from titans.analysis.plots import (
    plot_forgetting,
    plot_gates,
    plot_life,
    plot_surprise,
    plot_text,
    plot_worth,
    save_figures,
)
from titans.analysis.tracing import Limits
from titans.layers.memory import NeuralMemory
from titans.layers.memory_config import NetworkKind

WORDS = ("cost", " $5", "\nand", " naïve", " 日本", " ", "", "-one", "\n")


def make(case: str, time: int = 120) -> Trace:
    ids = tiny_tokens(batch=1, time=time)[0]
    passage = Passage(ids, [WORDS[n % len(WORDS)] for n in range(time)])
    model = tiny_model(case, dtype=torch.float32)
    return trace(model, [passage], name=f"{case} reads", limits=Limits(reads=12))


@pytest.fixture(scope="module")
def mag() -> Trace:
    return make("mag")


@pytest.fixture(scope="module")
def lmm() -> Trace:
    return make("lmm", 50)


def lines(figure: Figure) -> dict[str, list[np.ndarray]]:
    """Label of the vertical axis -> the lines drawn over it."""
    return {
        axes.get_ylabel(): [np.asarray(line.get_ydata()) for line in axes.lines]
        for axes in figure.axes
    }


def test_gates_draw_means_of_heads_or_heads(mag: Trace) -> None:
    drawn = lines(plot_gates(mag))
    assert list(drawn) == [
        "forgetting (alpha)",
        "momentum (eta)",
        "step size (theta)",
        "memory's share",
    ]
    for layer, line in zip(mag.layers, drawn["step size (theta)"], strict=True):
        np.testing.assert_allclose(line, layer.curves["step_size"].mean.mean(1))
    heads = lines(plot_gates(mag, layer=1))["forgetting (alpha)"]
    np.testing.assert_allclose(heads, mag.layer(1).curves["forget_gate"].mean.T)
    with pytest.raises(ValueError, match="layer 5 has no memory"):
        plot_gates(mag, layer=5)


def test_life_and_surprise(mag: Trace) -> None:
    drawn = lines(plot_life(mag))
    np.testing.assert_allclose(drawn["drift from the start"][0], mag.layers[0].life.drift.mean(1))
    rank = mag.layers[1].life.effective_rank.mean((1, 2))
    np.testing.assert_allclose(drawn["effective rank"][1], rank, rtol=1e-6)
    (surprise,) = lines(plot_surprise(mag, measure="grad_norm")).values()
    np.testing.assert_allclose(surprise[0], mag.layers[0].curves["grad_norm"].mean.mean(1))
    with pytest.raises(ValueError, match="got 'joy'"):
        plot_surprise(mag, measure="joy")


def test_forgetting_draws_the_curve(mag: Trace) -> None:
    curve = forgetting_curve(mag.layer(0).forgetting, head=1)
    drawn = lines(plot_forgetting(mag, layer=0, head=1))["retention"]
    assert any(len(y) == len(curve.ages) and np.allclose(y, curve.retention) for y in drawn)
    assert any(len(y) == len(curve.ages) and np.allclose(y, curve.gate_only) for y in drawn)


def test_worth_has_three_lines(mag: Trace) -> None:
    (drawn,) = lines(plot_worth(mag)).values()
    assert len(drawn) == 3
    assert np.nanmean(drawn[0]) == pytest.approx(mag.worth.mean_loss[0], rel=0.02)


def test_several_traces_share_their_scales(mag: Trace, lmm: Trace) -> None:
    figure = plot_life(mag, lmm)
    left, right = figure.axes[0], figure.axes[1]
    assert left.get_ylim() == right.get_ylim()
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == (mag.name, lmm.name)


def test_text_is_shaded_by_surprise(mag: Trace) -> None:
    loss = mag.surprise("loss")
    low, high = np.quantile(loss, [0.25, 0.998])
    boxes = {
        (round(box.get_x() + 0.1), round(box.get_y() - 0.06)): box.get_facecolor()
        for box in plot_text(mag, start=0).axes[0].patches
    }
    # The words of the first two lines, by column and line.
    places = {0: (0, 0), 1: (5, 0), 2: (0, 1), 3: (4, 1), 4: (10, 1)}
    for token, place in places.items():
        shade = np.clip((loss[token] - low) / (high - low), 0, 1)
        if shade > 0.01:
            np.testing.assert_allclose(boxes[place], SHADES(float(shade)), atol=1e-6)
        else:
            assert place not in boxes
    assert len(boxes) > 30
    with pytest.raises(ValueError, match="has no text"):
        plot_text(trace(tiny_model("lmm"), tiny_tokens(batch=1)[0]))


@pytest.mark.slow
def test_figures_are_saved_and_repeatable(mag: Trace, lmm: Trace, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        written = save_figures([mag, lmm], tmp_path / folder)
    names = {"surprise", "gates", "life", "forgetting", "worth", "text-a", "text-b"}
    assert {path.stem for path in written} == names
    for path in written:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()


@pytest.mark.parametrize("network", ["mlp", "gated"])
def test_a_memory_alone_has_figures_but_no_worth(network: NetworkKind, tmp_path: Path) -> None:
    memory = NeuralMemory(dim=16, num_heads=2, chunk_size=4, network=network)
    found = trace_memory(memory, torch.randn(40, 16), name="a memory on its own")
    written = save_figures([found], tmp_path)
    assert {path.stem for path in written} == {"surprise", "gates", "life", "forgetting"}
    with pytest.raises(ValueError, match="holds a memory without a model"):
        plot_worth(found)
    with pytest.raises(ValueError, match="at least one trace"):
        plot_gates()
    with pytest.raises(ValueError, match=r"x must be \[time, dim\]"):
        trace_memory(memory, torch.randn(2, 4, 16))
