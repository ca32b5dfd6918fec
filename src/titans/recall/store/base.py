"""What a store keeps, as plain values."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """A record as stored. `seq` is its place in the order of writing."""

    seq: int
    id: str
    text: str
    speaker: str | None
    time: int
    metadata: dict[str, Any] | None
    surprise: float
    written: bool
    reason: str
    duplicate_of: int | None
    successor_of: int | None


@dataclass(frozen=True)
class Passage:
    """A part of a record's text that fits the encoder, ready to be stored."""

    terms: list[str]
    flags: int
    vectors: bytes
    tokens: bytes


@dataclass(frozen=True)
class Head:
    """How far a scope has come: what a process compares to see whether others have written.

    Numbers are never used again, so a scope that was forgotten and made anew under the same name
    has another `id`; `generation` rises when something in it is forgotten.
    """

    id: int
    generation: int
    last_seq: int
