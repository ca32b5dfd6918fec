"""Tokenizers: bytes (the default, needs nothing), any Hugging Face tokenizer, and our own BPE.

All of them are Hugging Face tokenizers, so they save with a checkpoint and load with
`AutoTokenizer.from_pretrained`. In the byte tokenizer the id of a byte is its value.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from titans import shipped
from titans.errors import DataError

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
SPECIAL_TOKENS = (PAD, BOS, EOS)
NUM_BYTES = 256


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte (ids 0 to 255), then padding, beginning and end of document."""
    alphabet = _byte_alphabet()
    backend = Tokenizer(BPE(vocab={char: byte for byte, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _wrap(backend)


@lru_cache(maxsize=8)
def is_byte_tokenizer(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether ids 0 to 255 are the bytes themselves, so that encoding is a plain copy."""
    alphabet = _byte_alphabet()
    return len(tokenizer) == NUM_BYTES + len(SPECIAL_TOKENS) and all(
        tokenizer.convert_tokens_to_ids(char) == byte for byte, char in enumerate(alphabet)
    )


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """`bytes`, a folder, a `tokenizer.json` file, or a name on the Hugging Face hub."""
    if name == "bytes":
        return byte_tokenizer()
    path = shipped.find_config(name)
    if path.is_file():
        return _load_file(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    except Exception as error:  # `tokenizers` raises plain `Exception`s
        reason = str(error).strip().split("\n")[0]
        raise DataError(
            f"no tokenizer at {name!r}: give `bytes`, a folder or tokenizer.json file, "
            f"or a name on the Hugging Face hub ({reason})"
        ) from error
    return _with_end_of_document(tokenizer, name)


def train_bpe(texts: Iterator[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE vocabulary, digits apart. Lossless: every text decodes to itself.

    Args:
        vocab_size: the size of the whole vocabulary, with the 256 bytes and the special tokens.
    """
    smallest = NUM_BYTES + len(SPECIAL_TOKENS)
    if vocab_size <= smallest:
        raise DataError(
            f"a BPE vocabulary needs more than {smallest} entries (256 bytes and "
            f"{len(SPECIAL_TOKENS)} special tokens), got {vocab_size}"
        )
    backend = Tokenizer(BPE())
    # Every digit by itself, so that a number is spelled the same way wherever it stands.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() <= NUM_BYTES:
        raise DataError("the text is too short to learn a vocabulary from: give more of it")
    return _wrap(backend)


def encode_document(tokenizer: PreTrainedTokenizerBase, text: str) -> NDArray[np.int64]:
    """The ids of `text`, without special tokens, even where the text spells one out."""
    if is_byte_tokenizer(tokenizer):
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
    ids = tokenizer(
        text,
        add_special_tokens=False,
        split_special_tokens=True,
        verbose=False,
    ).input_ids
    return np.asarray(ids, dtype=np.int64)


def count_bytes(tokenizer: PreTrainedTokenizerBase, ids: NDArray[np.int64]) -> int:
    """Bytes of text that the ids stand for, also where they cut a character; special ones are 0.

    Exact for bytes and for byte-level BPE; for other tokenizers the size of the decoded text.
    """
    lengths = _token_lengths(tokenizer)
    if lengths is None:
        return len(str(tokenizer.decode(ids.tolist(), skip_special_tokens=True)).encode())
    return int(lengths[ids].sum())


@lru_cache(maxsize=8)
def _token_lengths(tokenizer: PreTrainedTokenizerBase) -> NDArray[np.int64] | None:
    """Bytes of each token by its id; None where a token is not a plain run of bytes."""
    alphabet = set(_byte_alphabet())
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.added_tokens_decoder
    if not alphabet <= set(vocabulary):
        return None
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for token, number in vocabulary.items():
        if number in added:
            # An added token is written as it is read; a special one is no text.
            lengths[number] = 0 if added[number].special else len(token.encode())
        elif alphabet.issuperset(token):
            lengths[number] = len(token)
        else:
            return None
    return lengths


def end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that closes a document."""
    return cast(int, tokenizer.eos_token_id)


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills up a batch."""
    return cast(int, tokenizer.pad_token_id)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash that changes when the tokenizer would encode differently."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab()))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(NUM_BYTES, 2 * NUM_BYTES))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(NUM_BYTES)]


def _wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _load_file(path: Path) -> PreTrainedTokenizerBase:
    try:
        backend = Tokenizer.from_file(str(path))
        if EOS in backend.get_vocab(with_added_tokens=True):
            return _wrap(backend)
        # It copies the backend, and so reads all of it once more.
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    except Exception as error:  # the `tokenizers` library raises bare Exception
        reason = str(error).strip().split("\n")[0]
        raise DataError(f"{path}: not a tokenizer.json file ({reason})") from error
    return _with_end_of_document(tokenizer, str(path))


def _with_end_of_document(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """Documents end with the end-of-sequence token, so there must be one; padding borrows it."""
    if tokenizer.eos_token_id is None:
        for stand_in in (tokenizer.sep_token, "<|endoftext|>", "</s>"):
            if stand_in is not None and stand_in in tokenizer.get_vocab():
                tokenizer.eos_token = stand_in
                break
        else:
            raise DataError(f"the tokenizer {name!r} has no end-of-sequence token (eos_token)")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
