"""The forgetting curve where it is known: orthonormal keys, constant alpha, a linear memory."""

import numpy as np
import pytest
import torch

from titans.analysis import forgetting_curve, trace_memory
from titans.analysis.records import Forgetting, Trace
from titans.analysis.tracing import Limits
from titans.layers.memory import NeuralMemory
from titans.layers.memory_config import MemoryConfig

DIM = 160
BARE = MemoryConfig(
    rule="chunk",
    num_heads=1,
    depth=1,
    init="zero_last",
    gates="constant",
    momentum=False,
    forget_towards="zero",
    step_limit=None,
    conv_size=0,
    value_norm=1.0,
)
"""A linear memory without stabiliser. SiLU and the norm leave tokens of one 1 as they are."""


def orthonormal_trace(
    alpha: float, chunk_size: int = 1, step: float = 0.5, time: int = DIM
) -> Trace:
    """The memory writes `e_t -> v_t`; no key ever comes back."""
    memory = NeuralMemory(
        DIM, BARE, chunk_size=chunk_size, forget_init=alpha, step_init=step
    ).double()
    with torch.no_grad():
        memory.key_proj.weight.copy_(torch.eye(DIM))
    limits = Limits(reads=DIM + 2, probes=DIM)
    return trace_memory(memory, torch.eye(DIM, dtype=torch.float64)[:time], limits=limits)


@pytest.mark.parametrize("chunk_size", [1, 16])
def test_decay_is_a_power_of_the_age(chunk_size: int) -> None:
    curve = forgetting_curve(orthonormal_trace(0.02, chunk_size).layers[0].forgetting)
    np.testing.assert_allclose(curve.ages, np.arange(DIM), atol=1e-6)
    np.testing.assert_allclose(curve.retention, 0.98**curve.ages, rtol=1e-5)
    np.testing.assert_allclose(curve.recall, 0.98**curve.ages, rtol=1e-5)
    np.testing.assert_allclose(curve.gate_only, 0.98**curve.ages, rtol=1e-5)
    for age, left in ((10, 0.817), (50, 0.364), (100, 0.133)):
        assert curve.at(age) == pytest.approx(left, abs=5e-4)
    assert curve.half_life == pytest.approx(np.log(2) / -np.log(0.98), rel=1e-3)


def test_without_forgetting_the_curve_is_flat() -> None:
    curve = forgetting_curve(orthonormal_trace(0.0).layers[0].forgetting)
    np.testing.assert_allclose(curve.retention, 1, rtol=1e-6)
    assert curve.half_life is None
    assert curve.ages[-1] == DIM - 1


def test_a_weak_write_is_recalled_in_part_and_decays_alike() -> None:
    curve = forgetting_curve(orthonormal_trace(0.02, step=0.1).layers[0].forgetting)
    # A step of theta undoes 2 theta of the error.
    assert curve.recall[0] == pytest.approx(0.2, rel=1e-5)
    np.testing.assert_allclose(curve.retention, 0.98**curve.ages, rtol=1e-5)


def test_erasing_everything_leaves_nothing() -> None:
    curve = forgetting_curve(orthonormal_trace(1.0).layers[0].forgetting)
    assert curve.retention[0] == pytest.approx(1)
    np.testing.assert_allclose(curve.retention[1:], 0, atol=1e-12)
    assert curve.half_life == pytest.approx(0.5)


def test_old_ages_are_joined_in_bins() -> None:
    written = np.arange(0, 4_000, 100)
    read = np.arange(1, 4_001, 7)
    ages = read[None] - 1 - written[:, None]
    recall = np.where(ages >= 0, np.exp(-np.maximum(ages, 0) / 500), np.nan)[..., None]
    record = Forgetting(
        written_at=written,
        at_once=np.ones((len(written), 1), dtype=np.float32),
        read_at=read,
        recall=recall.astype(np.float32),
        gate_only=recall.astype(np.float32),
    )
    curve = forgetting_curve(record)
    assert len(curve.ages) < 64
    assert np.all(np.diff(curve.ages) > 0)
    assert curve.half_life == pytest.approx(500 * np.log(2), rel=0.03)
    assert curve.num_probes == len(written)


def test_heads_are_told_apart() -> None:
    record = Forgetting(
        written_at=np.array([0]),
        at_once=np.array([[1.0, np.nan]], dtype=np.float32),
        read_at=np.array([1, 2, 3]),
        recall=np.array([[[1, np.nan], [0.8, np.nan], [0.4, np.nan]]], dtype=np.float32),
        gate_only=np.ones((1, 3, 2), dtype=np.float32),
    )
    assert forgetting_curve(record, 0).half_life == pytest.approx(1.75)
    assert forgetting_curve(record).retention[-1] == pytest.approx(0.4)
    nothing = forgetting_curve(record, 1)
    assert len(nothing.ages) == 0 and nothing.half_life is None


@pytest.mark.parametrize("threshold", [None, 0.8])
def test_a_token_that_is_not_written_forgets_nothing(threshold: float | None) -> None:
    memory = NeuralMemory(
        8, BARE, chunk_size=1, forget_init=0.1, step_init=0.5, surprise_threshold=threshold
    ).double()
    with torch.no_grad():
        memory.key_proj.weight.copy_(torch.eye(8))
        memory.value_proj.weight.copy_(torch.eye(8))
    # The same association three times: after the first there is nothing left to learn, until
    # forgetting has taken some of it away.
    x = torch.eye(8, dtype=torch.float64)[[0, 0, 0]]
    record = trace_memory(memory, x).layers[0].forgetting
    assert record.written_at.tolist() == ([0, 2] if threshold is None else [0])
    left = 0.9**2 if threshold is None else 1.0
    assert record.gate_only[0, -1, 0] == pytest.approx(left, rel=1e-6)
    if threshold is not None:
        assert record.recall[0, -1, 0] == pytest.approx(1.0, rel=1e-6)


def half_life_of(retention: np.ndarray) -> float | None:
    """Of one association, read once at every age."""
    record = Forgetting(
        written_at=np.array([0]),
        at_once=retention[:1, None].astype(np.float32),
        read_at=np.arange(1, len(retention) + 1),
        recall=retention[None, :, None].astype(np.float32),
        gate_only=np.ones((1, len(retention), 1), dtype=np.float32),
    )
    return forgetting_curve(record).half_life


def test_half_life_counts_from_the_mean_of_what_rises_first() -> None:
    """Momentum goes on writing for a while: 1, 6, 10 and 8 count as 6.25, half of it is 3.125."""
    recall = np.array([0.1, 0.6, 1.0, 0.8, 0.4, 0.2])
    assert half_life_of(recall) == pytest.approx(4 + (4 - 3.125) / 2)


@pytest.mark.parametrize("odd", [0.1, 2.5, 6.0])
def test_one_odd_age_decides_no_half_life(odd: float) -> None:
    """A curve that stays between .85 and 1 has no half-life, whatever one age says."""
    curve = np.linspace(1, 0.85, 200)
    curve[8] = odd
    assert half_life_of(curve) is None
    falling = 0.98 ** np.arange(200)
    usual = half_life_of(falling)
    falling[8] = min(odd, 2.5) * falling[8]
    assert half_life_of(falling) == pytest.approx(usual, rel=0.35)
