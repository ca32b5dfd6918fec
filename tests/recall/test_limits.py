"""What is too long is refused; what is long is read piece by piece, with news of how far it is."""

from pathlib import Path

import numpy as np
import pytest

from titans.errors import DataError
from titans.recall import RecallConfig, TextMemory
from titans.recall.encoder import HashingEncoder
from titans.recall.text.passages import MAX_CHARS


def test_a_text_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with TextMemory(tmp_path / "m.db", config=RecallConfig(encoder="hashing:16")) as memory:
        for store in (memory.remember, memory.attend):
            with pytest.raises(
                DataError, match="2,000,001 characters, at most 2,000,000: remember"
            ):
                store("a" * (MAX_CHARS + 1))
        with pytest.raises(ValueError, match="query has 2,000,001 characters"):
            memory.recall("a" * (MAX_CHARS + 1))
        assert memory.records() == []


def test_a_long_text_tells_how_far_it_is(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with TextMemory(tmp_path / "m.db", config=RecallConfig(encoder="hashing:16")) as memory:
        text = " ".join(f"word{number}" for number in range(256 * 9))
        memory.remember(text, progress=lambda done, total: seen.append((done, total)))
        assert [found.text for found in memory.recall("word2000", 1)] == [text]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 2 and seen[-1][0] == seen[-1][1]


def test_a_hashing_encoder_keeps_only_so_many_words() -> None:
    """It kept each word it ever met; an import of 20,000 records took 4 GB."""
    encoder, plain = HashingEncoder(8), HashingEncoder(8)
    encoder._vectors = np.empty((2 * encoder.max_tokens, 8), np.float32)
    for begin in range(0, 2000, 100):
        text = " ".join(f"word{number}" for number in range(begin, begin + 200))
        (one,), (other,) = encoder.encode([text]), plain.encode([text])
        assert np.array_equal(one.vectors, other.vectors)
        assert len(encoder._rows) <= len(encoder._vectors)
    assert len(plain._rows) == 2100
