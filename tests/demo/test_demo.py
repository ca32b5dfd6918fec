"""The demonstration: secrets are found in the shipped book, and nothing else is promised."""

from pathlib import Path

import numpy as np
import pytest
import torch

from titans import shipped
from titans.cli import demo
from titans.cli.main import main
from titans.demo.picture import COLUMNS, average_line, marks, peak_line
from titans.demo.reader import Reader
from titans.demo.secret import NUMBER, Secret, check_secrets, draw_secrets, hide
from titans.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent


def test_the_model_is_the_published_checkpoint() -> None:
    for file in shipped.DEMO["mac"].iterdir():
        assert file.read_bytes() == (ROOT / "checkpoints/babilong-tasks" / file.name).read_bytes()


def test_secrets_are_parsed_and_refused_in_one_sentence() -> None:
    secret = Secret.parse("mary is in the GARDEN")
    assert (secret.sentence, secret.question) == ("Mary went to the garden.", "Where is Mary?")
    for text in ("the code is 4417", "Mary and John went to the garden", "Mary went home"):
        with pytest.raises(ConfigError, match="names one person and one place"):
            Secret.parse(text)
    with pytest.raises(ConfigError, match="up to 3"):
        check_secrets([secret] * 4)
    with pytest.raises(ConfigError, match="same person"):
        check_secrets([secret, Secret("Mary", "kitchen")])


def test_secrets_lie_in_different_parts_of_the_book() -> None:
    rng = np.random.default_rng(1)
    secrets = draw_secrets(rng)
    book = "One sentence here. Another one there. " * 60
    sentences, places = hide(book, secrets, rng)
    assert [sentences[place] for place in places] == [secret.sentence for secret in secrets]
    assert len(sentences) == 120 + NUMBER
    assert [int(NUMBER * place / len(sentences)) for place in places] == [0, 1, 2]


def test_lines_show_where_the_numbers_are_large() -> None:
    values = torch.zeros(6_400)
    values[3_205] = 5.0
    assert len(average_line(values)) == len(peak_line(values)) == COLUMNS
    assert peak_line(values).strip() == "█" and peak_line(values).index("█") == 32
    assert marks([0.501]).index("^") == 32


def read_and_ask(seed: int, characters: int) -> tuple[int, Reader]:
    rng = np.random.default_rng(seed)
    secrets = draw_secrets(rng)
    book = shipped.SAMPLE_TEXT.read_text(encoding="utf-8")[:characters]
    sentences, _ = hide(book, secrets, rng)
    reader = Reader.load(shipped.DEMO["mac"])
    reader.read([t for s in sentences for t in reader.encode(f" {s}")], lambda count: None)
    return sum(reader.answer(s.question).startswith(s.place) for s in secrets), reader


def test_secrets_are_found_in_a_chapter_with_a_state_that_does_not_grow() -> None:
    found, reader = read_and_ask(seed=3, characters=9_000)
    assert found == NUMBER
    assert len(reader.state_bytes) > 2 and len(set(reader.state_bytes)) == 1
    assert reader.surprise.shape == reader.writes.shape and (reader.writes > 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_all_secrets_are_found_in_the_whole_book(seed: int) -> None:
    assert read_and_ask(seed, characters=10**6)[0] == NUMBER


def test_the_command_asks_both_models_and_shows_the_text_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    book = tmp_path / "book.txt"
    book.write_text(shipped.SAMPLE_TEXT.read_text(encoding="utf-8")[:6_000], encoding="utf-8")
    monkeypatch.setattr(shipped, "SAMPLE_TEXT", book)
    assert main(["demo", "--secret", "Mary went to the garden", "--seed", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    asked = lines.index("Where is Mary?")
    assert lines[asked + 1].split()[-2:] == ["garden", "right"]
    assert lines[asked + 2].startswith("  without memory:")
    for thing, question in zip(demo.THINGS, demo.QUESTIONS, strict=True):
        answered = next(line for line in lines if line.startswith(f"  {question}"))
        assert answered.endswith(thing)
    assert max(map(len, lines)) <= 100
    assert main(["demo", "--secret", "the code is 4417"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
