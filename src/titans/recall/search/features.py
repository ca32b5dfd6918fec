"""What speaks for a passage as an answer to a query: numbers, each with a fixed meaning.

Every feature has an absolute scale (a cosine, a share), none is standardised per query, so the
fused score means the same everywhere and can be compared with a threshold. The weights that join
them are in fusion.py. `feature_matrix` computes those of single passages, `window_matrix` those
that look at the words around a passage: dearer, so for the best candidates only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from titans.recall.encoder import Encoder, Pooling, TokenVectors
from titans.recall.search.index import BARE, IN_CONTEXT, ScopeIndex
from titans.recall.search.lexical import Layout, LexicalScores
from titans.recall.text import dates, names
from titans.recall.text import words as texts
from titans.recall.text.passages import (
    IS_OUTSIDE,
    TELLS_WHEN,
    idle_share,
    passage_terms,
    project_tokens,
)

BASE: tuple[str, ...] = (
    "bare",
    "bare_near",
    "first_person",
    "late",
    "lexical",
    "lexical_wide",
    "lexical_close",
    "lexical_nearby",
    "speaker",
    "assistant",
    "idle",
    "when",
    "date",
    "day",
    "exact",
)
"""Names of the features of single passages, in the order of the columns."""
WINDOW: tuple[str, ...] = ("late_wide", "first_near", "answered")
"""Names of those that look around."""
FEATURES: tuple[str, ...] = (*BASE, *WINDOW)
"""All of them, in the order of the columns."""
PARTS: dict[str, tuple[str, ...]] = {
    "lexical": ("lexical", "lexical_wide", "lexical_close", "lexical_nearby", "exact"),
    "vector": ("bare", "bare_near", "first_person", "late", *WINDOW),
    "speaker": ("speaker", "assistant"),
    "time": ("when", "date", "day"),
}
"""What a score is explained by, and the features that it stands for."""
RARE_RANK = 20_000
"""Words less common in the language than this are names, numbers and codes."""
RARE_COUNT = 5
"""A word in more passages of the scope than this does not single one out."""
NEIGHBOUR_WEIGHT = np.float32(0.5)
NEAR, WIDE = 1, 3
"""Passages on either side whose words count as those of a passage."""
OTHER_WEIGHT = 0.7
"""In late interaction: of stop words, names and punctuation; content words have their idf."""


@dataclass(frozen=True)
class Query:
    """A question, encoded: as it is, and as its subject would have said it."""

    text: str
    vector: NDArray[np.float32]
    first_person: NDArray[np.float32]
    tokens: TokenVectors
    spoken: str
    """The question as its subject would have said it, and its tokens."""
    spoken_tokens: TokenVectors
    terms: list[str]
    rare: frozenset[str]
    """Those of the terms that may single out a passage: names, numbers and codes."""
    named: names.Named
    """Speakers of the scope that the question is about."""
    days: list[dates.Span]
    is_outside: bool
    """Whether the encoder does not know its language."""


def make_query(
    encoder: Encoder,
    pooling: Pooling,
    question: str,
    speakers: Sequence[str],
    holders: names.Holders,
    today: date,
) -> Query:
    """Encode a question for a scope in which `speakers` have spoken.

    Args:
        holders: who in the scope gave a word as their name.
        today: what "yesterday" is counted from.
    """
    named = names.resolve_speakers(question, speakers, holders)
    spoken = texts.in_first_person(question, sorted(named.written, key=len, reverse=True))
    outside = not encoder.covers(question)
    tokens, spoken_tokens = encoder.encode([question, spoken])
    rare = [word for word in texts.words(question) if _is_rare(encoder, word)]
    scale = np.float32(not outside)
    plain = texts.terms(question, skip=named.words)
    return Query(
        text=question,
        vector=scale * tokens.pool(pooling),
        first_person=scale * spoken_tokens.pool(pooling),
        tokens=tokens,
        spoken=spoken,
        spoken_tokens=spoken_tokens,
        terms=passage_terms(question, IS_OUTSIDE) if outside else plain or texts.terms(question),
        rare=frozenset(texts.terms(" ".join(rare), skip=named.words)),
        named=named,
        days=dates.named_days(question, today),
        is_outside=outside,
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


def feature_matrix(
    index: ScopeIndex,
    query: Query,
    evidence: Evidence,
    rows: NDArray[np.int64],
    token_vectors: Sequence[bytes],
) -> NDArray[np.float32]:
    """The features of some passages, `[rows, len(BASE)]`."""
    own, around = _with_neighbours(index, rows, evidence.layout.linked)
    near = _unit((own[:, BARE] + NEIGHBOUR_WEIGHT * around[:, BARE]).astype(np.float32))
    flags = index.column("flags")[rows]
    matches = Matches.of(query, evidence.idf)
    best = matches.in_passages(token_vectors)
    columns = {
        "bare": own[:, BARE] @ query.vector,
        "bare_near": near @ query.vector,
        "first_person": own[:, IN_CONTEXT] @ query.first_person,
        "late": matches.asked(best),
        "lexical": evidence.lexical.own[rows],
        "lexical_wide": evidence.lexical.wide[rows],
        "lexical_close": evidence.lexical.close[rows],
        "lexical_nearby": evidence.lexical.nearby[rows],
        "speaker": _speaker(index, query, rows),
        "assistant": _assistant(index, query, rows),
        "idle": idle_share(flags),
        "when": (flags & TELLS_WHEN > 0) * np.float32(texts.asks_when(query.text)),
        "date": _date(index, query, rows),
        "day": dates.nearness(query.days, index.column("time")[rows]),
        "exact": evidence.exact[rows],
    }
    return np.stack([columns[name].astype(np.float32) for name in BASE], axis=1)


def window_rows(rows: NDArray[np.int64], layout: Layout) -> NDArray[np.int64]:
    """The rows whose words `window_matrix` needs, rising."""
    reach = [rows + step for step in range(-WIDE, WIDE + 1)]
    needed = np.unique(np.concatenate(reach))
    return needed[(needed >= 0) & (needed < layout.size)]


def window_matrix(
    index: ScopeIndex,
    query: Query,
    evidence: Evidence,
    rows: NDArray[np.int64],
    needed: NDArray[np.int64],
    token_vectors: Sequence[bytes],
) -> NDArray[np.float32]:
    """What the words around some passages say, `[rows, len(WINDOW)]`.

    Args:
        needed: `window_rows`, to which the token vectors belong.
    """
    session = np.cumsum(~evidence.layout.linked, dtype=np.int64)
    matches = Matches.of(query, evidence.idf)
    best = matches.in_passages(token_vectors)
    near = _best_around(best, needed, rows, session, NEAR)
    columns = {
        "late_wide": matches.asked(_best_around(best, needed, rows, session, WIDE)),
        "first_near": matches.spoken(near),
        "answered": _answered(index, matches.asked(best), needed, rows, session),
    }
    return np.stack([columns[name].astype(np.float32) for name in WINDOW], axis=1)


def _best_around(
    best: NDArray[np.float32],
    needed: NDArray[np.int64],
    rows: NDArray[np.int64],
    session: NDArray[np.int64],
    reach: int,
) -> NDArray[np.float32]:
    """Each word's best match within `reach` passages of the same session."""
    found = best[np.searchsorted(needed, rows)]
    for step in (s for s in range(-reach, reach + 1) if s):
        other = np.clip(rows + step, 0, len(session) - 1)
        inside = (other == rows + step) & (session[other] == session[rows])
        place = np.searchsorted(needed, other[inside])
        found[inside] = np.maximum(found[inside], best[place])
    return found


def _answered(
    index: ScopeIndex,
    late: NDArray[np.float32],
    needed: NDArray[np.int64],
    rows: NDArray[np.int64],
    session: NDArray[np.int64],
) -> NDArray[np.float32]:
    """How well the query matches the question that a passage answers: the other's turn before."""
    before = np.maximum(rows - 1, 0)
    speaker = index.column("speaker")
    asked = idle_share(index.column("flags")[before]) > 0
    answers = (before < rows) & (session[before] == session[rows])
    answers &= (speaker[before] != speaker[rows]) & asked
    return np.where(answers, late[np.searchsorted(needed, before)], 0).astype(np.float32)


@dataclass(frozen=True)
class Matches:
    """Late interaction: the best match of each word of the query among a passage's words.

    Both forms of the question are matched at once: first the words of the question as it is.
    """

    vectors: NDArray[np.float32]
    weights: NDArray[np.float32]
    """Of each word: its idf."""
    size: int
    """Words of the question as it is."""

    @classmethod
    def of(cls, query: Query, idf: dict[str, float]) -> "Matches":
        """The words of a query and their weights."""
        tokens, weights = _query_tokens(query.text, query.tokens, query.named, idf)
        spoken, more = _query_tokens(query.spoken, query.spoken_tokens, query.named, idf)
        return cls(np.concatenate([tokens, spoken]), np.concatenate([weights, more]), len(weights))

    def in_passages(self, token_vectors: Sequence[bytes]) -> NDArray[np.float32]:
        """The best match of each word in each passage, `[passages, words]`."""
        width = self.vectors.shape[1]
        flat = np.frombuffer(b"".join(token_vectors), np.int8).reshape(-1, width)
        lengths = [len(data) // width for data in token_vectors]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        best = np.maximum.reduceat(flat.astype(np.float32) @ self.vectors.T, starts, axis=0)
        return (best / np.float32(127)).astype(np.float32)

    def asked(self, best: NDArray[np.float32]) -> NDArray[np.float32]:
        """The mean over the words of the question, weighted."""
        return best[:, : self.size] @ _share(self.weights[: self.size])

    def spoken(self, best: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same for the question as its subject would have said it."""
        return best[:, self.size :] @ _share(self.weights[self.size :])


def _share(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    return weights / weights.sum()


def query_stems(query: Query) -> set[str]:
    """The stems whose idf late interaction needs: those of content words and parts of words."""
    spans = _spans(query.text, query.tokens, query.named)
    spans += _spans(query.spoken, query.spoken_tokens, query.named)
    return {stem for _, stem in spans if stem is not None}


def _query_tokens(
    text: str, tokens: TokenVectors, named: names.Named, idf: dict[str, float]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    spans = _spans(text, tokens, named) or [(0, None)]
    chosen = np.array([position for position, _ in spans])
    weights = [OTHER_WEIGHT if stem is None else idf[stem] for _, stem in spans]
    vectors = project_tokens(tokens.vectors[chosen])
    return vectors, np.array(weights, np.float32) + np.float32(1e-6)


def _spans(text: str, tokens: TokenVectors, named: names.Named) -> list[tuple[int, str | None]]:
    """The tokens of a text (by number), each with its stem if it is a content word."""
    found: list[tuple[int, str | None]] = []
    for position, (begin, end) in enumerate(tokens.spans):
        if end > begin:
            word = texts.normalise(text[begin:end])
            plain = word in texts.STOP_WORDS or word in named.words or not word.isalnum()
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


def _speaker(index: ScopeIndex, query: Query, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """1 for passages of those that the query is about, 0 for others, 1/2 if it names nobody or
    everybody."""
    named = query.named.speakers
    if not named or len(named) == len(index.speakers) > 1:
        return np.full(len(rows), 0.5, np.float32)
    codes = [index.speakers[name] for name in named]
    return np.isin(index.column("speaker")[rows], codes).astype(np.float32)


def _assistant(index: ScopeIndex, query: Query, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """1 for passages that a program has said, unless the query asks for them."""
    codes = [
        code
        for name, code in index.speakers.items()
        if names.is_assistant(name) and name not in query.named.speakers
    ]
    return np.isin(index.column("speaker")[rows], codes).astype(np.float32)


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
