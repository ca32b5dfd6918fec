"""Writing texts into a scope: look around, decide, store, all in one transaction.

What is decided: how surprising the text is, whether the neural memory is written, which record it
repeats or updates. `write_texts` is the only place that adds records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titans.errors import DataError
from titans.recall.neural.memory import Observation
from titans.recall.replica import Replica
from titans.recall.search.blocks import save_blocks
from titans.recall.search.index import BARE
from titans.recall.store import NO_MARKS, Marks, StoredRecord
from titans.recall.text.facts import topics
from titans.recall.text.links import SUCCESSOR_COSINE, Statement, judge_link
from titans.recall.text.passages import IS_OUTSIDE, EncodedPassage

LINK_CANDIDATES = 8
"""Nearest texts that a new one is compared with, to link it."""
TOPIC_CANDIDATES = 48
"""The same for a text with a topic (facts.py)."""
LINK_TERMS, MAX_TERM_COUNT = 4, 256
"""Of a new text's rarest words, those in at most so many passages find more."""


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
    marks: Marks = NO_MARKS


@dataclass(frozen=True)
class Written:
    """The record as stored, and how the neural memory met it."""

    record: StoredRecord
    observed: Observation
    is_new: bool = True
    """False if another process stored the same id and text in the meantime."""


def write_texts(replica: Replica, texts: Sequence[NewText]) -> list[Written]:
    """Store texts in their order and in one transaction; excludes other writers meanwhile.

    A text whose id holds another text is an error after those before it are stored.
    """
    store, wrong = replica.store, None
    done: list[Written] = []
    try:
        with store.writing(replica.scope):
            scope_id = store.create_scope(replica.scope)
            replica.refresh()
            replica.save_recalls()
            save_blocks(store, scope_id, replica.index)
            for new in texts:
                known = store.find(scope_id, new.id)
                if known is not None and known.text != new.text:
                    wrong = known
                    break
                done.append(_write(replica, scope_id, new, known))
    except BaseException:
        replica.reset()  # it has taken in what was not stored
        raise
    if wrong is not None:
        raise _other_text(wrong, replica.scope)
    return done


def _write(replica: Replica, scope_id: int, new: NewText, known: StoredRecord | None) -> Written:
    store, config = replica.store, replica.config
    observed = replica.observe(new.text, new.passages, new.time)
    if known is not None:
        return Written(known, observed, is_new=False)
    duplicate, successor = _links(replica, new)
    written, reason = _judge(replica, observed.surprise, duplicate is not None)
    record = StoredRecord(
        *(0, new.id, new.text, new.speaker, new.time, new.metadata, observed.surprise),
        *(written, reason, duplicate, successor, new.marks),
    )
    data = observed.write.to_bytes() if written else None
    passages = (passage.to_stored() for passage in new.passages)
    seq = store.add_record(scope_id, record, passages, data)
    state = replica.neural.absorb(replica.state, observed.write) if written else None
    # By query, not from memory: the index holds what a reader of the store would hold.
    entries = store.index_entries(scope_id, seq - 1)
    replica.advance(entries, [passage.terms for passage in new.passages], state)
    if replica.writes_since_snapshot >= config.snapshot_every:
        snapshot = replica.neural.dump(replica.state)
        store.save_snapshot(scope_id, seq, snapshot, config.keep_snapshots)
        replica.writes_since_snapshot = 0
    return Written(record, observed)


def _other_text(known: StoredRecord, scope: str) -> DataError:
    return DataError(
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
    """The seq of the record that this text repeats, and of one whose fact it updates."""
    index = replica.index
    if len(new.passages) != 1 or not len(index) or replica.scope_id is None:
        return None, None
    passage = new.passages[0]
    outside = bool(passage.flags & IS_OUTSIDE)
    statement = Statement(new.text, new.speaker, passage.tokens, new.time, outside)
    rows, cosines = _link_candidates(replica, passage, new)
    stored = replica.records([int(s) for s in index.column("seq")[rows]])
    tokens = replica.token_vectors(rows)
    updated: int | None = None
    for row, cosine, words in zip(rows.tolist(), cosines.tolist(), tokens, strict=True):
        seq = int(index.column("seq")[row])
        old_tokens = np.frombuffer(words, np.int8).reshape(-1, passage.tokens.shape[1])
        found = stored[seq]
        is_outside = bool(index.column("flags")[row] & IS_OUTSIDE)
        old = Statement(found.text, found.speaker, old_tokens, found.time, is_outside)
        link = judge_link(statement, old, cosine, replica.config.duplicate_threshold)
        if link == "duplicate":
            if not _is_past(replica, row):
                return int(index.column("group")[row]), None
            # What held before and changed is said again: it holds anew.
            return None, seq
        if link == "successor" and updated is None:
            updated = seq
    return None, updated


def _link_candidates(
    replica: Replica, passage: EncodedPassage, new: NewText
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows that a new text may repeat or update, the nearest first, and their cosines.

    They are near in the encoder's space, or by the same speaker and with the same rare words. A
    text with a topic is compared with more of them: what it updates may share no word with it.
    """
    index = replica.index
    assert replica.scope_id is not None
    query = passage.bare
    if topics(new.text):
        near = index.nearest(query, TOPIC_CANDIDATES, quick=True)[0]
    else:
        near, cosines = index.nearest(query, LINK_CANDIDATES, quick=True)
        near = near[cosines >= SUCCESSOR_COSINE]
    distinct = sorted(set(passage.terms), key=replica.count)
    shared: list[NDArray[np.int64]] = []
    for term in distinct[:LINK_TERMS]:
        if 0 < replica.count(term) <= MAX_TERM_COUNT:
            shared.append(index.rows_of(replica.store.postings(replica.scope_id, term)))
    if shared:
        rows, counts = np.unique(np.concatenate(shared), return_counts=True)
        own = index.column("speaker")[rows] == index.speakers.get(new.speaker or "", -1)
        rows, counts = rows[own], counts[own]
        # Of those with most words in common the latest.
        best = rows[np.lexsort((rows, counts))[-LINK_CANDIDATES:]]
        near = np.union1d(near, best)
    cosines = index.vectors(near)[:, BARE] @ query
    order = np.argsort(-cosines, kind="stable")
    return near[order], cosines[order]


def _is_past(replica: Replica, row: int) -> bool:
    """Whether what a row states was updated by a later statement."""
    index = replica.index
    fact = int(index.column("fact")[row])
    history = index.histories(np.array([row])).get(fact)
    groups = index.column("group")
    return history is not None and bool(groups[history[-1]] != groups[row])
