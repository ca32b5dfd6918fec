"""Fixtures of the text memory: a quick one with hashed words, and the real encoder, loaded once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.postgres import new_place
from titans.recall import RecallConfig, TextMemory
from titans.recall.encoder import MiniLMEncoder

HASHING = RecallConfig(encoder="hashing:64")


@pytest.fixture(scope="session")
def minilm() -> MiniLMEncoder:
    return MiniLMEncoder()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store may be, of either kind."""
    return str(tmp_path / "memory.db") if request.param == "sqlite" else new_place()


on_sqlite = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("place", ["postgres"], indirect=True)


@pytest.fixture
def memory(place: str) -> Iterator[TextMemory]:
    with TextMemory(place, config=HASHING) as opened:
        yield opened


@pytest.fixture
def real_memory(tmp_path: Path, minilm: MiniLMEncoder) -> Iterator[TextMemory]:
    with TextMemory(tmp_path / "memory.db", encoder=minilm) as opened:
        yield opened
