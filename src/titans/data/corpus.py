"""Find and read documents: text and JSONL files (also gzipped), folders, Hugging Face datasets."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from titans import shipped
from titans.errors import DataError
from titans.files import not_utf8, parse_json

TEXT_SUFFIXES = (".txt", ".text", ".md")
JSONL_SUFFIXES = (".jsonl", ".ndjson")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A text source: either files, or a Hugging Face dataset."""

    files: tuple[Path, ...] = ()
    """Read in this order."""
    dataset: str | None = None
    """A dataset's name or folder, instead of files."""
    dataset_config: str | None = None
    dataset_split: str = "train"
    text_field: str = "text"
    """The text's key in JSONL lines and dataset rows."""
    separator: str | None = None
    """Text files are cut into documents here."""
    max_bytes: int | None = None
    """Stop after this many bytes."""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        if self.dataset is not None:
            return f"dataset {self.dataset}"
        first = str(self.files[0])
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    def size_hint(self) -> int:
        """About how many bytes there are to read, for a progress bar. 0: unknown."""
        total = sum(f.stat().st_size * (3 if f.suffix == ".gz" else 1) for f in self.files)
        return min(total, self.max_bytes) if self.max_bytes and total else total

    def identity(self) -> dict[str, object]:
        """Everything that the documents depend on: files by size and time of change."""
        stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in self.files]
        return {
            "files": stats,
            "dataset": [self.dataset, self.dataset_config, self.dataset_split],
            "text_field": self.text_field,
            "separator": self.separator,
            "max_bytes": self.max_bytes,
        }

    def documents(self) -> Iterator[str]:
        """The documents in order, empty ones left out."""
        left = self.max_bytes
        for text in self._documents():
            if not text:
                continue
            if left is None:
                yield text
                continue
            encoded = text.encode()
            # A cut may split a character: its first bytes are dropped.
            yield encoded[:left].decode(errors="ignore") if len(encoded) > left else text
            left -= len(encoded)
            if left <= 0:
                return

    def lines(self) -> Iterator[str]:
        """The text line by line, line ends included: small pieces for learning a vocabulary."""
        for text in self.documents():
            yield from text.splitlines(keepends=True)

    def _documents(self) -> Iterator[str]:
        if self.dataset is not None:
            yield from _read_dataset(self)
        for path in self.files:
            if _plain_suffix(path) in JSONL_SUFFIXES:
                yield from _read_jsonl(path, self.text_field)
            else:
                yield from _read_text(path, self.separator, self.max_bytes)


def find_files(path: str | Path) -> tuple[Path, ...]:
    """The text and JSONL files at `path` (a file, a folder and its subfolders, a shipped text)."""
    path = shipped.find_text(path)
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder (data.path)")
    known = TEXT_SUFFIXES + JSONL_SUFFIXES
    files = sorted(f for f in path.rglob("*") if f.is_file() and _plain_suffix(f) in known)
    if not files:
        raise DataError(f"{path}: no files ending in {', '.join(known)} (or those with .gz) here")
    return tuple(files)


def _plain_suffix(path: Path) -> str:
    """The suffix, looking through `.gz`."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _read_text(path: Path, separator: str | None, max_bytes: int | None) -> Iterator[str]:
    limit = -1 if max_bytes is None else max_bytes + 4
    try:
        with _open(path) as file:
            content = file.read(limit)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if max_bytes is None or error.start < len(content) - 4:
            raise not_utf8(path, error) from error
        text = content[: error.start].decode()
    if separator is None:
        yield text
    else:
        yield from (part for part in text.split(separator) if part.strip())


def _read_jsonl(path: Path, text_field: str) -> Iterator[str]:
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield _text_of(parse_json(line, where), text_field, where)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _read_dataset(corpus: Corpus) -> Iterator[str]:
    from datasets import load_dataset, load_from_disk

    name = corpus.dataset or ""
    try:
        if (Path(name) / "dataset_info.json").is_file():
            rows = load_from_disk(name)
        elif (Path(name) / "dataset_dict.json").is_file():
            rows = load_from_disk(name)[corpus.dataset_split]
        else:
            rows = load_dataset(name, corpus.dataset_config, split=corpus.dataset_split)
    except Exception as error:  # `datasets` raises errors of many libraries
        reason = str(error).strip().split("\n")[0]
        raise DataError(f"dataset {name!r} cannot be loaded: {reason}") from error
    for number, row in enumerate(rows):
        yield _text_of(row, corpus.text_field, f"dataset {name}, row {number}")


def _text_of(row: object, text_field: str, where: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(text_field), str):
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise DataError(
            f"{where}: no text under {text_field!r}, found: {found} (set data.text_field)"
        )
    return str(row[text_field])
