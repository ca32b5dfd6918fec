"""The made-up chats as a task, and the baselines beside the text memory."""

import numpy as np
import pytest

from titans.cli.main import main
from titans.evaluation.baselines import Bm25, Dense
from titans.evaluation.chats import METHODS, Chats, auc_score
from titans.evaluation.record import Record
from titans.evaluation.runner import run_task
from titans.recall.encoder import load_encoder
from titans.tasks.recall_sets import LANGUAGES


def test_bm25_by_hand():
    texts = ["a red boat", "a red red car", "the sky", ""]
    scores = Bm25(texts).scores("red car?")
    lengths = np.array([2, 3, 1, 0])  # stems that are no stop words
    norm = 1.2 * (0.25 + 0.75 * lengths / 1.5)
    red, car = np.log(1 + 2.5 / 2.5), np.log(1 + 3.5 / 1.5)
    expected = [red * 2.2 / (1 + norm[0]), red * 4.4 / (2 + norm[1]) + car * 2.2 / (1 + norm[1])]
    np.testing.assert_allclose(scores, [*expected, 0, 0], rtol=1e-6)


def test_dense_is_the_cosine():
    search = Dense(["dogs walk", "cats sleep"], load_encoder("hashing:64"))
    assert search.scores("dogs walk")[0] == pytest.approx(1, abs=1e-5)
    assert search.scores("dogs sleep").argmax() in (0, 1)


def test_the_auc_counts_pairs_and_halves_ties():
    score = auc_score(np.array([0.9, 0.5, 0.1]), np.array([0.5, 0.2]), {})
    assert score.value == pytest.approx((2 + 1.5 + 0) / 6)
    assert score.low <= score.value <= score.high and score.samples == 5


def test_the_task_measures_every_kind_with_all_methods(tmp_path):
    path = tmp_path / "chats.json"
    options = ["--kinds", "people,updates,languages", "--chats", "1", "--encoder", "hashing:64"]
    assert main(["eval", "chats", *options, "--json", str(path)]) == 0
    record = Record.load(path)
    kinds = {"people", "updates", *LANGUAGES}
    assert {s.detail["kind"] for s in record.scores} == kinds
    for kind in kinds:
        for method in METHODS:
            first = record.find("first", kind=kind, method=method)
            assert first is not None and 0 <= first.value <= 1
    find = record.find
    assert find("first as then", kind="updates", method="text memory") is not None
    assert find("AUC of what was never said", kind="people", method="bm25") is not None
    assert find("AUC of what was never said", kind="updates", method="bm25") is None
    false = [find("false links", kind=name, method="text memory") for name in LANGUAGES]
    assert all(score is not None and score.value == 0 for score in false)


def test_the_same_questions_in_every_run():
    task = Chats(kinds=("assistant",), chats=1, encoder="hashing:64")
    subject = task.own_subject()
    one, two = (run_task(task, subject, subject.card()).scores for _ in range(2))
    assert one == two and one[0].samples == 16
