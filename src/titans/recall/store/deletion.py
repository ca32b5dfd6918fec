"""Deleting from a store: rows, postings, counts, and the links of the records that stay."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from titans.recall.store.rows import Rows
from titans.recall.store.seal import SEALED, Value

SCOPED = ("records", "neural_writes", "snapshots", "persistent_texts", "index_blocks", "terms")
"""Tables with a column `scope`, passages left out."""


def delete_scope(store: Rows, scope_id: int) -> None:
    """Remove a scope with everything in it, its name included."""
    passages = "(SELECT id FROM passages WHERE scope = ?)"
    store.execute(f"DELETE FROM passage_tokens WHERE passage IN {passages}", scope_id)
    terms = "(SELECT id FROM terms WHERE scope = ?)"
    store.execute(f"DELETE FROM postings WHERE term IN {terms}", scope_id)
    for table in (*SCOPED, "passages"):
        store.execute(f"DELETE FROM {table} WHERE scope = ?", scope_id)
    store.execute("DELETE FROM scopes WHERE id = ?", scope_id)


def delete_records(store: Rows, scope_id: int, seqs: Sequence[int]) -> None:
    """Remove records with all that belongs to them."""
    in_gone, gone = store.among("seq", seqs)
    query = f"SELECT seq, successor_of FROM records WHERE scope = ? AND {in_gone}"
    updated: dict[Value, Value] = dict(store.execute(query, scope_id, *gone).fetchall())
    passages = f"(SELECT id FROM passages WHERE scope = ? AND {in_gone})"
    _delete_postings(store, passages, (scope_id, *gone))
    store.execute(f"DELETE FROM passage_tokens WHERE passage IN {passages}", scope_id, *gone)
    for table in ("passages", "neural_writes", "records"):
        query = f"DELETE FROM {table} WHERE scope = ? AND {in_gone}"
        count = store.execute(query, scope_id, *gone).rowcount
    # Snapshots hold all that was written before.
    query = "DELETE FROM snapshots WHERE scope = ? AND seq >= ?"
    store.execute(query, scope_id, min(seqs))
    mended = _mend_links(store, scope_id, seqs, updated)
    _delete_blocks(store, scope_id, [*seqs, *mended])
    query = "SELECT coalesce(max(seq), 0) FROM records WHERE scope = ?"
    last_seq = int(store.execute(query, scope_id).fetchone()[0])
    number, name, generation, _, num_records, marks = store.scope_row(scope_id)
    row = (number, name, generation + 1, last_seq, num_records - count, marks)
    store.insert("scopes", *row, replace=True)


def _delete_blocks(store: Rows, scope_id: int, seqs: Sequence[int]) -> None:
    """Remove the blocks of the index that hold some records."""
    query = "SELECT last_seq FROM index_blocks WHERE scope = ? ORDER BY last_seq"
    ends = [int(row[0]) for row in store.execute(query, scope_id).fetchall()]
    places = {bisect_left(ends, seq) for seq in seqs}
    condition, gone = store.among("last_seq", [ends[p] for p in places if p < len(ends)])
    store.execute(f"DELETE FROM index_blocks WHERE scope = ? AND {condition}", scope_id, *gone)


def _delete_postings(store: Rows, passages: str, values: tuple[Any, ...]) -> None:
    query = f"SELECT count(*), term FROM postings WHERE passage IN {passages} GROUP BY term"
    fewer = {term: count for count, term in store.execute(query, *values).fetchall()}
    store.execute(f"DELETE FROM postings WHERE passage IN {passages}", *values)
    in_fewer, terms = store.among("id", list(fewer))
    rows = list(store.select("terms", in_fewer, *terms))
    left = [(*kept, count - fewer[kept[0]]) for *kept, count in rows]
    store.insert_many("terms", [row for row in left if row[-1] > 0], replace=True)
    in_unused, terms = store.among("id", [row[0] for row in left if row[-1] <= 0])
    store.execute(f"DELETE FROM terms WHERE {in_unused}", *terms)


def _mend_links(
    store: Rows, scope_id: int, seqs: Sequence[int], updated: dict[Value, Value]
) -> list[int]:
    """Lead links past what is gone. A group whose first record is gone is led by the next one, and
    so is a chain of updates.

    Args:
        updated: the records that are gone -> what they updated.

    Returns:
        The seqs of the records whose links have changed.
    """
    mended: list[int] = []
    leaders: dict[Value, Value] = {}
    heirs: dict[Value, Value] = {}
    updates, gone = store.among("successor_of", seqs)
    repeats, _ = store.among("duplicate_of", seqs)
    where = f"scope = ? AND ({updates} OR {repeats}) ORDER BY seq"
    place = SEALED["records"].index("duplicate_of")
    for row in list(store.select("records", where, scope_id, *gone, *gone)):
        duplicate_of, successor_of = row[place : place + 2]
        if duplicate_of in updated:
            leader = leaders.setdefault(duplicate_of, row[0])
            if leader == row[0]:
                successor_of, duplicate_of = updated[duplicate_of], None
            else:
                duplicate_of = leader
        first = successor_of
        while first in updated and updated[first] is not None:
            first = updated[first]
        if first in updated:
            heir = heirs.setdefault(first, row[0])
            first = None if heir == row[0] else heir
        mended.append(row[0])
        links = (duplicate_of, first)
        store.insert("records", *row[:place], *links, *row[place + 2 :], replace=True)
    return mended
