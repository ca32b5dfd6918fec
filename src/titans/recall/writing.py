"""Writing a text into a scope: look around, decide, store, all in one transaction.

What is decided: how surprising the text is, whether the neural memory is written, which record it
repeats or updates. `write_text` is the only place that adds records.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from titans.errors import DataError
from titans.recall.blocks import save_blocks
from titans.recall.index import Entry
from titans.recall.links import SUCCESSOR_COSINE, Statement, judge_link
from titans.recall.neural import Observation
from titans.recall.scope import OpenScope
from titans.recall.store import Row
from titans.recall.text import STOP_WORDS, stem, words
from titans.recall.views import View

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
    views: list[View]


@dataclass(frozen=True)
class Written:
    """The record as stored, and how the neural memory met it."""

    row: Row
    observed: Observation
    is_new: bool = True
    """False if another process stored the same id and text in the meantime."""


def write_text(scope: OpenScope, new: NewText) -> Written:
    """Store a text; excludes other writers while it looks, decides and writes."""
    store, config = scope.store, scope.config
    with store.writing():
        number = store.create_scope(scope.name)
        scope.refresh()
        observed = observe_text(scope, new.text, new.views, new.time)
        known = store.find(number, new.id)
        if known is not None:
            return Written(refuse_other_text(known, new.text, scope.name), observed, is_new=False)
        save_blocks(store, number, scope.index)
        duplicate, successor = _links(scope, new)
        written, reason = _judge(scope, observed.surprise, duplicate is not None)
        row = Row(
            *(0, new.id, new.text, new.speaker, new.time, new.metadata, observed.surprise),
            *(written, reason, duplicate, successor),
        )
        data = observed.write.to_bytes() if written else None
        seq = store.add(number, row, [view.to_passage() for view in new.views], data)
        state = scope.neural.absorb(scope.state, observed.write) if written else None
        snapshot_is_due = scope.writes_since_snapshot + 1 >= config.snapshot_every
        if state is not None and snapshot_is_due:
            snapshot = scope.neural.dump(state)
            store.save_snapshot(number, seq, snapshot, config.keep_snapshots)
        # By query, not from memory: the index holds what a reader of the store would hold.
        entries = [Entry(*e) for e in store.index_entries(number, seq - 1)]
    scope.advance(entries, [view.terms for view in new.views], state)
    if state is not None and snapshot_is_due:
        scope.writes_since_snapshot = 0
    return Written(row, observed)


def refuse_other_text(known: Row, text: str, scope: str) -> Row:
    """The record that has the id already; an error if it holds another text."""
    if known.text != text:
        raise DataError(
            f"id {known.id!r} holds another text in scope {scope!r}; "
            "records are not changed: use a new id, or forget the old record first"
        )
    return known


def observe_text(scope: OpenScope, text: str, views: list[View], time: int) -> Observation:
    """Meet a text without writing it: its vector, surprise, and what it would write."""
    pooled = F.normalize(torch.stack([view.bare for view in views]).mean(0), dim=-1)
    stems = {stem(word): word for word in words(text) if word not in STOP_WORDS}
    around = scope.surroundings(stems, time)
    return scope.neural.observe(pooled.half().float(), scope.state, around)


def _judge(scope: OpenScope, surprise: float, is_duplicate: bool) -> tuple[bool, str]:
    """Whether to write to the neural memory, and why."""
    if is_duplicate:
        return False, "says what another record says"
    gate = scope.gate()
    if gate and surprise <= gate:
        return False, f"surprise {surprise:.3g} is at or below the gate {gate:.3g}"
    if not gate:
        return True, f"surprise {surprise:.3g}; the gate is open"
    return True, f"surprise {surprise:.3g} is above the gate {gate:.3g}"


def _links(scope: OpenScope, new: NewText) -> tuple[int | None, int | None]:
    """The seq of the record that this text repeats, and of the one that it updates."""
    index = scope.index
    if len(new.views) != 1 or not len(index) or scope.id is None:
        return None, None
    view = new.views[0]
    rows, cosines = index.nearest(view.bare.numpy(), LINK_CANDIDATES, quick=True)
    rows, cosines = rows[cosines >= SUCCESSOR_COSINE], cosines[cosines >= SUCCESSOR_COSINE]
    statement = Statement(new.text, new.speaker, view.tokens)
    stored = scope.store.rows(scope.id, [int(s) for s in index.column("seq")[rows]])
    passages = [int(p) for p in index.column("passage")[rows]]
    tokens = scope.store.token_vectors(passages)
    for row, cosine, passage in zip(rows, cosines, passages, strict=True):
        seq = int(index.column("seq")[row])
        old_tokens = np.frombuffer(tokens[passage], np.int8).reshape(-1, view.tokens.shape[1])
        old = Statement(stored[seq].text, stored[seq].speaker, old_tokens)
        link = judge_link(statement, old, float(cosine), scope.config.duplicate_threshold)
        if link == "duplicate":
            return int(index.column("group")[row]), None
        if link == "successor" and not index.column("replaced")[row]:
            return None, seq
    return None, None
