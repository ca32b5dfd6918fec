"""The schema of a store, as an append-only list of steps: old stores and new ones take one path.

Never edit a step that was released; add the next. `PRAGMA user_version` is the number of steps
done, so a store written by a newer version is recognised and left alone.
"""

import sqlite3
from collections.abc import Callable

APPLICATION_ID = 0x7469746E  # "titn": what `file` shows, and how another program's file is told


def m001_records(db: sqlite3.Connection) -> None:
    """Scopes, records, passages with their vectors, the lexical index, snapshots."""
    statements = [
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE scopes (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            generation INTEGER NOT NULL DEFAULT 0,  -- rises when something is forgotten
            last_seq INTEGER NOT NULL DEFAULT 0     -- the newest record of the scope
        )""",
        """CREATE TABLE records (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of writing; never reused
            scope INTEGER NOT NULL REFERENCES scopes(id),
            id TEXT NOT NULL,
            text TEXT NOT NULL,
            speaker TEXT,
            time INTEGER NOT NULL,                  -- microseconds since 1970, UTC
            metadata TEXT,                          -- JSON
            surprise REAL NOT NULL,
            written INTEGER NOT NULL,               -- whether the neural memory was written
            reason TEXT NOT NULL,
            duplicate_of INTEGER,                   -- seq of the first of its group
            successor_of INTEGER,                   -- seq of the statement that it updates
            UNIQUE (scope, id)
        )""",
        "CREATE INDEX records_by_scope ON records (scope, seq)",
        "CREATE INDEX records_by_time ON records (scope, time)",
        "CREATE INDEX records_by_successor ON records (successor_of) WHERE successor_of NOT NULL",
        """CREATE TABLE passages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            scope INTEGER NOT NULL,
            seq INTEGER NOT NULL REFERENCES records(seq),
            num_terms INTEGER NOT NULL,
            flags INTEGER NOT NULL,                 -- what kind of text it is (views.py)
            vectors BLOB NOT NULL                   -- float16: in context, and the bare text
        )""",
        "CREATE INDEX passages_by_scope ON passages (scope, seq)",
        "CREATE INDEX passages_by_record ON passages (seq)",
        """CREATE TABLE passage_tokens (
            passage INTEGER PRIMARY KEY REFERENCES passages(id),
            vectors BLOB NOT NULL                   -- int8: the content words, one vector each
        )""",
        # What was written into the neural memory, so that any state can be computed again.
        """CREATE TABLE neural_writes (
            seq INTEGER PRIMARY KEY REFERENCES records(seq),
            scope INTEGER NOT NULL,
            vectors BLOB NOT NULL                   -- float16: keys and values of all heads
        )""",
        "CREATE INDEX neural_writes_by_scope ON neural_writes (scope, seq)",
        """CREATE TABLE snapshots (
            scope INTEGER NOT NULL,
            seq INTEGER NOT NULL,                   -- the state after this record
            state BLOB NOT NULL,
            PRIMARY KEY (scope, seq)
        )""",
        """CREATE TABLE persistent_texts (
            scope INTEGER NOT NULL,
            position INTEGER NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (scope, position)
        )""",
        # The terms carry their scope as a prefix, so that document frequencies are those of one
        # scope: nothing of one scope can be inferred from the scores of another.
        "CREATE VIRTUAL TABLE lexicon USING fts5(body, tokenize='unicode61')",
        "CREATE VIRTUAL TABLE lexicon_terms USING fts5vocab('lexicon', 'instance')",
        "CREATE VIRTUAL TABLE lexicon_counts USING fts5vocab('lexicon', 'row')",
        f"PRAGMA application_id = {APPLICATION_ID}",
    ]
    for statement in statements:
        db.execute(statement)


def m002_index_blocks(db: sqlite3.Connection) -> None:
    """Blocks of the index, so that a large scope opens at once (blocks.py)."""
    db.execute(
        """CREATE TABLE index_blocks (
            scope INTEGER NOT NULL,
            last_seq INTEGER NOT NULL,              -- the newest record in the block
            num_rows INTEGER NOT NULL,              -- passages in it
            data BLOB NOT NULL,
            PRIMARY KEY (scope, last_seq)
        )"""
    )


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [m001_records, m002_index_blocks]
"""Every step ever released, in order."""


def migrate(db: sqlite3.Connection) -> int:
    """Bring an open store to the newest schema inside the caller's transaction.

    Returns:
        The number of steps that were needed.
    """
    done = schema_version(db)
    for number, step in enumerate(MIGRATIONS[done:], done + 1):
        step(db)
        db.execute(f"PRAGMA user_version = {number}")
    return len(MIGRATIONS) - done


def schema_version(db: sqlite3.Connection) -> int:
    """How many steps a store has seen; 0 for an empty file."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])
