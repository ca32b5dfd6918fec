"""A run of the trainer is what it was, and a resumed one is the uninterrupted one.

The trainer works in float32: 1e-4 allows for another processor over 16 steps.
"""

from pathlib import Path

import torch

from golden import run
from golden.compare import assert_near
from golden.files import read


def test_whole_and_resumed(tmp_path: Path) -> None:
    losses, weights = run.whole(tmp_path / "whole")
    recorded = read("run.json")
    assert losses.keys() == recorded.keys()
    for kind, values in losses.items():
        assert_near(values, recorded[kind], 1e-4)
    again, resumed = run.resumed(tmp_path / "resumed")
    assert again == losses
    assert resumed.keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in resumed.items())
