"""A checkpoint under the standard harness: `lm_eval --model hf`, offline, with a local task."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parents[2] / "checkpoints" / "bytes-mac"

TASK = """
task: colours
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.mark.slow
def test_the_harness_finds_and_scores_a_shipped_checkpoint_offline(tmp_path: Path) -> None:
    rows = [
        {"question": "The sky is", "choices": [" blue", " green"], "answer": n % 2}
        for n in range(4)
    ]
    data = tmp_path / "colours.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "colours.yaml").write_text(TASK.format(data=data))
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    words = ["-m", "lm_eval", "--model", "hf", "--tasks", "colours", "--device", "cpu"]
    words += ["--model_args", f"pretrained={SHIPPED},trust_remote_code=True"]
    words += ["--include_path", str(tmp_path / "tasks"), "--output_path", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    (file,) = (tmp_path / "out").rglob("results_*.json")
    # The same question with either answer as the right one: exactly half of them are scored right.
    assert json.loads(file.read_text())["results"]["colours"]["acc,none"] == 0.5
