"""Forgetting for good: rows, index entries, links, free pages, the log, the neural part.

The neural memory cannot be un-written, so it is computed again: from the last snapshot before the
first forgotten record, through the log of writes without the forgotten ones. The writes of the two
records behind a forgotten one held its vector as context; they are made anew.
"""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from titans.errors import DataError, StoreError
from titans.recall.neural import CONTEXT, Surroundings, Write, context_pair
from titans.recall.scope import OpenScope
from titans.recall.store import Store

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Forgotten:
    """What was done."""

    records: int
    replayed: int
    """Writes that were computed again."""
    seconds: float


def forget_records(
    store: Store,
    scope: OpenScope,
    *,
    record_id: str | None = None,
    before: int | None = None,
    progress: Progress | None = None,
) -> Forgotten:
    """Forget one record by its id, or all from before a time (in microseconds)."""
    begin = time.perf_counter()
    with store.writing():
        scope.refresh()
        seqs = _chosen(store, scope, record_id, before)
        replayed = 0
        if seqs and scope.id is not None:
            # Everything newer than the first forgotten record is replayed without it.
            _mend_context(store, scope, seqs)
            _delete(store, scope.id, seqs)
            replayed = _rebuild(store, scope, min(seqs), progress)
            store.db.execute(
                "UPDATE scopes SET generation = generation + 1 WHERE id = ?", (scope.id,)
            )
        _purge_index(store)
    scrub(store)
    return Forgotten(len(seqs), replayed, time.perf_counter() - begin)


def forget_scope(store: Store, name: str) -> Forgotten:
    """Forget a whole scope, its name included."""
    begin = time.perf_counter()
    with store.writing():
        scope = store.scope_id(name)
        if scope is None:
            raise DataError(f"there is no scope {name!r} in {store.path}")
        seqs = [row.seq for row in store.all_rows(scope)]
        _delete(store, scope, seqs)
        for table in ("snapshots", "persistent_texts", "neural_writes", "index_blocks"):
            store.db.execute(f"DELETE FROM {table} WHERE scope = ?", (scope,))
        store.db.execute("DELETE FROM scopes WHERE id = ?", (scope,))
        _purge_index(store)
    scrub(store)
    return Forgotten(len(seqs), 0, time.perf_counter() - begin)


def scrub(store: Store) -> None:
    """Write the file anew without free pages, and empty the write-ahead log."""
    try:
        store.db.execute("VACUUM")
        busy = store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.Error as error:
        busy = str(error)
    if busy:
        raise StoreError(
            f"{store.path}: the records are forgotten, but traces may remain in the file because "
            f"another process was using it ({busy}): close it there and forget again"
        )


def files_of(path: Path) -> list[Path]:
    """The store's file and those that SQLite keeps beside it."""
    names = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))]
    return [name for name in names if name.exists()]


def _chosen(store: Store, scope: OpenScope, record_id: str | None, before: int | None) -> list[int]:
    if scope.id is None:
        found = None
    elif record_id is not None:
        found = store.find(scope.id, record_id)
        if found is not None:
            return [found.seq]
    else:
        return [row.seq for row in store.all_rows(scope.id, before=before)]
    if record_id is not None:
        raise DataError(f"there is no record {record_id!r} in scope {scope.name!r}")
    return []


def _delete(store: Store, scope: int, seqs: list[int]) -> None:
    """Remove rows everywhere, and repair the links of those that stay."""
    db = store.db
    db.execute("CREATE TEMP TABLE IF NOT EXISTS gone (seq INTEGER PRIMARY KEY)")
    db.execute("DELETE FROM gone")
    db.executemany("INSERT INTO gone VALUES (?)", [(seq,) for seq in seqs])
    in_gone = "IN (SELECT seq FROM gone)"
    passages = f"(SELECT id FROM passages WHERE seq {in_gone})"
    db.execute(f"DELETE FROM lexicon WHERE rowid IN {passages}")
    db.execute(f"DELETE FROM passage_tokens WHERE passage IN {passages}")
    db.execute(f"DELETE FROM passages WHERE seq {in_gone}")
    db.execute(f"DELETE FROM neural_writes WHERE seq {in_gone}")
    db.execute(f"DELETE FROM records WHERE seq {in_gone}")
    # Blocks have no gaps: those from the first forgotten record on are made anew while writing.
    if seqs:
        db.execute("DELETE FROM index_blocks WHERE scope = ? AND last_seq >= ?", (scope, min(seqs)))
    db.execute(
        f"UPDATE records SET successor_of = NULL WHERE scope = ? AND successor_of {in_gone}",
        (scope,),
    )
    # A group whose first record is gone is led by the next one.
    orphans = db.execute(
        f"SELECT duplicate_of, min(seq) FROM records WHERE scope = ? AND duplicate_of {in_gone}"
        " GROUP BY duplicate_of",
        (scope,),
    ).fetchall()
    for leader, heir in orphans:
        db.execute("UPDATE records SET duplicate_of = ? WHERE duplicate_of = ?", (heir, leader))
        db.execute("UPDATE records SET duplicate_of = NULL WHERE seq = ?", (heir,))
    db.execute("DELETE FROM gone")
    newest = db.execute("SELECT max(seq) FROM records WHERE scope = ?", (scope,)).fetchone()[0]
    db.execute("UPDATE scopes SET last_seq = ? WHERE id = ?", (newest or 0, scope))


def _mend_context(store: Store, scope: OpenScope, seqs: list[int]) -> None:
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
    store: Store, scope: OpenScope, seq: int, row: int, recent: tuple[torch.Tensor, ...]
) -> None:
    heads = scope.neural.config.num_heads
    query = "SELECT vectors FROM neural_writes WHERE seq = ?"
    found = store.db.execute(query, (seq,)).fetchone()
    if found is None:
        return
    old = Write.from_bytes(found[0], heads)
    around = Surroundings({}, recent, scope.centre())
    key, value = context_pair(_vector(scope, row), around)
    keys, values = old.keys.clone(), old.values.clone()
    keys[CONTEXT], values[CONTEXT] = key, value
    data = Write(keys, values).to_bytes()
    store.db.execute("UPDATE neural_writes SET vectors = ? WHERE seq = ?", (data, seq))


def _vector(scope: OpenScope, row: int) -> torch.Tensor:
    bare = torch.from_numpy(scope.index.bare(row))
    return scope.neural.block.embed(bare[None])[0]


def _rebuild(store: Store, scope: OpenScope, first: int, progress: Progress | None) -> int:
    """Replay the log from before `first`, and keep the result as a snapshot."""
    assert scope.id is not None
    store.db.execute("DELETE FROM snapshots WHERE scope = ? AND seq >= ?", (scope.id, first))
    newest = store.head(scope.id).last_seq
    found = store.newest_snapshot(scope.id, newest)
    neural = scope.neural
    state = neural.initial_state() if found is None else neural.restore(found[1])
    writes = list(store.neural_writes(scope.id, 0 if found is None else found[0], newest))
    every = max(scope.config.snapshot_every, len(writes) // scope.config.keep_snapshots + 1)
    for number, (seq, data) in enumerate(writes, 1):
        state = neural.absorb(state, Write.from_bytes(data, neural.config.num_heads))
        if number % every == 0 or (number == len(writes) and number >= every // 2):
            store.save_snapshot(scope.id, seq, neural.dump(state), scope.config.keep_snapshots)
        if progress is not None:
            progress(number, len(writes))
    return len(writes)


def _purge_index(store: Store) -> None:
    """Merge the lexical index into one segment: FTS5 keeps deleted words until it merges."""
    store.db.execute("INSERT INTO lexicon (lexicon) VALUES ('optimize')")
