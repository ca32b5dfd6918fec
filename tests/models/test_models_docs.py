"""The example in docs/models.md runs as it stands."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

DOC = Path(__file__).parents[2] / "docs" / "models.md"


def test_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", DOC.read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, str(DOC), "exec"), names)
    assert (tmp_path / "book.safetensors").is_file()
    assert names["answer"].shape[1] == 28


def test_every_setting_that_is_named_exists() -> None:
    from titans.models import TitansConfig

    config = TitansConfig()
    named = re.findall(r"`((?:memory\.[a-z_]+)|(?:[a-z]+_[a-z_]+)(?==))", DOC.read_text())
    assert {"memory.chunk_size", "mag_gate"} <= set(named)
    for name in named:
        attrgetter(name)(config)
