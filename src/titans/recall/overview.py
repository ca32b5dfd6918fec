"""Looking over a scope: how a fact has changed, and what stands out. No LLM is asked."""

from collections.abc import Callable
from heapq import nlargest
from itertools import pairwise

import numpy as np

from titans.recall.records import Record, Summary, to_record
from titans.recall.replica import Replica
from titans.recall.store import StoredRecord


def history(replica: Replica, seq: int) -> list[Record]:
    """All statements of the fact that a record states, oldest first, without repetitions."""
    assert replica.scope_id is not None
    index = replica.index
    facts = index.column("fact")
    same = np.isin(facts, facts[index.column("seq") == seq])
    seqs = np.unique(index.column("seq")[same]).tolist()
    stated = replica.store.records(replica.scope_id, seqs)
    ids = {number: record.id for number, record in stated.items()}
    told = [record for record in stated.values() if record.duplicate_of is None]
    ordered = sorted(told, key=lambda record: (record.time, record.seq))
    return [to_record(record, ids, is_new=False) for record in ordered]


def summarise(replica: Replica, count: int, now: int) -> Summary:
    """The most surprising, most recalled and most updated statements; reads every record.

    Args:
        now: in microseconds; what has expired then is left out.
    """
    if replica.scope_id is None:
        return Summary(0, [], [], [], {})
    store, index = replica.store, replica.index
    expired = index.expired(now)
    gone = set[int]() if expired is None else set(index.column("seq")[expired].tolist())
    records = [r for r in store.list_records(replica.scope_id) if r.seq not in gone]
    updates = _updates(replica, gone)

    def most(value: Callable[[StoredRecord], float], among: list[StoredRecord]) -> list[Record]:
        found = [record for record in nlargest(count, among, value) if value(record) > 0]
        linked = {s for r in found for s in (r.duplicate_of, r.successor_of) if s is not None}
        ids = {s: r.id for s, r in store.records(scope_id, sorted(linked)).items()}
        return [to_record(record, ids, is_new=False) for record in found]

    scope_id = replica.scope_id
    updated = most(lambda record: updates.get(record.seq, 0), records)
    number = {record.id: updates.get(record.seq, 0) for record in records}
    return Summary(
        records=len(records),
        surprising=most(lambda r: r.surprise, [r for r in records if r.duplicate_of is None]),
        recalled=most(lambda record: record.recalls, records),
        updated=updated,
        updates={record.id: number[record.id] for record in updated},
    )


def _updates(replica: Replica, gone: set[int]) -> dict[int, int]:
    """By the seq of the latest statement of a fact, how often the fact was updated."""
    seqs, groups = replica.index.column("seq"), replica.index.column("group")
    found: dict[int, int] = {}
    for history in replica.index.histories(np.arange(len(seqs))).values():
        alive = [row for row in history.tolist() if int(seqs[row]) not in gone]
        values = [int(groups[row]) for row in alive]
        changes = sum(a != b for a, b in pairwise(values))
        if changes:
            found[int(seqs[alive[-1]])] = changes
    return found
