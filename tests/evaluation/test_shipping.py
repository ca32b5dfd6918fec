"""A shipped checkpoint holds everything that belongs to it, and no path of a machine."""

import re
import shutil
from pathlib import Path

import pytest

from evaluation.test_subject import tiny
from titans.cli.main import main
from titans.errors import DataError
from titans.evaluation import shipping
from titans.evaluation.records import Record
from titans.evaluation.shipped_card import describe_checkpoint
from titans.evaluation.subject import ModelSubject
from titans.evaluation.training_stages import read_stage, read_stages
from titans.files import package_version

ROOT = Path(__file__).parents[2]
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
    for shown in (
        "| needle, with distractors | 64 |",
        "2 steps",
        "`write_threshold=0.05`",
        "| training text | none: made of tokens |",
        "| tokenizer | the task's own words (131 entries); trained on tokens |",
        "| seed | 0 |",
        "bytes at every length",
        f"| trained with | titans-neural-memory {package_version()}",
    ):
        assert shown in card
    for file in target.rglob("*"):
        if file.suffix in (".json", ".jsonl", ".yaml", ".md"):
            assert str(tmp_path) not in file.read_text(), file
    shipping.main([str(run), str(tmp_path / "two"), "--after", str(run)])
    assert "| training | 4 steps" in (tmp_path / "two" / "README.md").read_text()
    assert (tmp_path / "two" / "stage-1" / "log.jsonl").is_file()
    again_from_the_folder_itself(target, record)
    monkeypatch.setattr(shipping, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="more than 100"):
        shipping.ship(run, target, [record])


def again_from_the_folder_itself(target: Path, record: Path) -> None:
    """What `--again` writes is what shipping wrote; records replace those that were there."""
    before = {file: file.read_bytes() for file in target.rglob("*") if file.is_file()}
    assert shipping.main(["--again", str(target)]) == 0
    assert {file: file.read_bytes() for file in target.rglob("*") if file.is_file()} == before
    other = record.with_name("other.json")
    shutil.copy(record, other)
    words = ["--again", str(target), "--record", str(record), "--record", str(other)]
    assert shipping.main(words) == 0
    card = (target / "README.md").read_text()
    assert card.count("| needle, with distractors | 64 |") == 2
    assert shipping.main(["--again", str(target), "--record", str(other)]) == 0
    assert [file.name for file in (target / "records").iterdir()] == ["other.json"]
    the_card_says_what_was_read(target, record.with_name("note.md"))
    weights = before[target / "model.safetensors"]
    assert (target / "model.safetensors").read_bytes() == weights


def the_card_says_what_was_read(target: Path, note: Path) -> None:
    """A note about the texts stands in the card and stays there."""
    assert "## Training texts" not in (target / "README.md").read_text()
    note.write_text("Twelve novels, though the folder says `essays`.\n")
    assert shipping.main(["--again", str(target), "--texts", str(note)]) == 0
    shown = "\n\n## Training texts\n\nTwelve novels, though the folder says `essays`.\n\n## Eval"
    assert shown in (target / "README.md").read_text()
    assert shipping.main(["--again", str(target)]) == 0
    assert shown in (target / "README.md").read_text()
    with pytest.raises(SystemExit):
        shipping.main(["--again", str(target), "--texts", str(note.with_name("none.md"))])


def test_a_card_reads_a_little_where_no_record_has_the_size_of_the_state() -> None:
    folder = ROOT / "checkpoints" / "niah-mac"
    scores = Record.load(folder / "records" / "niah-mac.json").scores
    (measured,) = {score.value for score in scores if score.metric == "state_bytes"}
    card = describe_checkpoint(folder, ModelSubject.load(folder), {})
    assert f"| {measured:,.0f} bytes after 32 and 96 tokens (not in the records) |" in card
    growing = describe_checkpoint(folder, ModelSubject(tiny("transformer")), {})
    assert re.search(r"\| [\d,]+ and [\d,]+ bytes after 32 and 96 tokens", growing)


def test_limits_name_as_many_tasks_and_minutes_as_the_card_does() -> None:
    cards = {name: (ROOT / "checkpoints" / name / "README.md").read_text() for name in SHIPPED}
    assert "(qa1, qa2, qa4, qa5)" in cards["babilong-tasks"]
    assert "model of 4 synthetic tasks:" in cards["babilong-tasks"]
    assert "model of one synthetic task:" in cards["babilong-mac"]
    found = re.search(r"tokens, (\d+ minutes) on one CPU", cards["bytes-mac"])
    assert found and f"bytes after {found[1]} of training" in cards["bytes-mac"]


def test_the_page_has_the_minutes_that_the_logs_add_up_to() -> None:
    stages = {name: read_stages(ROOT / "checkpoints" / name) for name in SHIPPED}
    minutes = sum(stage.trained.seconds for runs in stages.values() for stage in runs) / 60
    first, shared = stages["babilong-mac"][0].trained, stages["babilong-tasks"][0].trained
    assert first == shared
    page = (ROOT / "docs" / "evaluation.md").read_text()
    once = minutes - shared.seconds / 60
    assert f"took {minutes:.0f} minutes on one CPU thread" in page
    assert f", {once:.0f} if the run that `babilong-mac`" in page


def test_checkpoints_stay_small() -> None:
    files = [file for file in (ROOT / "checkpoints").rglob("*") if file.is_file()]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) <= shipping.MAX_BYTES == 8_000_000
    assert sum(sizes) < 30_000_000


def test_records_of_other_weights_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "checkpoints" / "needle-swa"
    card = (folder / "README.md").read_text()
    other = ROOT / "checkpoints" / "needle-mac" / "records" / "needle-mac.json"
    assert shipping.main(["--again", str(folder), "--record", str(other)]) == 1
    assert "needle-mac.json was measured on other weights" in capsys.readouterr().err
    assert (folder / "README.md").read_text() == card


@pytest.mark.parametrize("words", [[], ["run"], ["--again", "a", "--words"], ["a", "--again", "b"]])
def test_wrong_use_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shipping.main(words)
    assert "--again" in capsys.readouterr().err


SHIPPED = sorted(folder.name for folder in (ROOT / "checkpoints").iterdir())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_card_is_what_its_folder_gives(name: str) -> None:
    folder = ROOT / "checkpoints" / name
    records = {file.name: Record.load(file) for file in sorted((folder / "records").glob("*.json"))}
    card = describe_checkpoint(folder, ModelSubject.load(folder), records)
    assert card == (folder / "README.md").read_text(), "write it anew with --again"


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
    assert stage.trained == (3, 40, 1.5)
    (tmp_path / "config.yaml").write_text("data: {source: text}")
    assert stage.texts == {"books", "en"}
    stage = read_stage(tmp_path)
    assert stage.kinds == set() and stage.lengths == set() and stage.texts == set()
    (tmp_path / "log.jsonl").unlink()
    with pytest.raises(DataError, match="no training step"):
        read_stage(tmp_path)
