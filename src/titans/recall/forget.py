"""Forgetting for good: records with all that belongs to them, and their part of the neural memory.

The neural memory cannot be un-written, so it is computed again: from the last snapshot before the
first forgotten record, through the log of writes without the forgotten ones. The writes of the two
records after a forgotten one held its vector as context; they are made
again. The store removes traces from its files.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from titans.errors import DataError
from titans.recall.neural import CONTEXT, Surroundings, Write, context_pair
from titans.recall.scope import OpenScope
from titans.recall.store import SQLiteStore

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Forgotten:
    """What was done."""

    records: int
    replayed: int
    """Writes that were computed again."""
    seconds: float
    is_complete: bool
    """Whether no trace is left in any file of the store. If another process was reading, the files
    still hold the old text: the next process that opens the store or writes to it removes it."""


def forget_records(
    store: SQLiteStore,
    scope: OpenScope,
    *,
    record_id: str | None = None,
    before: int | None = None,
    progress: Progress | None = None,
) -> Forgotten:
    """Forget one record by its id, or all from before a time (in microseconds)."""
    begin = time.perf_counter()
    replayed = 0
    with store.writing():
        scope.refresh()
        seqs = _chosen(store, scope, record_id, before)
        if seqs and scope.id is not None:
            # Everything newer than the first forgotten record is replayed without it.
            _mend_context(store, scope, seqs)
            store.delete_records(scope.id, seqs)
            replayed = _rebuild(store, scope, progress)
    return Forgotten(len(seqs), replayed, time.perf_counter() - begin, store.is_clean)


def forget_scope(store: SQLiteStore, name: str) -> Forgotten:
    """Forget a whole scope, its name included."""
    begin = time.perf_counter()
    with store.writing():
        head = store.head(name)
        if head is None:
            raise DataError(f"there is no scope {name!r} in {store.path}")
        count = store.counts(head.id)["records"]
        store.delete_scope(head.id)
    return Forgotten(count, 0, time.perf_counter() - begin, store.is_clean)


def _chosen(
    store: SQLiteStore, scope: OpenScope, record_id: str | None, before: int | None
) -> list[int]:
    if record_id is None:
        return [] if scope.id is None else [r.seq for r in store.all_rows(scope.id, before=before)]
    found = None if scope.id is None else store.find(scope.id, record_id)
    if found is None:
        raise DataError(f"there is no record {record_id!r} in scope {scope.name!r}")
    return [found.seq]


def _mend_context(store: SQLiteStore, scope: OpenScope, seqs: list[int]) -> None:
    """Make the context pairs anew of records whose neighbours are about to go."""
    if scope.neural.config.roles != "associative" or scope.id is None:
        return
    index = scope.index
    all_seqs, times = index.column("seq"), index.column("time")
    gone = np.isin(all_seqs, seqs)
    kept = np.flatnonzero(~gone)
    gap = scope.config.session_gap_hours * 3600e6
    near = {int(row) + back for row in np.flatnonzero(gone) for back in (1, 2)}
    for row in sorted(near):
        if row >= len(index) or gone[row]:
            continue
        recent: list[torch.Tensor] = []
        when = times[row]
        for before in reversed(kept[kept < row][-2:]):
            if abs(when - times[before]) > gap:
                break
            recent.insert(0, _vector(scope, int(before)))
            when = times[before]
        _rewrite(store, scope, int(all_seqs[row]), row, tuple(recent))


def _rewrite(
    store: SQLiteStore, scope: OpenScope, seq: int, row: int, recent: tuple[torch.Tensor, ...]
) -> None:
    assert scope.id is not None
    found = store.neural_write(scope.id, seq)
    if found is None:
        return
    old = Write.from_bytes(found, scope.neural.config.num_heads)
    around = Surroundings({}, recent, scope.centre())
    key, value = context_pair(_vector(scope, row), around)
    keys, values = old.keys.clone(), old.values.clone()
    keys[CONTEXT], values[CONTEXT] = key, value
    store.replace_neural_write(scope.id, seq, Write(keys, values).to_bytes())


def _vector(scope: OpenScope, row: int) -> torch.Tensor:
    bare = torch.from_numpy(scope.index.bare(row))
    return scope.neural.block.embed(bare[None])[0]


def _rebuild(store: SQLiteStore, scope: OpenScope, progress: Progress | None) -> int:
    """Replay the log from the newest snapshot that is left, and keep the result as a snapshot."""
    assert scope.id is not None
    head = store.head(scope.name)
    assert head is not None
    found = store.newest_snapshot(scope.id, head.last_seq)
    neural = scope.neural
    state = neural.initial_state() if found is None else neural.restore(found[1])
    writes = store.neural_writes(scope.id, 0 if found is None else found[0], head.last_seq)
    every = max(scope.config.snapshot_every, len(writes) // scope.config.keep_snapshots + 1)
    for number, (seq, data) in enumerate(writes, 1):
        state = neural.absorb(state, Write.from_bytes(data, neural.config.num_heads))
        if number % every == 0 or (number == len(writes) and number >= every // 2):
            store.save_snapshot(scope.id, seq, neural.dump(state), scope.config.keep_snapshots)
        if progress is not None:
            progress(number, len(writes))
    return len(writes)
