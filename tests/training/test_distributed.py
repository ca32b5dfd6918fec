"""Two processes on two CPU workers (gloo): the same run as one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from titans.models import TitansForCausalLM
from titans.settings import to_yaml
from titans.training.log import read_log
from titans.training.trainer import Trainer
from training.runs import timeless, tiny_config

CASES = {
    "plain": (),
    "carried": ("data.carry_state=true",),
    "memory loss, accumulated": ("train.memory_loss_weight=0.3", "train.micro_batch_size=1"),
    "two phases": ("train.core_steps=3",),
    "sharded": ("train.sharding=full",),
    "sharded, carried, two phases": (
        "train.sharding=full",
        "data.carry_state=true",
        "train.core_steps=3",
    ),
}
DEFAULT = ("carried",)
"""The others take the same path in other combinations: they run with the slow tests."""


def train_together(folder: Path, settings: tuple[str, ...], *words: str) -> Path:
    """Train with two processes; returns the folder of the run."""
    folder.mkdir(exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(to_yaml(tiny_config(folder, *settings, variant="mac")))
    command = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "titans.cli.main", "train", str(path), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "run"


def check(case: str, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    single = Trainer(tiny_config(alone, *CASES[case], variant="mac")).fit()
    run = train_together(tmp_path / "both", CASES[case])
    ours, theirs = read_log(single.folder), read_log(run)
    assert [(r["kind"], r["step"]) for r in ours] == [(r["kind"], r["step"]) for r in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("loss", "grad_norm", "surprise", "memory_loss", "learning_rate", "tokens"):
            if name in mine:
                assert other[name] == pytest.approx(mine[name], abs=1e-5), (mine["step"], name)
    weights = load_file(single.checkpoint / "model.safetensors")
    TitansForCausalLM.from_pretrained(run / "checkpoints" / "last")
    for name, tensor in load_file(run / "checkpoints/last/model.safetensors").items():
        assert torch.allclose(tensor, weights[name], atol=1e-4), name


@pytest.mark.parametrize("case", DEFAULT)
def test_two_processes_equal_one(case: str, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(set(CASES) - set(DEFAULT)))
def test_two_processes_equal_one_in_other_ways(case: str, tmp_path: Path) -> None:
    check(case, tmp_path)


@pytest.mark.slow
def test_a_sharded_run_goes_on_in_one_process(tmp_path: Path) -> None:
    settings = ("train.sharding=full", "train.steps=8", "checkpoint.every=4")
    alone = tmp_path / "alone"
    alone.mkdir()
    single = Trainer(tiny_config(alone, *settings, variant="mac")).fit()
    both = tmp_path / "both"
    run = train_together(both, settings)
    # Take the last checkpoint away: one process goes on from the first one.
    last = run / "checkpoints" / "step-00000008"
    last.rename(tmp_path / "taken")
    resumed = Trainer(tiny_config(both, *settings, variant="mac"), resume=True).fit()
    ours, theirs = timeless(single.folder), timeless(resumed.folder)
    for mine, other in zip(ours, theirs, strict=True):
        assert other["loss"] == pytest.approx(mine["loss"], abs=1e-5)


@pytest.mark.slow
def test_two_processes_resume_exactly(tmp_path: Path) -> None:
    settings = ("data.carry_state=true", "train.steps=8", "checkpoint.every=4")
    whole = train_together(tmp_path / "whole", settings)
    cut = train_together(tmp_path / "cut", settings)
    (cut / "checkpoints" / "step-00000008").rename(tmp_path / "taken")
    train_together(tmp_path / "cut", settings, "--resume")
    assert timeless(whole) == timeless(cut)
    name = "checkpoints/last/model.safetensors"
    ours, theirs = load_file(whole / name), load_file(cut / name)
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
