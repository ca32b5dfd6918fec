"""Passages: a text cut to fit the encoder, and what is kept of each piece for search.

One pass of the encoder over "speaker: text" gives them all. The vector in context pools every
token, the bare one only those of the text itself, the token vectors stay apart for late
interaction (each word of a question looks for its own best match).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from titans.recall.encoder import Encoder, Pooling, TokenVectors
from titans.recall.store import StoredPassage
from titans.recall.text.acts import acts_of
from titans.recall.text.words import cut_spans, is_question, sentences, tells_when, terms
from titans.recall.vectors import round_half, unit

TOKEN_DIM = 128
"""Width of a stored token vector: a random projection, eight bits a number."""
IS_QUESTION, TELLS_WHEN, IS_OUTSIDE, HAS_ACTS = 1, 2, 4, 8
"""Flags of a passage: it ends in a question; it says when; the encoder does not know its language
(no vectors, words in pieces); the share that tells nothing stands behind `ACTS_SHIFT`. Passages of
older stores have only the first two."""
ACTS_SHIFT, ACTS_STEPS = 8, 15
BATCH_TOKENS = 1024
"""Tokens in one pass of the encoder: more are not faster on a processor, and take more memory."""
MAX_CHARS = 2_000_000
"""Of one text; its passages are in memory at once until they are stored."""


@dataclass(frozen=True)
class EncodedPassage:
    """One passage after the encoder: two vectors, small token vectors, stems, flags."""

    text: str
    terms: list[str]
    flags: int
    in_context: NDArray[np.float32]
    bare: NDArray[np.float32]
    tokens: NDArray[np.int8]

    def to_stored(self) -> StoredPassage:
        """As kept in the store."""
        vectors = np.stack([self.in_context, self.bare]).astype(np.float16).tobytes()
        return StoredPassage(self.terms, self.flags, vectors, self.tokens.tobytes())


def encode_passages(
    encoder: Encoder,
    pooling: Pooling,
    speaker: str | None,
    text: str,
    progress: Callable[[int, int], None] | None = None,
) -> list[EncodedPassage]:
    """The passages of a text, in order; a text that fits is one passage.

    Args:
        progress: called with (passages encoded, passages to encode).
    """
    return encode_many(encoder, pooling, [(speaker, text)], progress)[0]


def encode_many(
    encoder: Encoder,
    pooling: Pooling,
    texts: Sequence[tuple[str | None, str]],
    progress: Callable[[int, int], None] | None = None,
) -> list[list[EncodedPassage]]:
    """The passages of each (speaker, text): each distinct one once, those of equal length together.

    Args:
        progress: called with (passages encoded, passages to encode).
    """
    parts: list[tuple[str, str]] = []
    counts: list[int] = []
    for speaker, text in texts:
        prefix = f"{speaker}: " if speaker else ""
        split = split_passages(encoder, prefix, text)
        parts += [(prefix, part) for part in split]
        counts.append(len(split))
    found: dict[tuple[str, str], EncodedPassage] = {}
    distinct = list(dict.fromkeys(parts))
    for batch in _batches(encoder, distinct):
        some = [distinct[i] for i in batch]
        if encoder.covers(some[0][1]):
            vectors = encoder.encode([prefix + part for prefix, part in some])
            for one, tokens in zip(some, vectors, strict=True):
                found[one] = _passage(one[1], tokens, len(one[0]), pooling)
        else:
            found.update({one: _outside(one[1], encoder.dim) for one in some})
        if progress is not None:
            progress(len(found), len(distinct))
    following = iter(parts)
    return [[found[one] for one in islice(following, count)] for count in counts]


def _batches(encoder: Encoder, parts: Sequence[tuple[str, str]]) -> Iterator[list[int]]:
    """The numbers of the parts that are encoded together: alike in length, as padding costs time,
    and all in languages that the encoder knows, or none."""
    if len(parts) == 1:
        yield [0]
        return
    alike: dict[tuple[bool, int], list[int]] = {}
    for number, (prefix, part) in enumerate(parts):
        length = len(encoder.token_spans(prefix + part)) + 2
        alike.setdefault((encoder.covers(part), length), []).append(number)
    for (_, length), numbers in alike.items():
        size = max(BATCH_TOKENS // length, 1)
        yield from (numbers[begin : begin + size] for begin in range(0, len(numbers), size))


def split_passages(encoder: Encoder, prefix: str, text: str) -> list[str]:
    """Cut a text at ends of sentences, or else of words, so that each part fits the encoder."""
    # Two special tokens, and what the prefix takes.
    room = encoder.max_tokens - 2 - len(encoder.token_spans(prefix))
    spans = encoder.token_spans(text)
    if len(spans) <= room:
        return [text]
    starts = [begin for begin, _ in spans]
    cuts = cut_spans(len(spans), _sentence_starts(text, starts), max(room, 8))
    edges = [starts[begin] if begin else 0 for begin, _ in cuts] + [len(text)]
    return [text[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True) if text[a:b].strip()]


def _sentence_starts(text: str, token_starts: list[int]) -> Iterator[int]:
    """The tokens (by number) with which sentences begin."""
    position, token = 0, 0
    for sentence in sentences(text):
        begin = text.find(sentence, position)
        position = begin + len(sentence)
        while token < len(token_starts) and token_starts[token] < begin:
            token += 1
        yield token


def _passage(part: str, tokens: TokenVectors, begin: int, pooling: Pooling) -> EncodedPassage:
    return EncodedPassage(
        text=part,
        terms=terms(part),
        flags=_flags(part),
        in_context=tokens.pool(pooling),
        bare=tokens.pool(pooling, begin),
        tokens=compress_tokens(tokens, begin),
    )


def _outside(part: str, dim: int) -> EncodedPassage:
    """A passage in a language that the encoder does not know: words and pieces, no direction."""
    nothing = np.zeros(dim, np.float32)
    tokens = np.zeros((1, min(TOKEN_DIM, dim)), np.int8)
    found = passage_terms(part, IS_OUTSIDE)
    return EncodedPassage(part, found, _flags(part) | IS_OUTSIDE, nothing, nothing, tokens)


def passage_terms(part: str, flags: int) -> list[str]:
    """The terms under which a passage with these flags is indexed."""
    return terms(part, with_pieces=bool(flags & IS_OUTSIDE))


def _flags(part: str) -> int:
    idle = round(ACTS_STEPS * (1 - acts_of(part).tells))
    flags = IS_QUESTION * is_question(part) + TELLS_WHEN * tells_when(part)
    return flags + HAS_ACTS + (idle << ACTS_SHIFT)


def idle_share(flags: NDArray[np.int64]) -> NDArray[np.float32]:
    """How much of each passage tells nothing: it asks, orders or greets."""
    shares = ((flags >> ACTS_SHIFT) & ACTS_STEPS) / ACTS_STEPS
    return np.where(flags & HAS_ACTS, shares, flags & IS_QUESTION).astype(np.float32)


def pool_passages(bare: NDArray[np.float32]) -> NDArray[np.float32]:
    """One vector for a text from the bare ones of its passages, rounded as in the store."""
    return round_half(unit(bare.mean(0)))


def compress_tokens(tokens: TokenVectors, begin: int = 0) -> NDArray[np.int8]:
    """Unit vectors of the tokens from character `begin` on, projected, in steps of 1/127."""
    inside = [end > start >= begin for start, end in tokens.spans]
    chosen = tokens.vectors[np.array(inside)] if any(inside) else tokens.vectors[:1]
    small = project_tokens(chosen)
    return np.round(small * np.float32(127)).astype(np.int8)


def project_tokens(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Token vectors as unit vectors of `TOKEN_DIM` numbers."""
    basis = _token_basis(vectors.shape[-1])
    return unit(unit(vectors) @ basis)


@lru_cache(maxsize=4)
def _token_basis(dim: int) -> NDArray[np.float32]:
    """A random orthonormal projection: inner products survive it, and it needs no training."""
    width = min(TOKEN_DIM, dim)
    drawn = np.random.default_rng(0).standard_normal((dim, width))
    return np.linalg.qr(drawn)[0].astype(np.float32)
