import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "recall.md"


def test_the_documented_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), {})
        assert len([line for line in example.splitlines() if line.strip()]) <= 10
    printed = capsys.readouterr().out
    assert "Rex" in printed.splitlines()[0] and "I moved to Oslo" in printed
    assert printed.splitlines()[-1] == "What do I have?"
