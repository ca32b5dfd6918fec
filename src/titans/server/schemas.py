"""What goes in and out of the REST interface, for checks and for the OpenAPI document."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from titans.recall.store import Scalar

Time = Annotated[str, Field(max_length=64, examples=["2024-05-31T14:30:00Z"])]
"""ISO 8601; without a zone it is UTC."""
Trust = Literal["trusted", "untrusted"]
LONGEST_ID = 200
RecordId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]
MOST_AT_ONCE = 100


class Given(BaseModel):
    """A body of a request: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(BaseModel):
    """What went wrong and what to do about it."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """An error in OpenAI's shape."""

    error: ErrorDetail


class NewMemory(Given):
    """A text to remember."""

    text: str = Field(min_length=1, examples=["My dog is called Rex."])
    speaker: str | None = Field(None, max_length=200, description="who said it")
    time: Time | None = Field(None, description="when it was said; now if not given")
    id: RecordId | None = Field(
        None, description="an id of your own: the same id and text again change nothing"
    )
    metadata: dict[str, Any] | None = Field(
        None, description="anything JSON can hold; names beginning with titans. are the server's"
    )
    expires: Time | None = Field(None, description="from when on it is not recalled")
    importance: float = Field(0.0, ge=0, le=1, description="weight in scores; trusted keys only")
    pinned: bool = Field(False, description="it never expires; trusted keys only")


class NewMemories(Given):
    """Texts to remember in their order; all are checked before the first is stored."""

    memories: list[NewMemory] = Field(min_length=1, max_length=MOST_AT_ONCE)


class Provenance(BaseModel):
    """Where a memory comes from, by the key that wrote it, not by what it says."""

    writer: str | None = Field(description="the key's name; null if it came past the server")
    trust: Trust | None = Field(description="whether that key is trusted")


class Memory(Provenance):
    """A text that is remembered."""

    id: str
    text: str
    speaker: str | None
    time: datetime
    metadata: dict[str, Any] | None
    surprise: float = Field(description="nats of content that the neural memory did not expect")
    written: bool = Field(description="whether the neural memory was written")
    reason: str
    duplicate_of: str | None = Field(description="the memory that said the same before")
    successor_of: str | None = Field(description="the statement that this one updates")
    expires: datetime | None = Field(description="from when on it is not recalled")
    importance: float
    pinned: bool
    recalls: int = Field(description="how often it was recalled, as far as it is on disk")
    is_new: bool


class Memories(BaseModel):
    """Several memories."""

    memories: list[Memory]


class Marks(Given):
    """How long a memory is kept and how much it weighs; null leaves a mark as it is."""

    expires: Time | None = Field(None, description="from when on it is not recalled; or never")
    importance: float | None = Field(None, ge=0, le=1)
    pinned: bool | None = Field(None, description="whether it never expires")


class Summary(BaseModel):
    """What stands out in a scope."""

    records: int
    surprising: list[Memory] = Field(description="the most surprising when they were said")
    recalled: list[Memory] = Field(description="those that were recalled most often")
    updated: list[Memory] = Field(description="latest statements of what was updated most often")
    updates: dict[str, int] = Field(description="how often, by the id of the latest statement")


class Page(Memories):
    """A page of a list."""

    next: str | None = Field(description="`cursor` of the next page; null at the end")


class Wanted(Given):
    """Which memories are meant."""

    before: Time | None = Field(None, description="only from before this time (exclusive)")
    after: Time | None = Field(None, description="only from this time on (inclusive)")
    speaker: str | None = Field(None, max_length=200)
    metadata: dict[str, Scalar] | None = Field(
        None, description="only with these fields and values"
    )
    writer: str | None = Field(None, description="only what this key wrote")
    trust: Trust | None = Field(None, description="only what such keys wrote")


class Query(Wanted):
    """A question to the memory."""

    query: str = Field(min_length=1, examples=["What is the dog called?"])
    k: int = Field(3, ge=1, le=100, description="how many memories")
    at: Time | None = Field(
        None, description="as known then: a time, a day, a month (2024-05) or a year"
    )
    threshold: float | None = Field(None, ge=0, le=1, description="only scores of at least this")
    explain: bool = Field(False, description="what every feature contributed to the score")


class Parts(BaseModel):
    """How much of a score is due to what; the parts add up to it."""

    lexical: float
    vector: float
    speaker: float
    time: float
    recency: float
    importance: float
    memory: float


class Contribution(BaseModel):
    """What a feature adds to a score."""

    value: float
    contribution: float


class RecalledMemory(Provenance):
    """A memory that answers a query."""

    id: str
    text: str
    speaker: str | None
    time: datetime
    score: float = Field(description="how likely it is that this memory answers, in [0, 1]")
    parts: Parts
    confidence: float | None = Field(
        description="of the first memory: how likely it is that the query is answered at all"
    )
    why: str = Field(description="what speaks for it, as a sentence")
    passage: str | None = Field(description="the part of a long text that answers")
    metadata: dict[str, Any] | None
    surprise: float
    duplicates: list[str]
    successor_of: str | None
    succeeded_by: str | None
    explanation: dict[str, Contribution] | None


class Answers(BaseModel):
    """Memories that answer a query, best first."""

    memories: list[RecalledMemory]


class Reasons(BaseModel):
    """Why a memory is as it is, and why it is (not) recalled."""

    memory: Memory
    chain: list[Memory] = Field(description="the statements that update each other, oldest first")
    rank: int | None = Field(description="its place among the answers to `query`; null if beyond")
    answer: RecalledMemory | None


class Forget(Given):
    """What to forget: exactly one of `id`, a filter, and `all`."""

    id: RecordId | None = None
    before: Time | None = None
    after: Time | None = None
    speaker: str | None = None
    metadata: dict[str, Scalar] | None = None
    writer: str | None = None
    trust: Trust | None = None
    all: bool = Field(False, description="the whole scope, its name included")
    preview: bool = Field(False, description="only say what would go")


class Expire(Given):
    """What to forget: all that has expired."""

    before: Time | None = Field(None, description="also what was said before this time")


class Forgotten(BaseModel):
    """What was forgotten, or would be."""

    records: int
    preview: list[Memory] | None = Field(description="the first of them, if only asked for")
    replayed: int = Field(description="writes of the neural memory that were computed again")
    seconds: float
    is_complete: bool = Field(description="whether no trace is left in any file")


class Stats(BaseModel):
    """What a scope holds."""

    scope: str
    encoder: str | None
    records: int
    passages: int = 0
    neural_writes: int = 0
    snapshots: int = 0
    duplicates: int = 0
    successors: int = 0
    mean_surprise: float | None
    gate: float
    neural_state_bytes: int


class Imported(BaseModel):
    """What an import did."""

    imported: int


class Scopes(BaseModel):
    """Scopes that the key covers."""

    scopes: list[str]


class Health(BaseModel):
    """Whether the server works."""

    status: Literal["ok"]
    version: str | None
