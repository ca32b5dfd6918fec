"""Pack a corpus once into a memory-mapped file of tokens with an index of its documents.

A packed corpus is a folder: `tokens.bin` (uint16 or uint32, documents one after another, each
closed by the end-of-document token), `documents.npy` (where each begins) and `meta.json`. Its name
is a hash of everything it depends on, so an unchanged corpus is never packed twice and a changed
one never reused. The folder appears by one rename: it is whole or not there.
"""

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from titans.data.corpus import Corpus
from titans.data.tokenizer import encode_document, end_token, tokenizer_fingerprint
from titans.errors import DataError, FileError
from titans.files import new_folder

FORMAT_VERSION = 1


@dataclass(frozen=True)
class PackedMeta:
    """The small facts about a packed corpus, as in `meta.json`."""

    version: int
    dtype: str
    num_tokens: int
    num_documents: int
    num_bytes: int
    """UTF-8 bytes of the text, end-of-document tokens not counted."""
    end_token: int
    corpus: str


@dataclass(frozen=True)
class PackedTokens:
    """A slice of a packed corpus: tokens (not yet read from disk) and where documents begin."""

    tokens: NDArray[np.integer]
    """A memory map, or a view of one."""
    starts: NDArray[np.int64]
    """Start of each document, and the number of tokens at the end: one more than documents."""
    bytes_per_token: float
    """For bits per byte."""
    name: str
    """The corpus, for messages."""

    def split(self, fraction: float) -> tuple["PackedTokens", "PackedTokens"]:
        """The first part and the last `fraction` of the tokens; a document may be cut there."""
        cut = len(self.tokens) - max(1, round(len(self.tokens) * fraction))
        return self._slice(0, cut), self._slice(cut, len(self.tokens))

    def _slice(self, begin: int, end: int) -> "PackedTokens":
        inside = self.starts[(self.starts > begin) & (self.starts < end)] - begin
        starts = np.concatenate([[0], inside, [end - begin]]).astype(np.int64)
        return PackedTokens(self.tokens[begin:end], starts, self.bytes_per_token, self.name)


def pack(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, cache_dir: str | Path | None = None
) -> PackedTokens:
    """The packed form of `corpus`, built on first use (with a progress bar) and then reused."""
    identity = {
        "version": FORMAT_VERSION,
        "corpus": corpus.identity(),
        "tokenizer": tokenizer_fingerprint(tokenizer),
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
    folder = cache_folder(cache_dir) / f"packed-{key}"
    if not (folder / "meta.json").is_file():
        _build(folder, corpus, tokenizer)
    return open_packed(folder)


def cache_folder(cache_dir: str | Path | None) -> Path:
    """Where packed corpora are kept."""
    chosen = cache_dir or os.environ.get("TITANS_CACHE") or Path.home() / ".cache" / "titans"
    return Path(chosen)


def open_packed(folder: Path) -> PackedTokens:
    """Map a packed corpus into memory."""
    try:
        meta = PackedMeta(**json.loads((folder / "meta.json").read_text()))
        starts = np.load(folder / "documents.npy")
        tokens = np.memmap(folder / "tokens.bin", dtype=np.dtype(meta.dtype), mode="r")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{folder}: damaged packed corpus, delete the folder ({error})") from error
    if len(tokens) != meta.num_tokens or starts[-1] != meta.num_tokens:
        raise DataError(
            f"{folder}: {len(tokens)} tokens where {meta.num_tokens} belong; delete the folder"
        )
    return PackedTokens(tokens, starts, meta.num_bytes / meta.num_tokens, meta.corpus)


def _build(folder: Path, corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    try:
        with new_folder(folder) as part:
            _write(part, corpus, tokenizer)
    except FileError as error:
        raise DataError(f"the packed corpus cannot be kept: {error} (data.cache_dir)") from error


def _write(folder: Path, corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    closing = end_token(tokenizer)
    dtype = np.dtype(np.uint16 if len(tokenizer) <= np.iinfo(np.uint16).max + 1 else np.uint32)
    starts, num_bytes = [0], 0
    bar = tqdm(
        total=corpus.size_hint() or None,
        desc=f"packing {corpus.name}",
        unit="B",
        unit_scale=True,
        delay=1.0,
        mininterval=0.5 if sys.stderr.isatty() else 10.0,
        file=sys.stderr,
    )
    with bar, (folder / "tokens.bin").open("wb") as file:
        for text in corpus.documents():
            ids = encode_document(tokenizer, text)
            file.write(ids.astype(dtype).tobytes())
            file.write(np.asarray([closing], dtype=dtype).tobytes())
            starts.append(starts[-1] + len(ids) + 1)
            size = len(text.encode())
            num_bytes += size
            bar.update(size)
    if num_bytes == 0:
        raise DataError(f"{corpus.name}: the corpus is empty, there is no text to train on")
    np.save(folder / "documents.npy", np.asarray(starts, dtype=np.int64))
    meta = PackedMeta(
        version=FORMAT_VERSION,
        dtype=dtype.name,
        num_tokens=starts[-1],
        num_documents=len(starts) - 1,
        num_bytes=num_bytes,
        end_token=closing,
        corpus=corpus.name,
    )
    (folder / "meta.json").write_text(json.dumps(asdict(meta), indent=1))
