"""Stages: several runs in one configuration, killed and resumed."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from titans.cli.main import main
from titans.errors import CheckpointError, ConfigError, FileError
from titans.files import FolderLock
from titans.models.checkpoint import find_checkpoint
from titans.settings import to_yaml
from titans.training.config import RunConfig, load_config
from titans.training.log import read_log
from titans.training.stages import train
from titans.training.trainer import Trainer
from training.runs import timeless, tiny_config

STAGES = (
    {"train": {"steps": 6}},
    {
        "train": {"steps": 9, "write_cost": 1.0},
        "model": {"memory": {"write_threshold": 1e-4}},
        "seed": 1,
    },
)


def staged(folder: Path, *settings: str) -> RunConfig:
    """Two stages of a tiny MAC; the second changes the seed, the loss and the threshold."""
    folder.mkdir(exist_ok=True)
    return tiny_config(folder, f"stages={json.dumps(STAGES)}", *settings, variant="mac")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(find_checkpoint(folder) / "model.safetensors")


def assert_same_training(first: Path, second: Path) -> None:
    for stage in ("stage-1", "stage-2"):
        ours, theirs = (folder / "run" / stage / "checkpoints/last" for folder in (first, second))
        for name in ("model.safetensors", "optimizer.safetensors"):
            a, b = load_file(ours / name), load_file(theirs / name)
            assert a.keys() == b.keys() and all(torch.equal(t, b[key]) for key, t in a.items())
        assert timeless(first / "run" / stage) == timeless(second / "run" / stage)


def test_stages_follow_each_other(tmp_path: Path) -> None:
    result = train(staged(tmp_path / "a"))
    assert result is not None and result.steps == 9
    # The same by hand: two runs, the second from the first one's weights.
    shared = ("train.steps=6", f"out={tmp_path / 'b/run/stage-1'}")
    (tmp_path / "b").mkdir()
    Trainer(tiny_config(tmp_path / "b", *shared, variant="mac")).fit()
    later = (
        f"start_from={tmp_path / 'b/run/stage-1/checkpoints/last'}", "train.steps=9", "seed=1",
        "train.write_cost=1", "model.memory.write_threshold=1e-4",
        f"out={tmp_path / 'b/run/stage-2'}",
    )  # fmt: skip
    Trainer(tiny_config(tmp_path / "b", *later, variant="mac")).fit()
    assert_same_training(tmp_path / "a", tmp_path / "b")
    assert find_checkpoint(tmp_path / "a" / "run").parts[-3:-1] == ("stage-2", "checkpoints")
    steps = [r["step"] for r in read_log(tmp_path / "a" / "run") if r["kind"] == "train"]
    assert steps == [2, 4, 6, 8, 10, 12, 14, 15], "one log, its steps counted through"


def killed_in_stage_2(config: RunConfig, *, resume: bool) -> None:
    """Train in a process of its own; kill it once the second stage has taken a few steps."""
    child = os.fork()
    if child == 0:
        try:
            train(config, resume=resume)
        finally:
            os._exit(1)
    log, deadline = Path(config.out) / "stage-2" / "log.jsonl", time.monotonic() + 60
    while not (log.is_file() and log.read_text().count('"train"') >= 2):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


@pytest.mark.parametrize("every", [3, 100])
def test_killed_in_the_second_stage_and_resumed_bit_for_bit(every: int, tmp_path: Path) -> None:
    """Resumed from a checkpoint of the second stage, or, if it has none, from its beginning."""
    longer = ("stages=" + json.dumps((STAGES[0], {**STAGES[1], "train": {"steps": 40}})),)
    settings = (*longer, f"checkpoint.every={every}", "log.held_out_every=0", "log.every=1")
    train(staged(tmp_path / "whole", *settings))
    cut = staged(tmp_path / "cut", *settings)
    killed_in_stage_2(cut, resume=False)
    assert main(["train", str(tmp_path / "cut" / "run"), "--resume"]) == 0
    assert_same_training(tmp_path / "whole", tmp_path / "cut")
    # Once more changes nothing.
    before = weights(tmp_path / "cut" / "run")
    assert main(["train", str(tmp_path / "cut" / "run"), "--resume"]) == 0
    after = weights(tmp_path / "cut" / "run")
    assert all(torch.equal(t, after[name]) for name, t in before.items())


def test_a_training_is_not_started_twice(tmp_path: Path) -> None:
    config = staged(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        train(config, resume=True)
    lock = FolderLock(tmp_path / "run")
    with pytest.raises(FileError, match="is in use by process"):
        train(config)
    lock.release()
    train(config)
    with pytest.raises(CheckpointError, match=r"stage-2 already holds a run \(step 9\)"):
        train(config)
    with pytest.raises(ConfigError, match="the configuration has 2 stages, here one run"):
        Trainer(config)


def write(folder: Path) -> Path:
    path = folder / "staged.yaml"
    path.write_text(to_yaml(staged(folder)))
    return path


def test_settings_reach_all_stages_or_one(tmp_path: Path) -> None:
    path = write(tmp_path)
    first, second = load_config(path).runs()
    assert (first.train.steps, second.train.steps) == (6, 9)
    assert [run.model["memory"] for run in (first, second)] == [
        {"chunk_size": 4},
        {"chunk_size": 4, "write_threshold": 1e-4},
    ]
    assert (first.start_from, second.start_from) == (None, first.out)
    assert [run.seed for run in (first, second)] == [0, 1]
    config = load_config(path, ["train.steps=3", "seed=5", "stages.2.data.task={}", "out=there"])
    assert [run.train.steps for run in config.runs()] == [3, 3]
    assert [run.seed for run in config.runs()] == [5, 5]
    assert config.runs()[1].out == "there/stage-2" and config.runs()[1].train.write_cost == 1
    config = load_config(path, ["train.steps=3", "stages.1.train.steps=4"])
    assert [run.train.steps for run in config.runs()] == [4, 3]
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(config))
    assert load_config(again) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stages.3.train.steps=1", "there are 2 stages; name one by its number"),
        ("stages.train.steps=1", "there are 2 stages; name one by its number"),
        ("stages.2.train.stepz=1", "stage 2: unknown key train.stepz; did you mean train.steps"),
        ("stages.1.train.steps=0", "stage 1: train.steps must be at least 1, got 0"),
        ("stages.1.out=x", "stage 1: unknown key out"),
        ("stages=5", "stages must be a list, got 5"),
        ("stages=[5]", r"stages\[0\] must be a mapping"),
    ],
)
def test_mistakes_are_named(setting: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path), [setting])
