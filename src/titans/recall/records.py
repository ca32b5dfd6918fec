"""What the text memory gives back: records, recalled records, and the result of a turn."""

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from titans.recall.store import StoredRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Record:
    """A text that is remembered."""

    id: str
    text: str
    speaker: str | None
    time: datetime
    metadata: dict[str, Any] | None
    surprise: float
    """The loss of the neural memory before the write: nats of unexpected content."""
    written: bool
    """Whether the neural memory was written."""
    reason: str
    """Why, or why not."""
    duplicate_of: str | None = None
    """The id of the text that said the same before."""
    successor_of: str | None = None
    """The id of the statement that this one updates."""
    expires: datetime | None = None
    """From when on it is not recalled, unless it is pinned."""
    importance: float = 0.0
    pinned: bool = False
    recalls: int = 0
    """How often it was recalled."""
    is_new: bool = True
    """False if the record was there already."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        expires = None if self.expires is None else self.expires.isoformat()
        return {**asdict(self), "time": self.time.isoformat(), "expires": expires}


@dataclass(frozen=True)
class Summary:
    """What stands out in a scope: its statements, without repetitions and what has expired."""

    records: int
    surprising: list[Record]
    """The most surprising when they were said, in nats."""
    recalled: list[Record]
    """Those that were recalled most often."""
    updated: list[Record]
    """The latest statements of the facts that were updated most often."""
    updates: dict[str, int]
    """How often each of these facts was updated, by the id of the latest statement."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        lists = {
            name: [record.as_dict() for record in getattr(self, name)]
            for name in ("surprising", "recalled", "updated")
        }
        return {"records": self.records, **lists, "updates": self.updates}


@dataclass(frozen=True)
class ScoreParts:
    """How much of the score is due to what; the parts add up to it.

    What speaks against a record lowers all of them.
    """

    lexical: float = 0.0
    """Words of the query, in the text and around it."""
    vector: float = 0.0
    """Likeness of meaning, of the text and of its words."""
    speaker: float = 0.0
    """Said by whom the query is about."""
    time: float = 0.0
    """Said when the query asks for, or telling when."""
    recency: float = 0.0
    importance: float = 0.0
    """Marked as important."""
    memory: float = 0.0
    """What the neural memory answers, where it alone decides (the preset `classic`)."""


@dataclass(frozen=True)
class Recalled:
    """A record that answers a query."""

    id: str
    text: str
    speaker: str | None
    time: datetime
    score: float
    """In [0, 1]: higher the likelier it answers the query (docs/recall.md says how well it is
    calibrated)."""
    parts: ScoreParts
    confidence: float | None = None
    """Of the first record of a recall: how likely it is that the question is answered at all.
    None for the others, and where it cannot be told (docs/recall.md)."""
    why: str = ""
    """What speaks for it, as a sentence."""
    passage: str | None = None
    """The part of a long text that answers; None if the text is one passage."""
    metadata: dict[str, Any] | None = None
    surprise: float = 0.0
    duplicates: tuple[str, ...] = ()
    """Ids of other records that say the same."""
    successor_of: str | None = None
    succeeded_by: str | None = None
    explanation: dict[str, dict[str, float]] | None = None
    """With `explain=True`: each feature's value and contribution."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; nothing that is empty."""
        values = {**asdict(self), "time": self.time.isoformat()}
        return {name: value for name, value in values.items() if value not in (None, (), [])}


@dataclass(frozen=True)
class Turn:
    """A turn of conversation: what was recalled, what was asked of the model, what it said."""

    prompt: str
    enriched: str
    """The prompt with persistent texts and memories, as the model saw it."""
    answer: str
    record: Record
    memories: list[Recalled] = field(default_factory=list)
    answer_record: Record | None = None
    """The answer as it is remembered, if it is."""


def as_sum(parts: ScoreParts) -> str:
    """The parts of a score that count, as a sum."""
    shown = {name: value for name, value in asdict(parts).items() if value >= 0.005}
    return " + ".join(f"{name} {value:.2f}" for name, value in shown.items()) or "all parts are 0"


def to_microseconds(time: datetime) -> int:
    """How the store keeps a time."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(value: int) -> datetime:
    """The inverse."""
    return _EPOCH + timedelta(microseconds=value)


def _time(value: int | None) -> datetime | None:
    return None if value is None else from_microseconds(value)


def to_record(stored: StoredRecord, ids: dict[int, str], is_new: bool = True) -> Record:
    """A stored record as users see it.

    Args:
        ids: seq -> id of the records that it is linked to.
    """
    return Record(
        id=stored.id,
        text=stored.text,
        speaker=stored.speaker,
        time=from_microseconds(stored.time),
        metadata=stored.metadata,
        surprise=stored.surprise,
        written=stored.written,
        reason=stored.reason,
        duplicate_of=None if stored.duplicate_of is None else ids.get(stored.duplicate_of),
        successor_of=None if stored.successor_of is None else ids.get(stored.successor_of),
        expires=_time(stored.marks.expires),
        importance=stored.marks.importance,
        pinned=stored.marks.pinned,
        recalls=stored.recalls,
        is_new=is_new,
    )
