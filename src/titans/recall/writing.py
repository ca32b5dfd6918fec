"""Writing a text into a scope: look around, decide, store, all in one transaction.

What is decided: how surprising the text is, whether the neural memory is written, which record it
repeats or updates. `write_text` is the only place that adds records.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from titans.errors import DataError
from titans.recall.neural.memory import Observation
from titans.recall.replica import Replica
from titans.recall.search.blocks import save_blocks
from titans.recall.store import StoredRecord
from titans.recall.text.links import SUCCESSOR_COSINE, Statement, judge_link
from titans.recall.text.passages import EncodedPassage

LINK_CANDIDATES = 8
"""Nearest texts that a new one is compared with, to link it."""


@dataclass(frozen=True)
class NewText:
    """A text that is about to be stored, encoded already."""

    id: str
    text: str
    speaker: str | None
    time: int
    """Microseconds since 1970, UTC."""
    metadata: dict[str, Any] | None
    passages: list[EncodedPassage]


@dataclass(frozen=True)
class Written:
    """The record as stored, and how the neural memory met it."""

    record: StoredRecord
    observed: Observation
    is_new: bool = True
    """False if another process stored the same id and text in the meantime."""


def write_text(replica: Replica, new: NewText) -> Written:
    """Store a text; excludes other writers while it looks, decides and writes."""
    store, config = replica.store, replica.config
    with store.writing(replica.scope):
        scope_id = store.create_scope(replica.scope)
        replica.refresh()
        observed = replica.observe(new.text, new.passages, new.time)
        known = store.find(scope_id, new.id)
        if known is not None:
            refuse_other_text(known, new.text, replica.scope)
            return Written(known, observed, is_new=False)
        save_blocks(store, scope_id, replica.index)
        duplicate, successor = _links(replica, new)
        written, reason = _judge(replica, observed.surprise, duplicate is not None)
        record = StoredRecord(
            *(0, new.id, new.text, new.speaker, new.time, new.metadata, observed.surprise),
            *(written, reason, duplicate, successor),
        )
        data = observed.write.to_bytes() if written else None
        passages = (passage.to_stored() for passage in new.passages)
        seq = store.add_record(scope_id, record, passages, data)
        state = replica.neural.absorb(replica.state, observed.write) if written else None
        snapshot_is_due = replica.writes_since_snapshot + 1 >= config.snapshot_every
        if state is not None and snapshot_is_due:
            snapshot = replica.neural.dump(state)
            store.save_snapshot(scope_id, seq, snapshot, config.keep_snapshots)
        # By query, not from memory: the index holds what a reader of the store would hold.
        entries = store.index_entries(scope_id, seq - 1)
    replica.advance(entries, [passage.terms for passage in new.passages], state)
    if state is not None and snapshot_is_due:
        replica.writes_since_snapshot = 0
    return Written(record, observed)


def refuse_other_text(known: StoredRecord, text: str, scope: str) -> None:
    """Raise an error if the record that has the id already holds another text."""
    if known.text != text:
        raise DataError(
            f"id {known.id!r} holds another text in scope {scope!r}; "
            "records are not changed: use a new id, or forget the old record first"
        )


def _judge(replica: Replica, surprise: float, is_duplicate: bool) -> tuple[bool, str]:
    """Whether to write to the neural memory, and why."""
    if is_duplicate:
        return False, "says what another record says"
    gate = replica.gate()
    if gate and surprise <= gate:
        return False, f"surprise {surprise:.3g} is at or below the gate {gate:.3g}"
    if not gate:
        return True, f"surprise {surprise:.3g}; the gate is open"
    return True, f"surprise {surprise:.3g} is above the gate {gate:.3g}"


def _links(replica: Replica, new: NewText) -> tuple[int | None, int | None]:
    """The seq of the record that this text repeats, and of the one that it updates."""
    index = replica.index
    if len(new.passages) != 1 or not len(index) or replica.scope_id is None:
        return None, None
    passage = new.passages[0]
    rows, cosines = index.nearest(passage.bare.numpy(), LINK_CANDIDATES, quick=True)
    rows, cosines = rows[cosines >= SUCCESSOR_COSINE], cosines[cosines >= SUCCESSOR_COSINE]
    statement = Statement(new.text, new.speaker, passage.tokens)
    stored = replica.store.records(replica.scope_id, [int(s) for s in index.column("seq")[rows]])
    numbers = [int(p) for p in index.column("passage")[rows]]
    tokens = replica.store.token_vectors(replica.scope_id, numbers)
    for row, cosine, number in zip(rows, cosines, numbers, strict=True):
        seq = int(index.column("seq")[row])
        old_tokens = np.frombuffer(tokens[number], np.int8).reshape(-1, passage.tokens.shape[1])
        old = Statement(stored[seq].text, stored[seq].speaker, old_tokens)
        link = judge_link(statement, old, float(cosine), replica.config.duplicate_threshold)
        if link == "duplicate":
            return int(index.column("group")[row]), None
        if link == "successor" and not index.column("replaced")[row]:
            return None, seq
    return None, None
