"""The examples run as they are and show what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *words: str, folder: Path, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        capture_output=True,
        text=True,
        input=given,
        cwd=folder,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text: str, pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


@pytest.mark.parametrize("name", ["layer.py", "own_network.py"])
def test_surprise_falls(name: str, tmp_path: Path) -> None:
    falling = numbers(run(name, folder=tmp_path), r"surprise ([\d.]+)")
    assert len(falling) == 5 and falling[-1] < 0.8 * falling[0]


def test_a_time_series_is_memorised(tmp_path: Path) -> None:
    printed = run("time_series.py", folder=tmp_path)
    (first,), (later,) = (numbers(printed, rf"{word}:\s+([\d.]+)") for word in ("time", "later"))
    assert later < 0.9 * first


def test_a_text_is_read_saved_and_asked_again(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The castle is old. I asked him for the key. " * 300)
    printed = run("read_on.py", str(text), "3", folder=tmp_path)
    assert "read 4,0" in printed and "'The castle " in printed and "'I asked him " in printed


def test_a_chat_recalls(tmp_path: Path) -> None:
    given = "My dog is called Rex.\nWhat is my dog called?\n\n"
    printed = run("chat_loop.py", folder=tmp_path, given=given)
    assert "- " in printed and printed.count("My dog is called Rex.") == 2


def test_every_example_is_tested() -> None:
    here = Path(__file__).read_text()
    assert all(f'"{file.name}"' in here for file in EXAMPLES.glob("*.py"))
