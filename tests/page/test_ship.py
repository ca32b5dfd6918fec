"""A shipped checkpoint holds everything that belongs to it, and no path of a machine."""

import json
from pathlib import Path

import pytest

from titans.cli.main import main
from titans.errors import DataError
from titans.evaluation.model import ModelSubject, weights_digest
from titans.evaluation.record import Record
from titans.files import package_version
from tools import ship
from tools.stages import read_stage, read_stages

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(folder.name for folder in (ROOT / "checkpoints").iterdir())
BASE = """
model:
  {variant: lmm, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 1,
   memory: {chunk_size: 8}}
data: {source: needle, sequence_len: 48, mixture: [{length: 48, num_needles: 2}]}
train: {steps: 2, batch_size: 2, warmup_steps: 1}
log: {every: 1, held_out_every: 0, tensorboard: false}
"""
STAGES = "stages: [{}, {seed: 0}]"
"""Two runs, the second from the weights of the first."""


def test_a_run_is_shipped_with_its_log_and_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base.yaml").write_text(BASE + STAGES)
    run, target = tmp_path / "run", tmp_path / "checkpoints" / "small"
    results = tmp_path / "results"
    assert main(["train", str(tmp_path / "base.yaml"), "--set", f"out={run}"]) == 0
    words = ["eval", "needle", "--model", str(run), "--lengths", "64"]
    record = str(results / "needle" / "small.json")
    assert main([*words, "--samples", "3", "--num-needles", "2", "--json", record]) == 0
    settings: dict[str, object] = {"memory": {"write_threshold": 0.05}}
    ship.ship(run, target, settings=settings, with_words=True, results=results)
    subject = ModelSubject.load(target)
    assert subject.config.memory.write_threshold == 0.05
    assert subject.encode("RECALL alice").tolist() == [2, 3]
    card = (target / "README.md").read_text()
    for shown in (
        "| needle, with distractors | 64 |",
        "4 steps",
        "2 runs",
        "`memory.write_threshold=0.05`",
        "| training text | none: made of tokens |",
        "| tokenizer | the task's own words (131 entries); trained on tokens |",
        "bytes at every length",
        f"| trained with | titans-neural-memory {package_version()}",
        "Records: `results/needle/small.json`.",
    ):
        assert shown in card
    assert (target / "stage-1" / "log.jsonl").is_file()
    for file in target.rglob("*"):
        if file.suffix in (".json", ".jsonl", ".yaml", ".md"):
            assert str(tmp_path) not in file.read_text(), file
    (target / "texts.md").write_text("Twelve novels.\n")
    assert "\n\n## Training texts\n\nTwelve novels.\n\n## Eval" in ship.write_card(target, results)
    monkeypatch.setattr(ship, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="more than 100"):
        ship.ship(run, target, results=results)


@pytest.mark.parametrize("name", SHIPPED)
def test_cards_are_what_the_records_give(name: str) -> None:
    folder = ROOT / "checkpoints" / name
    assert ship.write_card(folder) == (folder / "README.md").read_text(), (
        f"run `python -m tools.ship --card checkpoints/{name}`"
    )


def test_records_of_shipped_models_were_measured_on_their_weights() -> None:
    digests = {
        name: weights_digest(ModelSubject.load(ROOT / "checkpoints" / name).model)
        for name in SHIPPED
    }
    asked = [Record.load(file) for file in sorted((ROOT / "results").rglob("*.json"))]
    found = {r.model.name: r.model.digest for r in asked if r.model.name in digests}
    assert found == digests


def test_shipped_checkpoints_keep_no_copy_of_records_and_stay_small() -> None:
    for file in (ROOT / "checkpoints").rglob("*"):
        assert file.name != "records" and (file.is_dir() or file.stat().st_size < ship.MAX_BYTES)


def test_stages_add_up_to_what_the_documents_say() -> None:
    stages = {name: read_stages(ROOT / "checkpoints" / name) for name in SHIPPED}
    minutes = sum(stage.trained.seconds for runs in stages.values() for stage in runs) / 60
    page = " ".join((ROOT / "docs" / "evaluation.md").read_text().split())
    assert f"took {minutes:.0f} minutes on one CPU thread" in page
    shared = stages["babilong-mac"][0].trained
    assert shared == stages["babilong-tasks"][0].trained
    assert f"{minutes - shared.seconds / 60:.0f} if the run" in page


def test_a_run_without_a_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(BASE)
    (tmp_path / "log.jsonl").write_text(json.dumps({"kind": "event"}) + "\n")
    with pytest.raises(DataError, match="no training step"):
        read_stage(tmp_path)


def test_a_stage_knows_the_tasks_and_lengths_of_its_mixture(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "data: {path: books, task: {name: qa1, babi_path: en}, "
        "mixture: [{length: 0}, {name: qa2, length: 64}]}"
    )
    (tmp_path / "log.jsonl").write_text(
        '{"kind": "train", "step": 3, "tokens": 40, "seconds": 1.5}\n{"kind": "held_out"}\n{"ki'
    )
    stage = read_stage(tmp_path)
    assert stage.kinds == {"qa1", "qa2"} and stage.lengths == {0, 64}
    assert stage.trained == (3, 40, 1.5) and stage.texts == {"books", "en"}
