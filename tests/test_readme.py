"""The README's example runs and stays short; its files exist; it says what it is on one screen."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_layer_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = BLOCKS[0]
    assert len(example.strip().splitlines()) <= 12
    exec(compile(example, "README.md", "exec"), {})
    falling = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert falling[-1] < 0.5 * falling[0]
    assert (tmp_path / "state.safetensors").is_file()


def test_paths_exist() -> None:
    for path in re.findall(r"`((?:src|configs|benchmarks|docs|tests|sweeps)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path


def test_the_two_commands_are_shown() -> None:
    assert "make demo" in README and "make test" in README


def test_the_first_screen_says_what_for_and_how_to_start() -> None:
    screen = " ".join(README.split()[:420])
    for part in ("## Install", "pip install .", "```python", "## What is it for?", "Tutorial"):
        assert part in screen, part
