"""Looking for damage in a store: checksums, and rows that do not fit each other."""

import sqlite3
from collections.abc import Callable, Iterator

import numpy as np

from titans.errors import StoreError
from titans.recall.store.deletion import SCOPED
from titans.recall.store.rows import Rows
from titans.recall.store.seal import POSTING, SEALED, are_sound, is_sound

Progress = Callable[[str], None]
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError, StoreError)
"""What a database raises if it cannot read on."""

IN_SCOPES = "(SELECT id FROM scopes)"
_SAME_SCOPE = "SELECT 1 FROM records r WHERE r.scope = t.scope AND r.seq = "
MISFITS: dict[str, str] = {
    **{
        f"{table} of no scope": f"SELECT count(*) FROM {table} WHERE scope NOT IN {IN_SCOPES}"
        for table in (*SCOPED, "passages")
    },
    "passages of no record": (
        f"SELECT count(*) FROM passages t WHERE NOT EXISTS ({_SAME_SCOPE} t.seq)"
    ),
    "records without a passage": (
        "SELECT count(*) FROM records WHERE seq NOT IN (SELECT seq FROM passages)"
    ),
    "passages without word vectors": (
        "SELECT count(*) FROM passages WHERE id NOT IN (SELECT passage FROM passage_tokens)"
    ),
    "word vectors of no passage": (
        "SELECT count(*) FROM passage_tokens WHERE passage NOT IN (SELECT id FROM passages)"
    ),
    "neural writes of no written record": (
        f"SELECT count(*) FROM neural_writes t WHERE NOT EXISTS ({_SAME_SCOPE} t.seq AND r.written)"
    ),
    "written records without a neural write": (
        "SELECT count(*) FROM records WHERE written AND seq NOT IN (SELECT seq FROM neural_writes)"
    ),
    "postings of no passage or no term of its scope": (
        "SELECT count(*) FROM postings WHERE NOT EXISTS (SELECT 1 FROM terms t, passages p"
        " WHERE t.id = postings.term AND p.id = postings.passage AND t.scope = p.scope)"
    ),
    "passages whose words are not all in the postings": (
        "SELECT count(*) FROM passages p WHERE num_terms !="
        " (SELECT coalesce(sum(count), 0) FROM postings WHERE passage = p.id)"
    ),
    "terms whose count is not that of their postings": (
        "SELECT count(*) FROM terms t WHERE num_passages !="
        " (SELECT count(*) FROM postings WHERE term = t.id)"
    ),
    "records that repeat a record which is not there": (
        "SELECT count(*) FROM records t WHERE duplicate_of IS NOT NULL"
        f" AND NOT EXISTS ({_SAME_SCOPE} t.duplicate_of)"
    ),
    "records that update a record which is not there": (
        "SELECT count(*) FROM records t WHERE successor_of IS NOT NULL"
        f" AND NOT EXISTS ({_SAME_SCOPE} t.successor_of)"
    ),
    "scopes whose newest record is another": (
        "SELECT count(*) FROM scopes s WHERE last_seq !="
        " (SELECT coalesce(max(seq), 0) FROM records WHERE scope = s.id)"
    ),
    "scopes whose number of records is another": (
        "SELECT count(*) FROM scopes s WHERE num_records !="
        " (SELECT count(*) FROM records WHERE scope = s.id)"
    ),
    "blocks that end at no record": (
        f"SELECT count(*) FROM index_blocks t WHERE NOT EXISTS ({_SAME_SCOPE} t.last_seq)"
    ),
    "scopes whose blocks leave passages out": (
        "SELECT count(*) FROM scopes s WHERE"
        " (SELECT coalesce(sum(num_rows), 0) FROM index_blocks WHERE scope = s.id) !="
        " (SELECT count(*) FROM passages p WHERE p.scope = s.id AND p.seq <="
        " (SELECT coalesce(max(last_seq), 0) FROM index_blocks WHERE scope = s.id))"
    ),
}
"""What there must be none of -> a query that counts it."""


def damages(store: Rows, progress: Progress | None = None) -> Iterator[str]:
    """Everything that cannot have been written like this, a line each; reads all rows."""
    for name, look in (("checksums", _checksums), ("relations", _misfits)):
        if progress is not None:
            progress(name)
        # What a database says of damage may have several lines.
        yield from (" ".join(line.split()) for line in look(store))


def _checksums(store: Rows) -> Iterator[str]:
    for table, columns in SEALED.items():
        try:
            names = ", ".join((*columns, "checksum"))
            for part in store.scan(f"SELECT {names} FROM {table}", 256):
                for row in part:
                    if not is_sound(row):
                        yield f"checksum: {store.describe(table, row)} is not what was written"
        except UNREADABLE as error:
            yield f"checksum: {table} cannot be read to its end ({error})"
    try:
        query = f"SELECT {', '.join(POSTING)}, checksum FROM postings"
        for part in store.scan(query, 10_000):
            if not are_sound(np.array(part, np.int64)):
                yield f"checksum: postings of terms {part[0][0]} to {part[-1][0]} are not sound"
    except (*UNREADABLE, OverflowError) as error:
        yield f"checksum: postings cannot be read to their end ({error})"


def _misfits(store: Rows) -> Iterator[str]:
    for name, query in MISFITS.items():
        try:
            count = int(store.execute(query).fetchone()[0])
        except UNREADABLE as error:
            yield f"relation: {name} cannot be counted ({error})"
            continue
        if count:
            yield f"relation: {count} {name}"
