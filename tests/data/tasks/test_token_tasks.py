"""MQAR, needles and permutations against their definitions: structure, distribution, seeds."""

from itertools import permutations

import numpy as np
import pytest

from titans.tasks.mqar import (
    FORGETTING_TEST,
    SETTING_A,
    SETTING_B_TEST,
    SETTING_B_TRAIN,
    SETTING_B_TRAIN_EXAMPLES,
    MqarGenerator,
)
from titans.tasks.needle import ASK, FIRST_KEY, MARK, NeedleGenerator
from titans.tasks.permutations import PermutationGenerator, composition_table, elements
from titans.tasks.tokens import IGNORED, TokenBatch, TokenGenerator, draw_distinct

TASKS: list[TokenGenerator] = [
    MqarGenerator(),
    MqarGenerator(length=64, num_pairs=8, num_updates=4, random_filler=False),
    NeedleGenerator(),
    NeedleGenerator(length=60, num_needles=10, num_noise=0),
    PermutationGenerator(degree=5),
]


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_a_seed_fixes_the_batch_and_tokens_stay_in_the_vocabulary(task: TokenGenerator) -> None:
    first = task.batch(np.random.default_rng(3), 16)
    again = task.batch(np.random.default_rng(3), 16)
    other = task.batch(np.random.default_rng(4), 16)
    assert (first.tokens == again.tokens).all() and (first.labels == again.labels).all()
    assert (first.tokens != other.tokens).any()
    assert first.tokens.min() >= 0 and first.tokens.max() < task.vocab_size
    scored = first.labels[first.labels != IGNORED]
    assert len(scored) > 0 and scored.min() >= 0 and scored.max() < task.vocab_size


def test_drawing_distinct_is_uniform_in_every_place() -> None:
    drawn = draw_distinct(np.random.default_rng(0), 30_000, 5, 11, 3)
    assert all(len(set(row)) == 3 for row in drawn[:200])
    for column in range(3):
        counts = np.bincount(drawn[:, column], minlength=11)[5:]
        # Six equally likely outcomes: 5,000 each, standard deviation 65.
        assert (abs(counts - 5_000) < 5 * 65).all()
    with pytest.raises(ValueError, match="cannot draw 7 distinct tokens from 6"):
        draw_distinct(np.random.default_rng(0), 1, 5, 11, 7)


def test_mqar_layout_follows_the_definition() -> None:
    task = MqarGenerator(length=128, num_pairs=8, random_filler=False)
    batch = task.batch(np.random.default_rng(0), 200)
    keys, values = batch.tokens[:, 0:16:2], batch.tokens[:, 1:16:2]
    assert keys.min() >= 1 and keys.max() < 4_096 <= values.min() and values.max() < 8_192
    for row in range(200):
        known = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))
        assert len(known) == 8 and len(set(known.values())) == 8
        asked = np.flatnonzero(batch.labels[row] != IGNORED)
        assert len(asked) == 8 and (asked >= 16).all() and (asked % 2 == 0).all()
        assert sorted(batch.tokens[row, asked]) == sorted(known)
        assert [known[k] for k in batch.tokens[row, asked].tolist()] == batch.labels[
            row, asked
        ].tolist()
        rest = np.setdiff1d(np.arange(16, 128), asked)
        assert (batch.tokens[row, rest] == 0).all()


def test_mqar_query_positions_follow_the_power_law() -> None:
    task = MqarGenerator(length=64, num_pairs=1, vocab_size=66, random_filler=False)
    batch = task.batch(np.random.default_rng(1), 40_000)
    slots = (np.argmax(batch.labels != IGNORED, axis=1) - 2) // 2
    expected = np.arange(1, 32, dtype=float) ** -0.99
    expected /= expected.sum()
    np.testing.assert_allclose(task.slot_probabilities(), expected)
    shares = np.bincount(slots, minlength=31) / 40_000
    spread = np.sqrt(expected * (1 - expected) / 40_000)
    assert (abs(shares - expected) < 5 * spread).all()


def test_mqar_draws_slots_without_replacement_like_numpy_does() -> None:
    """The race of exponential clocks equals drawing one by one: compare inclusion frequencies."""
    task = MqarGenerator(length=24, num_pairs=3, vocab_size=26, random_filler=False)
    batch = task.batch(np.random.default_rng(2), 20_000)
    ours = (batch.labels[:, 6::2] != IGNORED).mean(axis=0)
    rng = np.random.default_rng(5)
    counts = np.zeros(9)
    for _ in range(20_000):
        counts[rng.choice(9, 3, replace=False, p=task.slot_probabilities())] += 1
    np.testing.assert_allclose(ours, counts / 20_000, atol=0.02)


def test_mqar_random_filler_replaces_every_zero_uniformly() -> None:
    task = MqarGenerator(length=256, num_pairs=4, vocab_size=300)
    batch = task.batch(np.random.default_rng(0), 1_000)
    filler = batch.tokens[:, 8:][batch.labels[:, 8:] == IGNORED]
    counts = np.bincount(filler, minlength=300)
    mean = len(filler) / 300
    assert (abs(counts - mean) < 5 * np.sqrt(mean)).all()


def test_forgetting_mqar_asks_for_the_last_value() -> None:
    task = MqarGenerator(length=128, num_pairs=8, num_updates=4, random_filler=False)
    batch = task.batch(np.random.default_rng(0), 100)
    changed = 0
    for tokens, labels in zip(batch.tokens, batch.labels, strict=True):
        pairs = tokens[:24].reshape(12, 2).tolist()
        first, last = dict(map(tuple, pairs[:8])), dict(map(tuple, pairs))
        assert len(first) == len(last) == 8
        assert all(last[key] != first[key] for key, _ in pairs[8:])
        asked = np.flatnonzero(labels != IGNORED)
        assert {int(tokens[t]): int(labels[t]) for t in asked} == last
        changed += sum(first[key] != last[key] for key in first)
    assert changed == 400


def test_published_settings() -> None:
    assert [(t.length, t.num_pairs) for t in SETTING_A] == [(64, 4), (128, 8), (256, 16), (512, 64)]
    assert not any(task.random_filler for task in SETTING_A)
    assert len(SETTING_B_TRAIN) == len(SETTING_B_TRAIN_EXAMPLES) == 5
    assert SETTING_B_TEST[-1] == MqarGenerator(length=1_024, num_pairs=256)
    assert len(SETTING_B_TEST) == 7 and all(task.num_updates for task in FORGETTING_TEST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 63}, "even"),
        ({"length": 64, "vocab_size": 64}, "must be above the length"),
        ({"length": 64, "num_pairs": 17}, "at least 68"),
        ({"num_pairs": 4, "num_updates": 5}, "num_updates"),
        ({"num_pairs": 0}, "at least"),
    ],
)
def test_impossible_mqar_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MqarGenerator(**options)


@pytest.mark.parametrize("num_needles", [1, 5])
def test_needles_are_where_the_marks_are_and_every_one_is_asked(num_needles: int) -> None:
    task = NeedleGenerator(length=96, num_needles=num_needles)
    batch = task.batch(np.random.default_rng(0), 100)
    assert batch.tokens.shape == (100, 96)
    for tokens, labels in zip(batch.tokens, batch.labels, strict=True):
        marks = np.flatnonzero(tokens == MARK)
        assert len(marks) == num_needles and (marks + 2 < task.context_length).all()
        known = {int(tokens[m + 1]): int(tokens[m + 2]) for m in marks}
        asks = np.flatnonzero(tokens == ASK)
        assert (asks == task.context_length + 3 * np.arange(num_needles)).all()
        assert {int(tokens[a + 1]): int(labels[a + 1]) for a in asks} == known
        assert (tokens[asks + 2] == labels[asks + 1]).all()
        assert (labels != IGNORED).sum() == num_needles


def test_needle_depth_is_uniform_and_can_be_chosen() -> None:
    task = NeedleGenerator(length=56, num_needles=1)
    marks = np.argmax(task.batch(np.random.default_rng(0), 51_000).tokens == MARK, axis=1)
    counts = np.bincount(marks, minlength=51)
    assert len(counts) == 51 and (abs(counts - 1_000) < 5 * 32).all()
    for depth, place in ((0.0, 0), (0.5, 25), (1.0, 50)):
        chosen = task.at_depth(np.random.default_rng(0), 4, depth)
        assert (np.argmax(chosen.tokens == MARK, axis=1) == place).all()
    with pytest.raises(ValueError, match="depth"):
        task.at_depth(np.random.default_rng(0), 1, 1.5)


def test_noise_holds_keys_only_as_distractors() -> None:
    for distractors in (True, False):
        task = NeedleGenerator(length=400, num_needles=1, distractors=distractors)
        batch = task.batch(np.random.default_rng(0), 50)
        keys = (batch.tokens >= FIRST_KEY) & (batch.tokens < task.first_value)
        assert (keys.sum() > 100) == distractors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 20, "num_needles": 4}, "at least 24"),
        ({"num_needles": 40}, "num_keys"),
        ({"num_noise": 0, "distractors": False}, "distractors"),
        ({"num_values": 0}, "num_values"),
    ],
)
def test_impossible_needles_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeedleGenerator(**options)


@pytest.mark.parametrize("degree", [3, 5])
def test_permutation_labels_are_the_running_product(degree: int) -> None:
    task = PermutationGenerator(length=20, degree=degree)
    batch = task.batch(np.random.default_rng(0), 8)
    group = list(permutations(range(degree)))
    assert task.vocab_size == len(group) + 1
    for tokens, labels in zip(batch.tokens, batch.labels, strict=True):
        points = list(range(degree))
        for token, label in zip(tokens, labels, strict=True):
            points = [group[token - 1][point] for point in points]
            assert tuple(points) == group[label - 1]


def test_the_composition_table_is_a_group_that_does_not_commute() -> None:
    table = composition_table(3)
    assert elements(3)[0] == (0, 1, 2)
    assert (table[0] == np.arange(6)).all() and (table[:, 0] == np.arange(6)).all()
    assert all(sorted(row) == list(range(6)) for row in table.tolist())
    assert (table != table.T).any()


def test_a_batch_of_two_shapes_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        TokenBatch(np.zeros((2, 3), dtype=np.int64), np.zeros((2, 4), dtype=np.int64))
