"""The command line: train, resume, interrupt, kill, plot, tokenizer."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from titans.cli.main import main
from titans.settings import to_yaml
from titans.training.checkpoint import Checkpoint, CheckpointFolder
from titans.training.config import RunConfig, load_config
from titans.training.metrics import Meter
from titans.training.trainer import Trainer
from training.runs import timeless, tiny_config


def write_config(folder: Path, *settings: str, variant: str = "swa") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(to_yaml(tiny_config(folder, *settings, variant=variant)))
    return path


def start(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "titans.cli.main", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )


def test_train_plot_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    assert main(["train", str(config), "--set", "train.steps=4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 4 and not result["interrupted"]
    picture = tmp_path / "c.png"
    assert main(["plot", result["folder"], "--out", str(picture), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"][0] == "loss"
    assert picture.stat().st_size > 1000


def test_print_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    words = ["train", str(config), "--set", "train.learning_rate=3e-4", "--print-config"]
    assert main([*words, "--data", "some where.txt"]) == 0
    shown = capsys.readouterr().out
    assert "learning_rate: 0.0003" in shown and "path: some where.txt" in shown
    assert not (tmp_path / "run").exists()
    assert main(["train", str(config), "--set", "model.hiden_size=4", "--print-config"]) == 2
    assert "did you mean model.hidden_size" in capsys.readouterr().err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    assert main(["train", str(config), "--data", str(tmp_path / "none.txt")]) == 1
    err = capsys.readouterr().err
    assert "none.txt: no such file or folder" in err and "Traceback" not in err


def test_tokenizer_train_and_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    words = [str(tmp_path / "corpus.jsonl"), "--vocab-size", "280", "--out", str(tmp_path / "bpe")]
    assert main(["tokenizer", "train", *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["vocab_size"] == 280 and result["bytes_per_token"] > 1.2
    words = ["--set", f"data.tokenizer={tmp_path / 'bpe'}", "--set", "train.steps=3", "--json"]
    assert main(["train", str(config), *words]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["held_out"]["bits_per_byte"] < run["held_out"]["loss"] / 0.6931
    model = json.loads((Path(run["checkpoint"]) / "config.json").read_text())
    assert model["vocab_size"] == 280


def test_ctrl_c_saves_and_resume_is_exact(tmp_path: Path) -> None:
    settings = ("train.steps=120", "checkpoint.every=1000", "log.every=1", "log.held_out_every=40")
    whole = load_config(write_config(tmp_path / "whole", *settings))
    Trainer(whole).fit()
    cut = write_config(tmp_path / "cut", *settings)
    with start("train", cut) as process:
        log = tmp_path / "cut" / "run" / "log.jsonl"
        deadline = time.monotonic() + 120
        while not (log.exists() and log.read_text().count("\n") >= 5):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err and "stopping after this step" in err
    folder = CheckpointFolder(tmp_path / "cut/run/checkpoints", keep_last=2, keep_best=True)
    (saved,) = folder.all()
    assert 5 <= saved.step < 120
    assert main(["train", str(tmp_path / "cut" / "run"), "--resume"]) == 0
    name = "run/checkpoints/last/model.safetensors"
    ours, theirs = load_file(tmp_path / "whole" / name), load_file(tmp_path / "cut" / name)
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
    assert timeless(tmp_path / "whole" / "run") == timeless(tmp_path / "cut" / "run")


class DyingTrainer(Trainer):
    """A trainer that is killed at a random moment of one of its first saves, or shortly after."""

    def __init__(self, config: RunConfig, *, seed: int, resume: bool) -> None:
        super().__init__(config, resume=resume)
        chance = random.Random(seed)
        self.victim, self.delay = chance.randrange(2, 6), chance.random() * 0.08
        self.saves, self.save = 0, self.run.save
        self.run.save = self.save_and_die  # type: ignore[method-assign]

    def save_and_die(self, meter: Meter, held_out_loss: float | None) -> Checkpoint:
        self.saves += 1
        if self.saves == self.victim:
            kill = threading.Timer(self.delay, lambda: os.kill(os.getpid(), signal.SIGKILL))
            kill.start()
        return self.save(meter, held_out_loss)


def die(config: RunConfig, seed: int) -> None:
    """Train in a process of its own until it is killed (-9)."""
    child = os.fork()
    if child == 0:
        try:
            DyingTrainer(config, seed=seed, resume=seed > 0).fit()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def kill_and_resume(folder: Path, times: int) -> int:
    """Returns how many of the kills hit a save that was under way."""
    settings = ("train.steps=100000", "checkpoint.every=2", "log.held_out_every=0")
    config = tiny_config(folder, *settings)
    checkpoints = CheckpointFolder(folder / "run" / "checkpoints", keep_last=2, keep_best=True)
    before = unfinished = 0
    for seed in range(times):
        die(config, seed)
        last = checkpoints.last()
        assert last is not None and last.step > before, f"kill {seed}"
        # Everything in it can be read.
        load_file(last.path / "model.safetensors")
        load_file(last.path / "optimizer.safetensors")
        unfinished += any(p.name.startswith(".") for p in checkpoints.folder.iterdir())
        before = last.step
    return unfinished


def test_killed_while_saving(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 4)


@pytest.mark.slow
def test_killed_fifty_times_while_saving(tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, 50) >= 10, "the kills must hit saves to prove anything"


@pytest.mark.parametrize("command", ["train", "plot", "tune", "tokenizer"])
def test_help_has_three_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert capsys.readouterr().out.count("\n  titans ") >= 3


def test_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, "train.steps=3", "train.warmup_steps=0")
    space = tmp_path / "space.yaml"
    space.write_text("train.learning_rate: {low: 1e-4, high: 1e-2, log: true}\n")
    words = [str(config), "--space", str(space), "--out", str(tmp_path / "t"), "--json"]
    assert main(["tune", *words, "--trials", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] == 2
    assert main(["tune", *words, "--report"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 2
