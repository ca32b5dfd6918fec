"""The confidence of a recall: whether the question is answered at all."""

import math
from pathlib import Path

import numpy as np
import pytest

from titans.errors import ConfigError
from titans.recall import RecallConfig, TextMemory
from titans.recall.search.confidence import (
    SIGNALS,
    Confidence,
    Words,
    confidence_json,
    fit_confidence,
    load_confidence,
    signals,
)
from titans.recall.search.features import FEATURES

SAID = (
    ("Ann", "I adopted a small brown dog. His name is Rex."),
    ("Ben", "We meet on Friday at the library at four."),
    ("Ann", "My sister lives in Lisbon."),
    ("Ben", "I am allergic to peanuts."),
    ("Ann", "My favourite dish is mushroom risotto."),
    ("Ben", "It rained all day, so I read a novel."),
    ("Ann", "The garden needs some work before the summer."),
    ("Ben", "I bought a blue bicycle for 300 euros."),
)
ANSWERED = (
    "What is the name of Ann's dog?",
    "Where does Ann's sister live?",
    "What is Ben allergic to?",
    "What colour is Ben's bicycle?",
)
NEVER_SAID = (
    "Which university did Ben attend?",
    "When is Ann's wedding?",
    "How much is Ben's rent?",
    "What instrument does Ann play?",
)


def test_what_was_said_has_a_higher_confidence_than_what_never_was(real_memory: TextMemory):
    for day, (speaker, text) in enumerate(SAID, 1):
        real_memory.remember(text, speaker=speaker, time=f"2024-05-{day:02}")
    said, never = (
        [real_memory.recall(question)[0].confidence or 0.0 for question in questions]
        for questions in (ANSWERED, NEVER_SAID)
    )
    assert all(0 < confidence < 1 for confidence in (*said, *never))
    assert min(said) > max(never)


def test_it_is_of_the_first_record_and_not_told_where_it_is_not_known(
    real_memory: TextMemory, tmp_path: Path
):
    for speaker, text in SAID:
        real_memory.remember(text, speaker=speaker)
    first, *others = real_memory.recall("Where does Ann's sister live?", 4)
    assert first.as_dict()["confidence"] == first.confidence
    assert [r.confidence for r in others] == [None] * 3
    assert "confidence" not in others[0].as_dict()
    # In a language that the encoder does not know, and beside the text that asks.
    assert real_memory.recall("Где живёт сестра Анны?")[0].confidence is None
    memories = real_memory.attend("Where does my sister live?", speaker="Ann")[1]
    assert memories
    assert memories[0].confidence is None
    config = RecallConfig(encoder="hashing:64", retrieval="memory")
    with TextMemory(tmp_path / "classic.db", config=config) as memory:
        memory.remember("My sister lives in Lisbon.")
        assert memory.recall("Where does my sister live?")[0].confidence is None


def test_what_says_the_same_is_no_other_answer(memory: TextMemory):
    memory.remember("The meeting is in the library.", id="1")
    memory.remember("It rained all day long.", id="2")
    before = memory.search("Where is the meeting?").signals
    memory.remember("The meeting is in the library!", id="3")
    assert memory.recall("Where is the meeting?")[0].duplicates
    after = memory.search("Where is the meeting?").signals
    assert before is not None
    assert after is not None
    # Beside its repetition the first record is still ahead of what does not answer.
    assert after[0] > 0.5 * before[0] > 0.5


def test_signals_by_hand():
    rows = {"dog": np.array([4, 7]), "name": np.array([7, 7, 9]), "zebra": np.array([], np.int64)}
    words = Words(rows, {"dog": 1.0, "name": 2.0, "zebra": 5.0})
    features = np.arange(len(FEATURES), dtype=np.float32)
    found = signals(np.array([3.0, 1.0, 0.5], np.float32), features, words, np.array([4, 9, 2]))
    value = dict(zip(SIGNALS, found.tolist(), strict=True))
    assert value["ahead_of_second"] == 2
    assert value["ahead_of_others"] == 3 - (1 + 3 * 0.5) / 4
    holds = [value[n] for n in ("first_holds", "best_holds", "all_hold", "nothing_holds")]
    assert holds == [1 / 8, 2 / 8, 3 / 8, 5 / 8]
    assert [value[n] for n in ("late", "exact", "words")] == [
        *(FEATURES.index("late"), FEATURES.index("exact"), 3)
    ]
    alone = signals(np.array([3.0], np.float32), features, Words({}, {}), np.array([4]))
    assert alone[:6].tolist() == [0] * 6


def test_the_fit_finds_the_line_that_the_answers_were_drawn_from():
    rng = np.random.default_rng(0)
    known = rng.standard_normal((4000, len(SIGNALS))) * 3
    odds = 0.5 * known[:, 0] - 0.25 * known[:, 6] + 0.4
    fitted = fit_confidence(known, rng.random(4000) < 1 / (1 + np.exp(-odds)), penalty=1e-5)
    wanted = {"ahead_of_second": 0.5, "late": -0.25}
    for name, weight in fitted.weights.items():
        assert abs(weight - wanted.get(name, 0)) < 0.06
    assert abs(fitted.bias - 0.4) < 0.15


def test_weights_are_one_for_each_signal():
    shipped = load_confidence()
    assert '"ahead_of_second"' in confidence_json(shipped, "a note")
    with pytest.raises(ConfigError, match="late"):
        Confidence({n: w for n, w in shipped.weights.items() if n != "late"}, 0.0)
    line = Confidence({name: 0.0 for name in SIGNALS} | {"late": 2.0}, -1.0)
    for late in (-1e6, -0.3, 0.4, 1e6):
        known = np.array([late if name == "late" else 7.0 for name in SIGNALS])
        odds = min(max(2 * late - 1, -50), 50)
        assert math.isclose(line.of(known), 1 / (1 + math.exp(-odds)), abs_tol=1e-12)
