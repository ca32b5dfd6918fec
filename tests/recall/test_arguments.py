"""Arguments that cannot be meant are refused in one line, whatever they are, and change nothing."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from titans.errors import DataError
from titans.recall import RecallConfig, TextMemory, import_records
from titans.recall.store.connection import explain

DEEP = '{"a": ' * 100_000


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextMemory]:
    path = tmp_path_factory.mktemp("arguments") / "m.db"
    with TextMemory(path, "ann", RecallConfig(encoder="hashing:16")) as memory:
        memory.remember("one", id="1")
        yield memory


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        ("remember", {"text": b"bytes"}, "text must be a str"),
        ("remember", {"text": "half \ud800"}, "text is not valid Unicode: character 5"),
        ("remember", {"text": "x", "speaker": "\ud800"}, "speaker is not valid Unicode"),
        ("remember", {"text": "x", "id": "\ud800"}, "id is not valid Unicode"),
        ("remember", {"text": "x", "metadata": {"a": "\ud800"}}, "JSON-serialisable"),
        ("remember", {"text": "x", "metadata": {"a": float("nan")}}, "JSON-serialisable"),
        ("remember_many", {"records": ["text"]}, "record 1 must be a mapping"),
        ("recall", {"query": 7}, "query must be a str"),
        ("recall", {"query": "one", "k": 1.5}, "k must be a whole number of at least 1"),
        ("recall", {"query": "one", "metadata": "x"}, "metadata must be a mapping"),
        ("recall", {"query": "one", "metadata": {"a": float("inf")}}, "'a' is inf"),
        ("recall", {"query": "one", "metadata": {1: 2}}, "a field of metadata has a name, got 1"),
        ("records", {"limit": -1}, "limit must be a whole number of at least 0, got -1"),
        ("records", {"beyond": b"1"}, "beyond must be a str"),
        ("attend", {"prompt": "x", "speaker": 7}, "speaker must be a str"),
        ("forget", {"id": 1}, "id must be a str"),
        ("get", {"id": ["1"]}, "id must be a str"),
    ],
)
def test_they_are_refused(
    memory: TextMemory, call: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        getattr(memory, call)(**arguments)
    assert "\n" not in str(error.value)
    assert [r.text for r in memory.records()] == ["one"]


def test_texts_that_are_known_are_looked_at_before_the_prompt_is_stored(
    memory: TextMemory,
) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        memory.attend("a prompt", known=7)  # type: ignore[arg-type]
    assert [r.text for r in memory.records()] == ["one"]


def test_json_that_is_too_deep_or_too_long_is_refused(memory: TextMemory) -> None:
    for line, reason in (
        ('{"text": "x", "metadata": ' + DEEP, "nested too deeply"),
        ('{"text": ' + "9" * 9000 + "}", "integer string conversion"),
        ('{"persistent": 7}', "a persistent text is a str"),
    ):
        with pytest.raises(DataError, match=f"line 1.*{reason}"):
            import_records(memory, [line])


def test_a_store_error_is_told_by_its_number_not_by_the_path(tmp_path: Path) -> None:
    """A folder called "full" made a missing folder a full disk."""
    for name in ("full", "readonly", "locked", "corrupt"):
        path = tmp_path / name / "m.db"
        missing = OSError(2, "No such file or directory", str(path))
        assert "(No such file or directory)" in explain(missing, path, "opened")
    path = tmp_path / "m.db"
    assert "the disk is full" in explain(OSError(28, "No space left on device"), path, "opened")
    assert "read-only" in explain(OSError(30, "Read-only file system"), path, "opened")
    assert "\n" not in explain(sqlite3.OperationalError("malformed\n  schema"), path, "opened")
    path.write_bytes(b"no database" * 99)
    with pytest.raises(sqlite3.DatabaseError) as error:
        sqlite3.connect(path).execute("PRAGMA user_version")
    assert "is damaged or not a store" in explain(error.value, path, "opened")
