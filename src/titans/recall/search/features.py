"""What speaks for a passage as an answer to a query: fifteen numbers, each with a fixed meaning.

Every feature has an absolute scale (a cosine, a share), none is standardised per query, so the
fused score means the same everywhere and can be compared with a threshold. The weights that join
them are in fusion.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from titans.recall.encoder import Encoder, Pooling, TokenVectors
from titans.recall.search.index import BARE, IN_CONTEXT, ScopeIndex
from titans.recall.search.lexical import Layout, LexicalScores
from titans.recall.text import words as texts
from titans.recall.text.passages import IS_QUESTION, TELLS_WHEN, project_tokens

FEATURES = (
    "in_context",
    "in_context_near",
    "bare",
    "bare_near",
    "first_person",
    "late",
    "lexical",
    "lexical_wide",
    "lexical_nearby",
    "speaker",
    "question",
    "when",
    "date",
    "memory",
    "exact",
)
"""Names, in the order of the columns."""
MEMORY_FEATURES = ("memory",)
"""Those that come from the neural memory. Surprise as a further one added nothing (docs/log)."""
RARE_RANK = 20_000
"""Words less common in the language than this are names, numbers and codes."""
RARE_COUNT = 5
"""A word in more passages of the scope than this does not single one out."""
NEIGHBOUR_WEIGHT = np.float32(0.5)
OTHER_WEIGHT = 0.7
"""In late interaction: of stop words, names and punctuation; content words have their idf."""


@dataclass(frozen=True)
class Query:
    """A question, encoded: as it is, and as its subject would have said it."""

    text: str
    vector: NDArray[np.float32]
    first_person: NDArray[np.float32]
    tokens: TokenVectors
    terms: list[str]
    rare: frozenset[str]
    """Those of the terms that may single out a passage: names, numbers and codes."""
    named: list[str]
    """Speakers of the scope that the question names."""


def make_query(encoder: Encoder, pooling: Pooling, question: str, speakers: Sequence[str]) -> Query:
    """Encode a question for a scope in which `speakers` have spoken."""
    named = texts.named_speakers(question, speakers)
    spoken = texts.in_first_person(question, named)
    tokens, spoken_tokens = encoder.encode([question, spoken])
    skip = {word for name in named for word in texts.words(name)}
    rare = [word for word in texts.words(question) if _is_rare(encoder, word)]
    return Query(
        text=question,
        vector=tokens.pool(pooling).numpy(),
        first_person=spoken_tokens.pool(pooling).numpy(),
        tokens=tokens,
        terms=texts.terms(question, skip=skip) or texts.terms(question),
        rare=frozenset(texts.terms(" ".join(rare), skip=skip)),
        named=named,
    )


def _is_rare(encoder: Encoder, word: str) -> bool:
    """Whether a word is a name, number or code: encoders know little of it but its letters."""
    if texts.is_year(word):
        return False  # the feature `date` looks at it
    return any(c.isdigit() for c in word) or encoder.word_rank(word) > RARE_RANK


@dataclass(frozen=True)
class Evidence:
    """What is computed over the whole scope before candidates are looked at one by one."""

    lexical: LexicalScores
    idf: dict[str, float]
    """Of the stems of the query (`query_stems`)."""
    layout: Layout
    exact: NDArray[np.float32]
    """Per passage the share of the question's rare words (`is_rare`) that it holds."""
    memory: NDArray[np.float32] | None
    """What the neural memory answers to the query: a vector in the space of the texts."""
    centre: NDArray[np.float32]


def feature_matrix(
    index: ScopeIndex,
    query: Query,
    evidence: Evidence,
    rows: NDArray[np.int64],
    token_vectors: Sequence[bytes],
) -> NDArray[np.float32]:
    """The features of some passages, `[rows, len(FEATURES)]`."""
    questions = np.stack([query.vector, query.first_person], axis=1)
    own, around = _with_neighbours(index, rows, evidence.layout.linked)
    near = _unit((own + NEIGHBOUR_WEIGHT * around).astype(np.float32, copy=False))
    in_context = own[:, IN_CONTEXT] @ questions
    flags = index.column("flags")[rows]
    columns = {
        "in_context": in_context[:, 0],
        "in_context_near": near[:, IN_CONTEXT] @ query.vector,
        "bare": own[:, BARE] @ query.vector,
        "bare_near": near[:, BARE] @ query.vector,
        "first_person": in_context[:, 1],
        "late": late_interaction(query, evidence.idf, token_vectors),
        "lexical": evidence.lexical.own[rows],
        "lexical_wide": evidence.lexical.wide[rows],
        "lexical_nearby": evidence.lexical.nearby[rows],
        "speaker": _speaker(index, query, rows),
        "question": (flags & IS_QUESTION > 0).astype(np.float32),
        "when": (flags & TELLS_WHEN > 0) * np.float32(texts.asks_when(query.text)),
        "date": _date(index, query, rows),
        "memory": _memory(evidence, own[:, BARE] + around[:, BARE]),
        "exact": evidence.exact[rows],
    }
    return np.stack([columns[name].astype(np.float32) for name in FEATURES], axis=1)


def late_interaction(
    query: Query, idf: dict[str, float], token_vectors: Sequence[bytes]
) -> NDArray[np.float32]:
    """The best match of each word of the query among a passage's words, averaged by their idf."""
    asked, weights = _query_tokens(query, idf)
    width = asked.shape[1]
    flat = np.frombuffer(b"".join(token_vectors), np.int8).reshape(-1, width)
    lengths = [len(data) // width for data in token_vectors]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    best = np.maximum.reduceat(flat.astype(np.float32) @ asked.T, starts, axis=0)
    return (best @ weights / (127 * weights.sum())).astype(np.float32)


def query_stems(query: Query) -> set[str]:
    """The stems whose idf late interaction needs: those of content words and parts of words."""
    return {stem for _, stem in _spans(query) if stem is not None}


def _query_tokens(
    query: Query, idf: dict[str, float]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    spans = _spans(query) or [(0, None)]
    chosen = torch.tensor([position for position, _ in spans])
    weights = [OTHER_WEIGHT if stem is None else idf[stem] for _, stem in spans]
    vectors = project_tokens(query.tokens.vectors[chosen])
    return vectors.numpy(), np.array(weights, np.float32) + np.float32(1e-6)


def _spans(query: Query) -> list[tuple[int, str | None]]:
    """The tokens of a query (by number), each with its stem if it is a content word."""
    names = {word for name in query.named for word in texts.words(name)}
    found: list[tuple[int, str | None]] = []
    for position, (begin, end) in enumerate(query.tokens.spans):
        if end > begin:
            word = texts.normalise(query.text[begin:end])
            plain = word in texts.STOP_WORDS or word in names or not word.isalnum()
            found.append((position, None if plain else texts.stem(word)))
    return found


def _with_neighbours(
    index: ScopeIndex, rows: NDArray[np.int64], linked: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The vectors of some rows, `[rows, 2, dim]`, and the sum of their neighbours'."""
    has_before = linked[rows]
    has_after = np.append(linked, False)[rows + 1]
    # Candidates are often neighbours of each other: each vector is fetched once.
    needed = np.unique(np.concatenate([rows, rows[has_before] - 1, rows[has_after] + 1]))
    vectors = index.vectors(needed)
    own = vectors[np.searchsorted(needed, rows)]
    around = np.zeros_like(own)
    around[has_before] += vectors[np.searchsorted(needed, rows[has_before] - 1)]
    around[has_after] += vectors[np.searchsorted(needed, rows[has_after] + 1)]
    return own, around


def _memory(evidence: Evidence, around: NDArray[np.float32]) -> NDArray[np.float32]:
    """How near a passage with its neighbours is to what the neural memory answered."""
    if evidence.memory is None:
        return np.zeros(len(around), np.float32)
    return _unit(around - evidence.centre) @ evidence.memory


def _speaker(index: ScopeIndex, query: Query, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """1 for passages of the one speaker that the query names, 0 for others, 1/2 if unclear."""
    if len(query.named) != 1:
        return np.full(len(rows), 0.5, np.float32)
    return (index.column("speaker")[rows] == index.speakers[query.named[0]]).astype(np.float32)


def _date(index: ScopeIndex, query: Query, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """1 for a passage of a month that the query names, plus 1/2 for the year."""
    months, years = texts.named_months(query.text)
    found = np.zeros(len(rows), np.float32)
    if months or years:
        when = index.column("time")[rows].astype("datetime64[us]")
        month = when.astype("datetime64[M]").astype(np.int64) % 12 + 1
        year = when.astype("datetime64[Y]").astype(np.int64) + 1970
        found += np.isin(month, list(months)) + 0.5 * np.isin(year, list(years))
    return found


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-9)
