"""Text to hide things in: any file or folder of text, cut at words and sentences.

Reading is the only side effect in this folder; everything else is a function of its arguments.
"""

import json
from bisect import bisect_right
from functools import cached_property
from pathlib import Path

import numpy as np

from titans.errors import DataError
from titans.files import read_text
from titans.tasks.text.sentences import split_sentences


def read_books(path: str | Path) -> list[str]:
    """The texts under `path`: one file, or every `*.txt` of a folder in the order of its names.

    A `.json` file must hold `{"text": "..."}` (the form of RULER's essays).
    """
    place = Path(path)
    if not place.exists():
        raise DataError(f"no such text: {place}; give a file or a folder of .txt files")
    files = sorted(place.glob("*.txt")) if place.is_dir() else [place]
    if not files:
        raise DataError(f"{place} holds no .txt file; give a file or a folder of .txt files")
    books = [_read_book(file) for file in files]
    if not any(book.strip() for book in books):
        raise DataError(f"{place} holds no text at all")
    return books


def _read_book(file: Path) -> str:
    text = read_text(file)
    if file.suffix != ".json":
        return text
    try:
        return str(json.loads(text)["text"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f'{file} must hold {{"text": "..."}}: {error!r}') from None


class Essay:
    """A text as words and sentences, from which any number of first words can be taken.

    White space is collapsed. A number beyond the text's end starts it again from word 0.
    """

    def __init__(self, text: str) -> None:
        self._words = text.split()
        if not self._words:
            raise DataError("the haystack holds no words")

    @classmethod
    def load(cls, path: str | Path) -> "Essay":
        """The texts under `path` (see `read_books`), one after the other."""
        return cls("\n".join(read_books(path)))

    @cached_property
    def _sentences(self) -> tuple[list[str], list[int]]:
        """The sentences of one round, and the number of words up to the end of each."""
        sentences = split_sentences(" ".join(self._words))
        return sentences, np.cumsum([len(s.split()) for s in sentences]).tolist()

    @property
    def num_sentences(self) -> int:
        """Sentences of one round."""
        return len(self._sentences[0])

    def take_sentences(self, num_words: int, first: int = 0) -> list[str]:
        """`num_words` words as sentences, from sentence `first`, the last one cut where they end.

        From the first sentence this equals splitting the text's first `num_words` words, except
        that each round ends a sentence.
        """
        sentences, ends = self._sentences
        skipped = ends[first - 1] if first else 0
        rounds, rest = divmod(skipped + num_words, len(self._words))
        whole = bisect_right(ends, rest)
        begun = rest - (ends[whole - 1] if whole else 0)
        pieces = [*(sentences * rounds), *sentences[:whole]]
        if begun:
            pieces.append(" ".join(sentences[whole].split()[:begun]))
        return pieces[first:]
