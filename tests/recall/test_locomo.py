"""The evaluation on a made-up conversation in LoCoMo's format."""

import json
from pathlib import Path

import numpy as np
import pytest

from titans.cli.main import main
from titans.errors import DataError
from titans.evaluation.locomo import (
    CachingEncoder,
    Locomo,
    collect_examples,
    load_conversations,
    recall_at,
    recall_scores,
)
from titans.evaluation.record import Record
from titans.evaluation.runner import run_task
from titans.recall.encoder import HashingEncoder
from titans.recall.search.fusion import STAGES, fit_fusion

THINGS = "umbrella guitar bicycle telescope kettle violin sofa camera lantern hammock".split()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    sessions: dict[str, object] = {"speaker_a": "Ann", "speaker_b": "Bob"}
    questions = []
    for number in range(1, 4):
        sessions[f"session_{number}_date_time"] = f"1:56 pm on {number} May, 2023"
        turns = []
        for i, thing in enumerate(THINGS):
            text = f"I bought a {thing} in shop {number}."
            turns.append({"speaker": "Ann", "dia_id": f"D{number}:{2 * i + 1}", "text": text})
            turns.append({"speaker": "Bob", "dia_id": f"D{number}:{2 * i + 2}", "text": "Nice!"})
        turns[2]["blip_caption"] = "a photo of a purple elephant"
        sessions[f"session_{number}"] = turns
    for i, thing in enumerate(THINGS):
        asked = f"Where did Ann buy a {thing}?"
        questions.append(
            {
                "question": asked,
                "category": 1 + i % 4,
                "evidence": [f"D1:{2 * i + 1}; D:2:0{2 * i + 1}"],
            }
        )
    questions.append({"question": "none", "category": 3, "evidence": []})
    questions.append({"question": "lure", "category": 5, "evidence": ["D1:1"]})
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([{"sample_id": "c", "conversation": sessions, "qa": questions}]))
    return path


def test_loading_repairs_evidence_and_leaves_out_what_does_not_count(data: Path):
    (conversation,) = load_conversations(data)
    assert len(conversation.turns) == 60 and len(conversation.questions) == 10
    assert conversation.questions[0].evidence == {"D1:1", "D2:1"}
    assert "purple elephant" in conversation.turns[2].text
    assert "purple" not in load_conversations(data, captions=False)[0].turns[2].text
    with pytest.raises(DataError, match="not LoCoMo's JSON"):
        (data.parent / "bad.json").write_text("[{}]")
        load_conversations(data.parent / "bad.json")


def score(record: Record, k: int) -> float:
    found = record.find(f"recall@{k}", category="all")
    assert found is not None
    return found.value


def measure(data: Path, **options: object) -> Record:
    task = Locomo(data=data, encoder="hashing:128", **options)  # type: ignore[arg-type]
    subject = task.own_subject()
    return run_task(task, subject, subject.card())


def test_evaluation_finds_the_turns(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(data.parent)
    found = measure(data)
    assert found.scores[0].samples == 10 and score(found, 20) > 0.8
    words = ["eval", "locomo", "--data", str(data), "--encoder", "hashing:128"]
    assert main([*words, "--json", "-"]) == 0
    printed = Record.from_json(capsys.readouterr().out)
    assert printed.scores == found.scores and printed.model.settings == {"encoder": "hashing:128"}
    assert "--data locomo.json --encoder hashing:128" in printed.command
    assert main(words) == 0
    table = capsys.readouterr().out
    assert "recall@10" in table and "category=multi-hop" in table and "category=all" in table
    (kept,) = (data.parent / "runs" / "eval").glob("locomo-text-memory-*.json")
    assert Record.load(kept).scores == found.scores


def test_a_stopped_evaluation_goes_on_in_the_next_conversation(data: Path, tmp_path: Path):
    one = json.loads(data.read_text())[0]
    data.write_text(json.dumps([one, {**one, "sample_id": "d"}]))
    task = Locomo(data=data, encoder="hashing:128")
    (cell,) = task.cells()
    subject = task.own_subject()
    together = task.measure(subject, cell, 0, range(20))
    apart = [task.measure(subject, cell, 0, [n])[0] for n in (12, 3, 19)]
    assert cell.samples == 20 and apart == [together[n] for n in (12, 3, 19)]


def test_keeping_half_by_surprise_keeps_the_facts(data: Path):
    half = measure(data, keep=0.5)
    assert score(half, 20) > score(measure(data, keep=0.5, keep_by="random"), 20)
    assert 0 < score(measure(data, keep=0.5, keep_by="length"), 20) <= 1


def test_recall_and_paired_differences_by_hand():
    assert recall_at(["a", "x", "b"], frozenset("abc")).tolist() == [2 / 3] * 3
    one, two = np.array([[1.0, 1, 1], [0, 1, 1]]), np.array([[0.0, 1, 1], [0, 0, 1]])
    scores = recall_scores(one - two, np.array([1, 4]))
    assert [s.value for s in scores[:3]] == [0.5, 0.5, 0.0]
    assert [s.detail["category"] for s in scores[::3]] == ["all", "multi-hop", "single-hop"]
    assert scores[0].low == 0 and scores[0].high == 1 and scores[0].samples == 2


def test_fusion_can_be_fitted(data: Path):
    examples = collect_examples(load_conversations(data)[0], CachingEncoder(HashingEncoder(384)))
    fitted = fit_fusion([(e.features, e.answers) for e in examples])
    assert np.mean([e.recalls(fitted)[0] for e in examples]) > 0.8
    words = fit_fusion([(e.features, e.answers) for e in examples], STAGES["words"])
    assert "late" not in words.weights and words.weights["lexical"] > 0
