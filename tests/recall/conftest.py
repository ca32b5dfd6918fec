"""Fixtures of the text memory: a quick one with hashed words, and the real encoder, loaded once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from titans.recall import RecallConfig, TextMemory
from titans.recall.encoder import MiniLMEncoder

HASHING = RecallConfig(encoder="hashing:64")


@pytest.fixture(scope="session")
def minilm() -> MiniLMEncoder:
    return MiniLMEncoder()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[TextMemory]:
    with TextMemory(tmp_path / "memory.db", config=HASHING) as opened:
        yield opened


@pytest.fixture
def real_memory(tmp_path: Path, minilm: MiniLMEncoder) -> Iterator[TextMemory]:
    with TextMemory(tmp_path / "memory.db", encoder=minilm) as opened:
        yield opened
