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
    LocomoResult,
    collect_examples,
    load_conversations,
    recall_at,
)
from titans.recall.encoder import HashingEncoder
from titans.recall.search.fusion import fit_fusion, load_fusion

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


def test_evaluation_finds_the_turns(data: Path, capsys: pytest.CaptureFixture[str]):
    result = Locomo(data, encoder="hashing:128").run()
    rows = result.rows()
    assert rows[0]["n"] == 10 and rows[0]["recall@20"] > 80
    assert (
        main(["eval", "locomo", "--data", str(data), "--encoder", "hashing:128", "--json", "-"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["rows"] == rows
    assert main(["eval", "locomo", "--data", str(data), "--encoder", "hashing:128"]) == 0
    head, everything, *categories = capsys.readouterr().out.splitlines()
    assert "recall@10 [95 %]" in head and len(categories) == 4
    low, high = rows[0]["interval@10"]
    assert f"{rows[0]['recall@10']:.1f} [{low:.1f}, {high:.1f}]" in everything


def test_keeping_half_by_surprise_keeps_the_facts(data: Path):
    half = Locomo(data, encoder="hashing:128", keep=0.5).run().rows()[0]
    random = Locomo(data, encoder="hashing:128", keep=0.5, keep_by="random").run().rows()[0]
    assert half["recall@20"] > random["recall@20"]


def test_recall_and_paired_differences_by_hand():
    assert recall_at(["a", "x", "b"], frozenset("abc")).tolist() == [2 / 3] * 3
    one = LocomoResult(np.array([[1.0, 1, 1], [0, 1, 1]]), np.array([1, 4]))
    two = LocomoResult(np.array([[0.0, 1, 1], [0, 0, 1]]), np.array([1, 4]))
    row = one.against(two)[0]
    assert (row["recall@5"], row["recall@10"], row["recall@20"]) == (50.0, 50.0, 0.0)


def test_fusion_can_be_fitted(data: Path):
    examples = collect_examples(load_conversations(data)[0], CachingEncoder(HashingEncoder(384)))
    fitted = fit_fusion([(e.features, e.answers) for e in examples])
    assert np.mean([e.recalls(fitted)[0] for e in examples]) > 0.8
    assert fit_fusion([(e.features, e.answers) for e in examples], False).weights["memory"] == 0
    assert load_fusion().weights["memory"] != 0 == load_fusion(False).weights["memory"]
