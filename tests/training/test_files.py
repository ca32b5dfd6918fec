"""Checkpoint folders, logs, plots: what is on the disk, and what a crash leaves behind."""

import fcntl
import json
import os
import pty
import resource
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch

from titans.errors import CheckpointError, ConfigError, DataError
from titans.files import provenance
from titans.training import plots
from titans.training.checkpoint import CheckpointFolder, restore_rng, write_rng
from titans.training.config import LogConfig
from titans.training.console import Console
from titans.training.log import RunLog, read_log
from titans.training.processes import Processes
from titans.training.tuning import Tuner, load_space, report
from training.runs import tiny_config


def save(folder: CheckpointFolder, step: int, loss: float | None = None) -> None:
    part = folder.begin(step, is_main=True)
    (part / "weights").write_text(str(step))
    folder.commit(step, loss)


def steps(folder: CheckpointFolder) -> list[int]:
    return [checkpoint.step for checkpoint in folder.all()]


def test_last_and_best_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2, keep_best=True)
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5), (50, None)):
        save(folder, step, loss)
    assert len(steps(folder)) == 5, "nothing goes before the newest has proved good"
    folder.tidy()
    assert steps(folder) == [20, 40, 50]
    assert (tmp_path / "best").resolve().name == "step-00000020"
    assert (tmp_path / "last" / "weights").read_text() == "50"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_unfinished_checkpoints_are_invisible_and_cleaned(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2, keep_best=False)
    save(folder, 10)
    part = folder.begin(20, is_main=True)
    (part / "weights").write_text("half")
    (tmp_path / ".deleting-step-00000005").mkdir()
    assert steps(folder) == [10]
    folder.clean()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last", "step-00000010"]


def test_what_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = CheckpointFolder(tmp_path / "file", keep_last=1, keep_best=False)
    with pytest.raises(CheckpointError, match=r"cannot be written .*there is none before it"):
        folder.begin(1, is_main=True)


FULL_DISK = """
import resource, sys
from pathlib import Path
from titans.training.trainer import Trainer
from training.runs import tiny_config
config = tiny_config(Path(sys.argv[1]), "train.steps=8", "model.hidden_size=64")
def limit(step, loss):
    # From here on no file may grow beyond 50 kB: every write past that fails, as on a full disk.
    if step == 8:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
Trainer(config, watch=limit).fit()
"""


def test_a_full_disk_is_explained_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 1
    assert "CheckpointError" in done.stderr and "the disk is full" in done.stderr
    assert "the last good checkpoint is" in done.stderr and "--resume" in done.stderr
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints", keep_last=2, keep_best=True)
    assert steps(folder) == [4]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_the_log_is_cut_back_and_survives_lines_that_are_none(tmp_path: Path) -> None:
    config = LogConfig(tensorboard=False)
    with RunLog(tmp_path, config, resume_step=0) as log:
        for step in (5, 10, 15):
            log.write("train", step, {"loss": step / 10, "bad": float("nan")})
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write("[1]\n" + "[" * 100_000 + '\n{"kind": "train", "st')
    with RunLog(tmp_path, config, resume_step=10) as log:
        log.write("train", 11, {"loss": 1.1})
    records = read_log(tmp_path)
    assert [r["step"] for r in records] == [5, 10, 11]
    assert records[0]["bad"] is None
    with pytest.raises(DataError, match="no such log"):
        read_log(tmp_path / "nothing")


def test_tensorboard_holds_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunLog(tmp_path, LogConfig(), resume_step=0) as log:
        log.write("train", 5, {"loss": 0.5})
        log.write("sample", 5, {"text": "once"})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(5, 0.5)]


WIDEST = {
    "loss": 10.1234,
    "bits_per_byte": 14.6,
    "tokens_per_second": 123_456.7,
    "step_size": 1,
}


def test_a_line_of_progress_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(total=300_000, start=0, is_main=True)
    console.show(299_990, WIDEST)
    Console(total=9, start=0, is_main=False).show(1, WIDEST)
    line = capsys.readouterr().err
    assert line.startswith(
        "299990/300000  loss 10.123  14.600 bits/byte  123,457 tokens/s  00:00 left"
    )
    assert line.count("\n") == 1 and len(line) <= 81


def test_the_live_line_fits_80_columns() -> None:
    code = (
        "from titans.training.console import Console; import time\n"
        f"console = Console(total=30_000, start=0, is_main=True); console.show(1, {WIDEST})\n"
        "time.sleep(0.2); console.advance(10)\n"
    )
    leader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    done = subprocess.run([sys.executable, "-c", code], stderr=terminal, timeout=60)
    os.close(terminal)
    lines = os.read(leader, 100_000).decode().replace("\n", "\r").split("\r")
    os.close(leader)
    assert done.returncode == 0
    (last,) = {line for line in lines if line.startswith("10/30000")}
    assert " tokens/s  " in last and " left " in last and len(last) <= 80


def test_what_is_not_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    assert processes.idle == ""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "NO")
    assert "`accelerate launch` started one process" in processes.idle
    monkeypatch.setattr(Processes, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    assert "1 of 4 cuda devices in use: start with `torchrun --nproc_per_node=4" in processes.idle
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert processes.idle == ""


def write_run(folder: Path, factor: float) -> Path:
    with RunLog(folder, LogConfig(tensorboard=False), resume_step=0) as log:
        for step in (10, 20):
            log.write("train", step, {"loss": factor / step, "surprise": 0.1})
        log.write("held_out", 20, {"loss": factor / 15, "bits_per_byte": 1.0})
    return folder


def test_damaged_random_numbers_are_one_line(tmp_path: Path) -> None:
    write_rng(tmp_path, 0)
    for name in ("rng-0.safetensors", "rng-0.json"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(CheckpointError, match="the random numbers of process 0 cannot be read"):
            restore_rng(tmp_path, 0)
        (tmp_path / name).write_bytes(content)
    restore_rng(tmp_path, 0)


def test_plots_of_several_runs(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, factor) for name, factor in (("one", 1.0), ("two", 2.0))]
    curves = plots.load_curves(runs)
    assert plots.choose_metrics(curves, []) == ["loss", "bits_per_byte", "surprise"]
    figure = plots.draw(curves, ["loss", "surprise"])
    drawn = {line.get_label() for line in figure.axes[0].lines}
    assert drawn == {"one, training", "one, held out", "two, training", "two, held out"}
    assert figure.axes[0].lines[0].get_ydata() == pytest.approx([0.1, 0.05])
    plots.save(figure, curves, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    plots.save(plots.draw(curves, ["loss"]), curves, tmp_path / "c.html")
    page = (tmp_path / "c.html").read_text()
    assert "<svg" in page and ">two<" in page
    with pytest.raises(DataError, match="no run has the metric 'los'"):
        plots.choose_metrics(curves, ["los"])


def test_provenance_names_version_and_commit() -> None:
    found = provenance()
    assert found["package"] == "titans-neural-memory"
    assert found["version"]


def test_search_prunes_resumes_and_reports(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        "train.learning_rate: {low: 1e-4, high: 1e-1, log: true}\n"
        "train.batch_size: {choices: [2, 4]}\n"
        "model.num_hidden_layers: {low: 1, high: 2}\n"
    )
    settings = ("train.steps=4", "train.warmup_steps=1", "log.held_out_every=1")
    config = tiny_config(tmp_path, *settings, "log.held_out_batches=1")
    out = tmp_path / "tune"
    tuner = Tuner(config=config, space=load_space(tmp_path / "space.yaml"), out=out, name="s")
    assert len(tuner.search(3).trials) == 3
    study = tuner.search(8)
    assert len(study.trials) == 8, "the second search counts the first one's trials"
    result = report(study, out)
    assert result["finished"] + result["pruned"] == 8  # type: ignore[operator]
    losses = [t.value for t in study.trials if t.value is not None]
    assert result["best_loss"] == min(losses)
    assert set(result["best_settings"]) == {  # type: ignore[arg-type]
        "train.learning_rate",
        "train.batch_size",
        "model.num_hidden_layers",
    }
    assert json.loads((out / "report.json").read_text())["trials"] == 8
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "--set train.learning_rate=" in (out / "report.md").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.steps: 3\n", "expected {low"),
        ("train.steps: {lo: 1, high: 2}\n", "unknown key space, train.steps: lo"),
        ("train.steps: {low: 3, high: 2}\n", "low must be below high"),
        ("train.steps: {choices: []}\n", "choices must be a list"),
        ("train.steps: {low: 3}\n", "low and high must both be numbers"),
        ("", "the space is empty"),
    ],
)
def test_bad_spaces(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_space(tmp_path / "space.yaml")


def test_a_space_with_a_misspelt_setting_fails_before_the_first_trial(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("train.learning_rte: {low: 1e-4, high: 1e-1}\n")
    config = tiny_config(tmp_path)
    tuner = Tuner(config=config, space=load_space(tmp_path / "space.yaml"), out=tmp_path, name="s")
    with pytest.raises(ConfigError, match=r"did you mean train\.learning_rate"):
        tuner.search(1)
