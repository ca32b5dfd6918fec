"""A shipped checkpoint holds everything that belongs to it, and no path of a machine."""

from pathlib import Path

import pytest

from titans.cli.main import main
from titans.errors import DataError
from titans.evaluation import shipping
from titans.evaluation.subject import ModelSubject

BASE = """
model: {variant: lmm, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 1, chunk_size: 8}
data: {source: needle, sequence_len: 48, mixture: [{length: 48, num_needles: 2}]}
train: {steps: 2, batch_size: 2, warmup_steps: 1}
log: {every: 1, held_out_every: 0, tensorboard: false}
"""


def test_a_run_is_shipped_with_its_record_log_and_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    run, target = tmp_path / "run", tmp_path / "checkpoints" / "small"
    assert main(["train", str(tmp_path / "base.yaml"), "--set", f"out={run}"]) == 0
    record = tmp_path / "small.json"
    words = ["eval", "needle", "--model", str(run / "checkpoints" / "last"), "--lengths", "64"]
    assert main([*words, "--samples", "3", "--num-needles", "2", "--json", str(record)]) == 0
    shipping.main(
        [str(run), str(target), "--record", str(record), "--set", "write_threshold=0.05", "--words"]
    )
    subject = ModelSubject.load(target)
    assert subject.config.write_threshold == 0.05 and subject.encode("RECALL alice").tolist() == [
        2,
        3,
    ]
    card = (target / "README.md").read_text()
    for shown in ("| needle, with distractors | 64 |", "2 steps", "`write_threshold=0.05`"):
        assert shown in card
    for file in target.rglob("*"):
        if file.suffix in (".json", ".jsonl", ".yaml", ".md"):
            assert str(tmp_path) not in file.read_text(), file
    shipping.main([str(run), str(tmp_path / "two"), "--after", str(run)])
    assert "| training | 4 steps" in (tmp_path / "two" / "README.md").read_text()
    assert (tmp_path / "two" / "stage-1" / "log.jsonl").is_file()
    monkeypatch.setattr(shipping, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="more than 100"):
        shipping.ship(run, target, [record])


def test_a_stage_knows_the_tasks_and_lengths_of_its_mixture(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "data: {task: {name: qa1}, mixture: [{length: 0}, {name: qa2, length: 64}]}"
    )
    stage = shipping._read_stage(tmp_path)
    assert stage.kinds == {"qa1", "qa2"} and stage.lengths == {0, 64}
    (tmp_path / "config.yaml").write_text("data: {source: text}")
    stage = shipping._read_stage(tmp_path)
    assert stage.kinds == set() and stage.lengths == set()
