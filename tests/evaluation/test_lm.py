"""Language modelling by position: each octave is held against its own bytes."""

import math
from pathlib import Path

import numpy as np
import pytest

from evaluation.subjects import CARD, Scripted
from titans.evaluation.lm import LanguageModelling
from titans.evaluation.model import Reading
from titans.evaluation.record import Record
from titans.evaluation.runner import run_task
from titans.tasks.tokens import IntArray


class Uneven(Scripted):
    """The token `a` stands for three bytes, a full stop for none, the others for one; token t of a
    window costs t nats."""

    def count_bytes(self, tokens: IntArray) -> int:
        text = bytes(tokens.tolist()).decode()
        return len(text) + 2 * text.count("a") - text.count(".")

    def losses(self, tokens: IntArray) -> Reading:
        nats = np.arange(1.0, tokens.shape[1])
        return Reading(np.tile(nats, (len(tokens), 1)), 7)


def measure(tmp_path: Path, text: str, length: int) -> Record:
    file = tmp_path / "text.txt"
    file.write_text(text)
    return run_task(LanguageModelling(lengths=(length,), text=file), Uneven(), CARD, seed=1)


def bits(record: Record) -> dict[tuple[object, object], float]:
    """Bits per byte by first position and the one behind the last."""
    return {
        (s.detail["from"], s.detail["to"]): s.value
        for s in record.scores
        if s.metric == "bits_per_byte" and s.detail
    }


def test_an_octave_is_divided_by_its_own_bytes(tmp_path: Path) -> None:
    found = bits(measure(tmp_path, "bbbbaaaa", 8))
    # Positions 1; 2 and 3; 4 to 7: their nats over their bytes (1; 1 each; 3 each).
    expected = {(1, 2): 1 / 1, (2, 4): (2 + 3) / 2, (4, 8): (4 + 5 + 6 + 7) / 12}
    assert found == {key: pytest.approx(nats / math.log(2)) for key, nats in expected.items()}


@pytest.mark.parametrize(
    ("length", "octaves"),
    [
        (2, [(1, 2)]),
        (3, [(1, 2), (2, 3)]),
        (5, [(1, 2), (2, 4), (4, 5)]),
        (9, [(1, 2), (2, 4), (4, 8), (8, 9)]),
        (12, [(1, 2), (2, 4), (4, 8), (8, 12)]),
    ],
)
def test_the_last_octave_ends_with_the_window(
    tmp_path: Path, length: int, octaves: list[tuple[int, int]]
) -> None:
    record = measure(tmp_path, "b" * length, length)
    assert list(bits(record)) == octaves
    last = [s for s in record.scores if s.metric == "perplexity"][-1]
    low, end = octaves[-1]
    assert last.value == pytest.approx(math.exp((low + end - 1) / 2))


def test_the_octaves_add_up_to_the_window(tmp_path: Path) -> None:
    text = "bab.aabbbaab"
    record = measure(tmp_path, text, 12)
    subject, tokens = Uneven(), Uneven().encode(text)
    total = sum(
        value * subject.count_bytes(tokens[int(str(low)) : int(str(end))])
        for (low, end), value in bits(record).items()
    )
    whole = record.find("bits_per_byte", 12)
    assert whole is not None and not whole.detail
    assert total == pytest.approx(whole.value * subject.count_bytes(tokens[1:]))


def test_tokens_without_bytes_have_a_perplexity_alone(tmp_path: Path) -> None:
    record = measure(tmp_path, "b.bb", 4)
    assert list(bits(record)) == [(2, 4)]
    first = record.find("perplexity", 4, **{"from": 1})
    assert first is not None and first.value == pytest.approx(math.e)


def test_windows_are_spread_over_the_text(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("".join(c * 8 for c in "abcdefghij"))
    task = LanguageModelling(lengths=(4, 8), text=file, samples=3).bind(Uneven())
    assert bytes(task.windows.flatten().tolist()) == b"bbbbbbbbffffffffiiiiiiii"
    assert task.used == 24
