"""A shipped checkpoint under the standard harness: `lm_eval --model hf`, offline, a local task."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_harness_finds_and_scores_a_shipped_checkpoint_offline(tmp_path: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    words = ["-m", "lm_eval", "--model", "hf", "--tasks", "words", "--device", "cpu"]
    words += ["--model_args", "pretrained=checkpoints/bytes-mac,trust_remote_code=True"]
    words += ["--include_path", "examples/harness", "--output_path", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=PROJECT,
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    (file,) = (tmp_path / "out").rglob("results_*.json")
    # Guessing scores a half.
    assert json.loads(file.read_text())["results"]["words"]["acc,none"] > 0.8
