"""Forgetting permanently: records with all that belongs to them, also in the neural memory.

The neural memory cannot be un-written, so it is computed again: from the last snapshot before the
first forgotten record, through the log of writes without the forgotten ones. The writes of the two
records after a forgotten one held its vector as context; they are made again. The store removes
traces from its files.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from titans.errors import DataError
from titans.recall.neural.memory import CONTEXT, Surroundings, Write, context_pair
from titans.recall.replica import Replica
from titans.recall.search.blocks import renew_blocks
from titans.recall.store import Filter, Store
from titans.recall.text.passages import pool_passages

Progress = Callable[[int, int], None]
AT_ONCE = 1024
"""Neural writes that are read and absorbed together."""


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


class Due(NamedTuple):
    """What need not be kept: what has expired now, and what was said before a time. Nothing that
    is pinned. Times in microseconds."""

    now: int
    before: int | None = None


def forget_records(
    replica: Replica, which: str | Filter | Due, *, progress: Progress | None = None
) -> Forgotten:
    """Forget one record by its id, all that a filter means, or all that is due."""
    begin = time.perf_counter()
    store, replayed = replica.store, 0
    with store.writing(replica.scope):
        replica.refresh()
        seqs = _chosen(replica, which)
        if seqs and replica.scope_id is not None:
            # Everything newer than the first forgotten record is replayed without it.
            _mend_context(replica, replica.scope_id, seqs)
            blocks = store.block_ends(replica.scope_id)
            store.delete_records(replica.scope_id, seqs)
            renew_blocks(store, replica.scope_id, replica.encoder.dim, blocks)
            replayed = rebuild(replica, replica.scope_id, progress)
    return Forgotten(len(seqs), replayed, time.perf_counter() - begin, store.is_clean)


def forget_scope(store: Store, scope: str) -> Forgotten:
    """Forget a whole scope, its name included."""
    begin = time.perf_counter()
    with store.writing(scope):
        head = store.head(scope)
        if head is None:
            raise DataError(f"there is no scope {scope!r} in {store.name}")
        count = store.counts(head.scope_id)["records"]
        store.delete_scope(head.scope_id)
    return Forgotten(count, 0, time.perf_counter() - begin, store.is_clean)


def _chosen(replica: Replica, which: str | Filter | Due) -> list[int]:
    store, scope_id = replica.store, replica.scope_id
    if isinstance(which, Due):
        return [] if scope_id is None else due_seqs(replica, which)
    if isinstance(which, Filter):
        return [] if scope_id is None else store.find_seqs(scope_id, which)
    found = None if scope_id is None else store.find(scope_id, which)
    if found is None:
        raise DataError(f"there is no record {which!r} in scope {replica.scope!r}")
    return [found.seq]


def due_seqs(replica: Replica, due: Due) -> list[int]:
    """The records that are due, rising."""
    index, scope_id = replica.index, replica.scope_id
    assert scope_id is not None
    seqs, expired = index.column("seq"), index.expired(due.now)
    found = set[int]() if expired is None else set(seqs[expired].tolist())
    if due.before is not None:
        marks = replica.store.marks(scope_id, 0)
        old = seqs[index.column("time") < due.before].tolist()
        found.update(seq for seq in old if not (seq in marks and marks[seq].pinned))
    return sorted(found)


def _mend_context(replica: Replica, scope_id: int, seqs: list[int]) -> None:
    """Make the context pairs again of records that were written with what is about to go."""
    if replica.neural.config.roles != "associative":
        return
    index = replica.index
    all_seqs, times = index.column("seq"), index.column("time")
    gone = np.isin(all_seqs, seqs)
    kept = np.flatnonzero(~gone)
    gap = replica.config.session_gap_hours * 3600e6
    # A record saw the two passages before its first one.
    near = np.unique(np.concatenate([np.flatnonzero(gone) + back for back in (1, 2)]))
    for first in near[near < len(index)].tolist():
        if gone[first] or (first and all_seqs[first - 1] == all_seqs[first]):
            continue
        recent: list[NDArray[np.float32]] = []
        when = times[first]
        for before in reversed(kept[kept < first][-2:].tolist()):
            if abs(when - times[before]) > gap:
                break
            recent.insert(0, _vector(replica, before, before + 1))
            when = times[before]
        after = int(np.searchsorted(all_seqs, all_seqs[first], side="right"))
        own = _vector(replica, first, after)
        _rewrite(replica, scope_id, int(all_seqs[first]), own, tuple(recent))


def _rewrite(
    replica: Replica,
    scope_id: int,
    seq: int,
    own: NDArray[np.float32],
    recent: tuple[NDArray[np.float32], ...],
) -> None:
    found = replica.store.neural_write(scope_id, seq)
    if found is None:
        return
    old = Write.from_bytes(found, replica.neural.config.num_heads)
    key, value = context_pair(own, Surroundings({}, recent, replica.centre()))
    keys, values = old.keys.copy(), old.values.copy()
    keys[CONTEXT], values[CONTEXT] = key, value
    replica.store.replace_neural_write(scope_id, seq, Write(keys, values).to_bytes())


def _vector(replica: Replica, begin: int, end: int) -> NDArray[np.float32]:
    """The vector of a text whose passages are these rows of the index."""
    bare = np.stack([replica.index.bare(row) for row in range(begin, end)])
    return replica.neural.embed(pool_passages(bare))


def rebuild(replica: Replica, scope_id: int, progress: Progress | None) -> int:
    """Replay the log from the newest snapshot that is left, and keep the result as a snapshot."""
    store, neural, config = replica.store, replica.neural, replica.config
    head = store.head(replica.scope)
    assert head is not None
    found = store.newest_snapshot(scope_id, head.last_seq)
    state = neural.initial_state() if found is None else neural.restore(found[1])
    after = 0 if found is None else found[0]
    total = store.count_neural_writes(scope_id, after, head.last_seq)
    every = max(config.snapshot_every, total // config.keep_snapshots + 1)
    writes, done, kept = store.neural_writes(scope_id, after, head.last_seq), 0, 0
    heads = neural.config.num_heads
    while part := list(islice(writes, AT_ONCE)):
        state = neural.replay(state, Write.many_from_bytes([data for _, data in part], heads))
        done += len(part)
        # The last one is kept in any case: all processes must go on from the same bits.
        if done - kept >= every or done == total:
            store.save_snapshot(scope_id, part[-1][0], neural.dump(state), config.keep_snapshots)
            kept = done
        if progress is not None:
            progress(done, total)
    return total
