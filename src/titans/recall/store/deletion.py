"""Deleting from an SQLite store: rows, postings, counts, and the links of the records that stay."""

from collections.abc import Sequence

from titans.recall.store.connection import Connection
from titans.recall.store.seal import SEALED, Value

SCOPED = ("records", "neural_writes", "snapshots", "persistent_texts", "index_blocks", "terms")
"""Tables with a column `scope`, passages left out."""


def delete_scope(store: Connection, scope_id: int) -> None:
    """Remove a scope with everything in it, its name included."""
    db = store.db
    passages = "(SELECT id FROM passages WHERE scope = ?)"
    db.execute(f"DELETE FROM passage_tokens WHERE passage IN {passages}", (scope_id,))
    terms = "(SELECT id FROM terms WHERE scope = ?)"
    db.execute(f"DELETE FROM postings WHERE term IN {terms}", (scope_id,))
    for table in (*SCOPED, "passages"):
        db.execute(f"DELETE FROM {table} WHERE scope = ?", (scope_id,))
    db.execute("DELETE FROM scopes WHERE id = ?", (scope_id,))


def delete_records(store: Connection, scope_id: int, seqs: Sequence[int]) -> None:
    """Remove records with all that belongs to them."""
    db = store.db
    db.execute("CREATE TEMP TABLE IF NOT EXISTS gone (seq INTEGER PRIMARY KEY)")
    db.execute("DELETE FROM gone")
    db.executemany("INSERT INTO gone VALUES (?)", [(seq,) for seq in seqs])
    in_gone = "IN (SELECT seq FROM gone)"
    query = f"SELECT seq, successor_of FROM records WHERE seq {in_gone}"
    updated: dict[Value, Value] = dict(db.execute(query).fetchall())
    passages = f"(SELECT id FROM passages WHERE seq {in_gone})"
    _delete_postings(store, scope_id, passages)
    db.execute(f"DELETE FROM passage_tokens WHERE passage IN {passages}")
    for table in ("passages", "neural_writes", "records"):
        count = db.execute(f"DELETE FROM {table} WHERE seq {in_gone}").rowcount
    # Blocks have no gaps, and snapshots hold all that was written before: both go from the first.
    for table, column in (("index_blocks", "last_seq"), ("snapshots", "seq")):
        db.execute(f"DELETE FROM {table} WHERE scope = ? AND {column} >= ?", (scope_id, min(seqs)))
    _mend_links(store, scope_id, in_gone, updated)
    db.execute("DELETE FROM gone")
    query = "SELECT coalesce(max(seq), 0) FROM records WHERE scope = ?"
    last_seq = int(db.execute(query, (scope_id,)).fetchone()[0])
    number, name, generation, _, num_records, marks = store.scope_row(scope_id)
    row = (number, name, generation + 1, last_seq, num_records - count, marks)
    store.insert("scopes", *row, replace=True)


def _delete_postings(store: Connection, scope_id: int, passages: str) -> None:
    db = store.db
    query = f"SELECT count(*), term FROM postings WHERE passage IN {passages} GROUP BY term"
    counted = db.execute(query).fetchall()
    db.execute(f"DELETE FROM postings WHERE passage IN {passages}")
    for fewer, term_id in counted:
        for *kept, num_passages in list(store.select("terms", "id = ?", term_id)):
            if num_passages > fewer:
                store.insert("terms", *kept, num_passages - fewer, replace=True)
            else:
                db.execute("DELETE FROM terms WHERE id = ?", (term_id,))


def _mend_links(
    store: Connection, scope_id: int, in_gone: str, updated: dict[Value, Value]
) -> None:
    """Lead links past what is gone. A group whose first record is gone is led by the next one, and
    so is a chain of updates.

    Args:
        updated: the records that are gone -> what they updated.
    """
    leaders: dict[Value, Value] = {}
    heirs: dict[Value, Value] = {}
    where = f"scope = ? AND (successor_of {in_gone} OR duplicate_of {in_gone}) ORDER BY seq"
    place = SEALED["records"].index("duplicate_of")
    for row in list(store.select("records", where, scope_id)):
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
        links = (duplicate_of, first)
        store.insert("records", *row[:place], *links, *row[place + 2 :], replace=True)
