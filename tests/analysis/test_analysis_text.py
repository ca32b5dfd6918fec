"""Text files as tokens: every character belongs to one token, whatever the pieces."""

from pathlib import Path

import pytest
import torch

from titans.analysis import text as text_module
from titans.analysis.text import read_text, tokenize, unknown_share
from titans.data.tokenizer import byte_tokenizer, encode_document, train_bpe
from titans.errors import DataError
from titans.tasks.needle import needle_tokenizer

SAMPLE = "Two  spaces,\n\na line break; naïve €, 日本語 and 🙂 end. " * 30


@pytest.mark.parametrize("piece", [40, 1 << 16])
def test_tokens_cover_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(text_module, "PIECE", piece)
    path = tmp_path / "sample.txt"
    path.write_text(SAMPLE, encoding="utf-8")
    for tokenizer in (byte_tokenizer(), train_bpe(iter([SAMPLE]), 300)):
        passages = list(tokenize(read_text(path), tokenizer))
        assert (len(passages) > 5) == (piece == 40)
        assert "".join(text for p in passages for text in p.texts) == SAMPLE
        assert all(len(p.ids) == len(p.texts) for p in passages)
        ids = torch.cat([p.ids for p in passages])
        assert ids.tolist() == encode_document(tokenizer, SAMPLE).tolist()


def test_bytes_of_one_character_share_it() -> None:
    (passage,) = tokenize(iter(["a€b"]), byte_tokenizer())
    assert passage.texts == ["a", "", "", "€", "b"]


def test_words_carry_the_space_before_them() -> None:
    (passage,) = tokenize(iter(["REMEMBER alice\nlisbon  "]), needle_tokenizer())
    assert passage.texts == ["REMEMBER", " alice", "\nlisbon  "]


def test_unknown_words_are_counted() -> None:
    tokenizer = needle_tokenizer()
    (passage,) = tokenize(iter(["alice met quark in lisbon"]), tokenizer)
    assert unknown_share(passage.ids.tolist(), tokenizer) == pytest.approx(2 / 5)
    assert unknown_share([1, 2], byte_tokenizer()) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"ok\0ok", "byte 2 is zero"),
        (b"caf\xe9 latin", r"not UTF-8 text at byte 3 \(0xe9\)"),
        (b"x" * 100 + b"\xff\xfe", r"byte 100 \(0xff\)"),
        ("abc€".encode()[:-1], "cut off"),
    ],
)
def test_what_is_no_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.setattr(text_module, "PIECE", 64)
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_text(path))
    with pytest.raises(DataError, match="is a folder"):
        list(read_text(tmp_path))


def test_characters_split_between_reads_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "PIECE", 7)
    path = tmp_path / "long.txt"
    content = "日本語" * 40
    path.write_text(content, encoding="utf-8")
    pieces = list(read_text(path))
    assert "".join(pieces) == content
    assert len(pieces) > 1
