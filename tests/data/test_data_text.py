"""Tokenizers, corpora and packing."""

import gzip
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from titans.data.corpus import Corpus, find_files
from titans.data.packing import open_packed, pack
from titans.data.tokenizer import (
    byte_tokenizer,
    count_bytes,
    encode_document,
    is_byte_tokenizer,
    load_tokenizer,
    train_bpe,
)
from titans.errors import DataError
from titans.tasks.needle import needle_tokenizer

TASKS = Path(__file__).parents[2] / "configs" / "tokenizers" / "tasks-1k"
TEXT = "Grüße, Welt!\n\tEnd \x00 ☃ <|eos|> done"


def test_byte_tokenizer_is_the_bytes_and_survives_saving(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    ids = encode_document(tokenizer, TEXT)
    assert ids.tolist() == list(TEXT.encode())
    assert len(tokenizer) == 259
    assert tokenizer("ab☃").input_ids == list("ab☃".encode())
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert is_byte_tokenizer(loaded)
    assert loaded.decode(ids) == TEXT
    assert loaded.eos_token_id == 258
    assert (loaded.pad_token_id, loaded.bos_token_id) == (256, 257)


def test_bpe_is_lossless_and_loads_from_folder_and_file(tmp_path: Path) -> None:
    lines = [f"the cat number {i} sat on the mat\n" for i in range(200)]
    tokenizer = train_bpe(iter(lines), 300)
    assert 259 < len(tokenizer) <= 300
    tokenizer.save_pretrained(tmp_path)
    for name in (str(tmp_path), str(tmp_path / "tokenizer.json")):
        loaded = load_tokenizer(name)
        ids = encode_document(loaded, TEXT)
        assert loaded.decode(ids, clean_up_tokenization_spaces=False) == TEXT
        assert loaded.eos_token_id not in ids
        assert loaded.eos_token == "<|eos|>"
    assert len(encode_document(tokenizer, lines[0])) < len(lines[0])


def test_a_vocabulary_in_which_two_tokens_share_a_number_is_refused(tmp_path: Path) -> None:
    """The library reads it, and fails when it copies it."""
    trained = train_bpe(iter(["the cat sat on the mat\n"] * 20), 300)
    content = json.loads(trained.backend_tokenizer.to_str())
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    made = ["".join(pair) for pair in merges]
    vocabulary[made[1]] = vocabulary[made[0]]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"not a tokenizer\.json file"):
        load_tokenizer(str(file))


@pytest.mark.parametrize("name", ["bytes", str(TASKS), "trained", "added"])
def test_bytes_are_counted_exactly_wherever_the_tokens_are_cut(name: str) -> None:
    text = TEXT * 3
    if name in ("trained", "added"):
        # Merges over part of a character: tokens that are no text by themselves.
        tokenizer = train_bpe(iter(["\N{SNOWMAN}\N{EURO SIGN} Grüße " * 20]), 300)
    else:
        tokenizer = load_tokenizer(name)
    if name == "added":
        tokenizer.add_tokens(["Welt!"])
    ids = encode_document(tokenizer, text)
    assert count_bytes(tokenizer, ids) == len(text.encode())
    for cut in range(len(ids) + 1):
        parts = count_bytes(tokenizer, ids[:cut]), count_bytes(tokenizer, ids[cut:])
        assert sum(parts) == len(text.encode())
    ended = np.append(ids, int(tokenizer.eos_token_id))  # type: ignore[arg-type]
    assert count_bytes(tokenizer, ended) == len(text.encode())


def test_bytes_of_other_tokenizers_are_those_of_the_decoded_text() -> None:
    tokenizer = needle_tokenizer()
    ids = np.asarray(tokenizer("REMEMBER alice lisbon").input_ids, dtype=np.int64)
    assert count_bytes(tokenizer, ids) == len("REMEMBER alice lisbon")


def test_tokenizer_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tokenizer at"):
        load_tokenizer(str(tmp_path / "nothing"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match=r"not a tokenizer\.json"):
        load_tokenizer(str(tmp_path / "bad.json"))
    with pytest.raises(DataError, match="needs more than 259"):
        train_bpe(iter(["x"]), 100)


def test_folder_of_mixed_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "und eins"}\n')
    (tmp_path / "sub").mkdir()
    with gzip.open(tmp_path / "sub" / "c.md.gz", "wt") as file:
        file.write("three")
    (tmp_path / "SOURCE").write_text("not a text")
    files = find_files(tmp_path)
    assert [f.name for f in files] == ["a.jsonl", "b.txt", "c.md.gz"]
    assert list(Corpus(files=files).documents()) == ["one", "und eins", "two", "three"]


def test_separator_and_max_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("eins<|end|>zwei<|end|>\n<|end|>drei")
    parts = Corpus(files=(path,), separator="<|end|>")
    assert list(parts.documents()) == ["eins", "zwei", "drei"]
    path.write_text("ää")
    assert list(Corpus(files=(path,), max_bytes=3).documents()) == ["ä"]
    assert list(Corpus(files=(path,), max_bytes=4).documents()) == ["ää"]


def test_hugging_face_datasets(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"body": ["one", "two"]})
    rows.save_to_disk(str(tmp_path / "saved"))
    corpus = Corpus(dataset=str(tmp_path / "saved"), text_field="body")
    assert list(corpus.documents()) == ["one", "two"]
    with pytest.raises(DataError, match="no text under 'text', found: body"):
        list(Corpus(dataset=str(tmp_path / "saved")).documents())
    folder = tmp_path / "by-name"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "three"}\n')
    assert list(Corpus(dataset=str(folder)).documents()) == ["three"]
    with pytest.raises(DataError, match="cannot be loaded"):
        list(Corpus(dataset=str(tmp_path / "missing")).documents())


def test_corpus_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        find_files(tmp_path / "nothing")
    with pytest.raises(DataError, match="no files ending in"):
        find_files(tmp_path)
    bad = tmp_path / "latin.txt"
    bad.write_bytes(b"caf\xe9 au lait, avec du lait")
    with pytest.raises(DataError, match=r"not UTF-8 text at byte 3 \(0xe9\)"):
        list(Corpus(files=(bad,)).documents())
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "ok"}\n{"text": \n')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        list(Corpus(files=(broken,)).documents())
    cut = tmp_path / "cut.txt.gz"
    whole = gzip.compress(b"hello" * 1000)
    flipped = bytearray(whole)
    flipped[20] ^= 4
    for damaged in (whole[:-20], bytes(flipped)):
        cut.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read"):
            list(Corpus(files=(cut,)).documents())


def test_packing_round_trip_and_index(tmp_path: Path) -> None:
    source = tmp_path / "docs.jsonl"
    documents = ["alpha", "beta gamma", "ä"]
    source.write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    tokenizer = byte_tokenizer()
    packed = pack(Corpus(files=(source,)), tokenizer, tmp_path / "cache")
    assert isinstance(packed.tokens.base, np.memmap) or isinstance(packed.tokens, np.memmap)
    pieces = [
        bytes(packed.tokens[a : b - 1].astype(np.uint8)).decode()
        for a, b in zip(packed.starts[:-1], packed.starts[1:], strict=True)
    ]
    assert pieces == documents
    assert all(packed.tokens[packed.starts[1:] - 1] == tokenizer.eos_token_id)
    num_bytes = sum(len(d.encode()) for d in documents)
    assert packed.bytes_per_token == num_bytes / len(packed.tokens)


def test_packing_is_reused_until_something_changes(tmp_path: Path) -> None:
    source, cache = tmp_path / "t.txt", tmp_path / "cache"
    source.write_text("hello")
    tokenizer = byte_tokenizer()
    pack(Corpus(files=(source,)), tokenizer, cache)
    (folder,) = cache.iterdir()
    stamp = (folder / "tokens.bin").stat().st_mtime_ns
    pack(Corpus(files=(source,)), tokenizer, cache)
    assert (folder / "tokens.bin").stat().st_mtime_ns == stamp
    source.write_text("HELLO")
    os.utime(source, ns=(time.time_ns(), time.time_ns() + 10**9))
    packed = pack(Corpus(files=(source,)), tokenizer, cache)
    assert bytes(packed.tokens[:5].astype(np.uint8)) == b"HELLO"
    pack(Corpus(files=(source,)), train_bpe(iter(["ab ab ab"] * 9), 261), cache)
    assert len(list(cache.iterdir())) == 3


def test_packing_errors(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    cache = tmp_path / "cache"
    with pytest.raises(DataError, match="the corpus is empty"):
        pack(Corpus(files=(empty,)), byte_tokenizer(), cache)
    assert list(cache.iterdir()) == []
    full = tmp_path / "full.txt"
    full.write_text("x" * 100)
    pack(Corpus(files=(full,)), byte_tokenizer(), cache)
    (folder,) = cache.iterdir()
    with (folder / "tokens.bin").open("r+b") as file:
        file.truncate(50)
    with pytest.raises(DataError, match="25 tokens where 101 belong"):
        open_packed(folder)


def test_split_keeps_the_index(tmp_path: Path) -> None:
    source = tmp_path / "docs.jsonl"
    source.write_text("".join(json.dumps({"text": "x" * 9}) + "\n" for _ in range(10)))
    packed = pack(Corpus(files=(source,)), byte_tokenizer(), tmp_path / "cache")
    train, held_out = packed.split(0.25)
    assert len(train.tokens) == 75
    assert train.starts.tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 75]
    assert held_out.starts.tolist() == [0, 5, 15, 25]
