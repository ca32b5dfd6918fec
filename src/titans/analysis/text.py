"""A text file as tokens, piece by piece, each token with the text that it stands for."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from titans.analysis.records import Passage
from titans.errors import DataError
from titans.files import not_utf8

PIECE = 1 << 16
"""Characters tokenized at a time."""
# Byte-level and word tokenizers never join what stands on the two sides of this.
_CUT = re.compile(r"(?<=\S)(?=\s\S)")


def read_text(path: str | Path) -> Iterator[str]:
    """The text of a file in pieces of about `PIECE` characters, cut between words."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a text file")
    rest, offset, is_empty = "", 0, True
    with path.open("rb") as file:
        held = b""
        while block := file.read(PIECE):
            is_empty = False
            text, held = _decode(held + block, path, offset - len(held))
            offset += len(block)
            rest += text
            # Long lines without a space are cut where they are.
            cuts = [m.start() for m in _CUT.finditer(rest, max(0, len(rest) - PIECE // 2))]
            if cuts:
                yield rest[: cuts[-1]]
                rest = rest[cuts[-1] :]
            elif len(rest) > 8 * PIECE:
                yield rest
                rest = ""
        if held:
            raise DataError(f"{path}: its last character is cut off (byte {offset - len(held)})")
    if is_empty:
        raise DataError(f"{path} is empty: there is nothing to analyse")
    if rest:
        yield rest


def _decode(content: bytes, path: Path, offset: int) -> tuple[str, bytes]:
    """Text, and the bytes of a last character that is not complete yet."""
    zero = content.find(b"\0")
    if zero >= 0:
        raise DataError(
            f"{path} is not a text: byte {offset + zero} is zero. Give plain text in UTF-8"
        )
    try:
        return content.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and len(content) - error.start < 4:
            return content[: error.start].decode(), content[error.start :]
        raise not_utf8(path, error, offset) from error


def tokenize(pieces: Iterator[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[Passage]:
    """Every piece as tokens with their texts; what lies between two tokens goes to the second."""
    is_fast = bool(tokenizer.is_fast)
    for text in pieces:
        encoded = tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=is_fast,
            verbose=False,
        )
        ids = encoded["input_ids"]
        if not ids:
            continue
        if is_fast:
            texts = _cover(text, [end for _, end in encoded["offset_mapping"]])
        else:
            texts = list(tokenizer.convert_ids_to_tokens(ids))
        yield Passage(torch.tensor(ids, dtype=torch.long), texts)


def _cover(text: str, ends: list[int]) -> list[str]:
    """Cut the text at the ends of its tokens. Tokens inside one character get it at the last."""
    texts, begin = [], 0
    for number, end in enumerate(ends):
        following = ends[number + 1] if number + 1 < len(ends) else len(text)
        if end == following and number + 1 < len(ends):
            # Another token ends at the same place: the character is complete only there.
            texts.append("")
            continue
        texts.append(text[begin:end])
        begin = end
    texts[-1] += text[begin:]
    return texts


def unknown_share(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> float:
    """Share of tokens that stand for words the tokenizer does not know."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    unknown = tokenizer.unk_token or getattr(getattr(backend, "model", None), "unk_token", None)
    if not isinstance(unknown, str) or not ids:
        return 0.0
    return ids.count(tokenizer.get_vocab()[unknown]) / len(ids)
