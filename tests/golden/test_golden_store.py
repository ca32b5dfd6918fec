"""A text memory that the first release wrote answers as it did, and so does one written today.

Scores rest on a float32 encoder: 1e-4 allows for another processor.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from golden import conversation
from golden.files import DATA, read
from titans.recall.encoder import MiniLMEncoder


@pytest.fixture(scope="module")
def encoder() -> MiniLMEncoder:
    return MiniLMEncoder()


def assert_same(found: Any, wanted: Any, place: str = "") -> None:
    """The same values, floats to 1e-4; today may say more, not less."""
    if isinstance(wanted, dict):
        assert wanted.keys() <= found.keys(), place
        for key, value in wanted.items():
            assert_same(found[key], value, f"{place}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), place
        for number, value in enumerate(wanted):
            assert_same(found[number], value, f"{place}[{number}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-4), place
    else:
        assert found == wanted, place


def plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def test_old_store(tmp_path: Path, encoder: MiniLMEncoder) -> None:
    path = tmp_path / "memory.db"
    shutil.copy(DATA / "memory.db", path)
    assert_same(plain(conversation.ask_store(path, encoder)), read("answers.json"))


def test_new_store(tmp_path: Path, encoder: MiniLMEncoder) -> None:
    path = tmp_path / "memory.db"
    conversation.write_store(path, encoder)
    assert_same(plain(conversation.ask_store(path, encoder)), read("answers.json"))
