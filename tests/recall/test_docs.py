import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "recall.md"


def test_the_documented_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "Rex" in printed.splitlines()[0] and "I moved to Oslo" in printed
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
