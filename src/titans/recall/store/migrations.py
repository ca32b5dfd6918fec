"""The schema of a store, as an append-only list of steps: old stores and new ones take one path.

Never edit a step that was released; add the next. `PRAGMA user_version` is the number of steps
done, so a store written by a newer version is recognised and left alone.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable

from titans.recall.store.seal import POSTING_SUM, seal
from titans.recall.text.words import fold

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


def m003_scope_numbers(db: sqlite3.Connection) -> None:
    """Numbers of scopes are never used again: an open handle must not meet another's records."""
    db.execute(
        """CREATE TABLE new_scopes (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            generation INTEGER NOT NULL DEFAULT 0,  -- rises when something is forgotten
            last_seq INTEGER NOT NULL DEFAULT 0     -- the newest record of the scope
        )"""
    )
    db.execute("INSERT INTO new_scopes SELECT id, name, generation, last_seq FROM scopes")
    db.execute("DROP TABLE scopes")
    db.execute("ALTER TABLE new_scopes RENAME TO scopes")
    # No more scopes than records and scopes together were ever made.
    query = "SELECT (SELECT coalesce(max(id), 0) FROM scopes) + coalesce(sum(seq), 0)"
    used = db.execute(f"{query} FROM sqlite_sequence WHERE name = 'records'").fetchone()[0]
    db.execute("DELETE FROM sqlite_sequence WHERE name = 'scopes'")
    db.execute("INSERT INTO sqlite_sequence VALUES ('scopes', ?)", (used,))


def m004_postings(db: sqlite3.Connection) -> None:
    """Where words stand, by scope, as our own tokeniser cuts them.

    FTS5 cut its text once more by its own rules: words with an underscore or a diacritic were never
    found, and one with an underscore could pass for a word of another scope.
    """
    db.execute(
        """CREATE TABLE terms (
            id INTEGER PRIMARY KEY,
            scope INTEGER NOT NULL,
            term TEXT NOT NULL,
            num_passages INTEGER NOT NULL,          -- that hold it
            UNIQUE (scope, term)
        )"""
    )
    db.execute(
        """CREATE TABLE postings (
            term INTEGER NOT NULL REFERENCES terms(id),
            passage INTEGER NOT NULL REFERENCES passages(id),
            count INTEGER NOT NULL,                 -- how often it stands there
            PRIMARY KEY (term, passage)
        ) WITHOUT ROWID"""
    )
    numbers: dict[tuple[int, str], int] = {}
    passages: Counter[int] = Counter()
    # FTS5 keeps the text it was given, which was the terms behind the number of their scope.
    bodies = db.execute(
        "SELECT p.id, p.scope, l.body FROM passages p JOIN lexicon l ON l.rowid = p.id"
    )
    for passage, scope, body in bodies:
        found = Counter(fold(word.removeprefix(f"s{scope}x")) for word in body.split(" ") if word)
        for term, count in found.items():
            number = numbers.setdefault((scope, term), len(numbers) + 1)
            passages[number] += 1
            db.execute("INSERT INTO postings VALUES (?, ?, ?)", (number, passage, count))
    for (scope, term), number in numbers.items():
        values = (number, scope, term, passages[number])
        db.execute("INSERT INTO terms VALUES (?, ?, ?, ?)", values)
    for table in ("lexicon_terms", "lexicon_counts", "lexicon"):
        db.execute(f"DROP TABLE {table}")


def m005_checksums(db: sqlite3.Connection) -> None:
    """A checksum for every row of data (seal.py)."""
    for table in (
        *("records", "passages", "passage_tokens", "neural_writes", "snapshots"),
        *("persistent_texts", "index_blocks"),
    ):
        _add_checksums(db, table)


def m006_more_checksums(db: sqlite3.Connection) -> None:
    """A checksum for settings, scopes and words, too; how many records a scope has."""
    db.execute("ALTER TABLE scopes ADD COLUMN num_records INTEGER NOT NULL DEFAULT 0")
    count = "SELECT count(*) FROM records WHERE scope = scopes.id"
    db.execute(f"UPDATE scopes SET num_records = ({count})")
    for table in ("meta", "scopes", "terms"):
        _add_checksums(db, table)
    db.execute("ALTER TABLE postings ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    db.execute(f"UPDATE postings SET checksum = {POSTING_SUM}")


def m007_marks(db: sqlite3.Connection) -> None:
    """How long a record is kept, how much it weighs, how often it was recalled."""
    for table, column in (
        ("records", "expires INTEGER"),  # microseconds since 1970, UTC
        ("records", "importance REAL NOT NULL DEFAULT 0.0"),
        ("records", "pinned INTEGER NOT NULL DEFAULT 0"),
        ("records", "recalls INTEGER NOT NULL DEFAULT 0"),
        ("records", "marked INTEGER NOT NULL DEFAULT 0"),  # `marks` of the scope at that time
        ("scopes", "marks INTEGER NOT NULL DEFAULT 0"),  # how often records were marked
    ):
        db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    db.execute("CREATE INDEX records_by_marks ON records (scope, marked) WHERE marked > 0")
    db.create_function("seal", -1, seal, deterministic=True)
    for table, old, new in (
        (
            "records",
            "seq, scope, id, text, speaker, time, metadata, surprise, written, reason,"
            " duplicate_of, successor_of",
            "expires, importance, pinned, recalls, marked",
        ),
        ("scopes", "id, name, generation, last_seq, num_records", "marks"),
    ):
        # A row that is damaged must not pass for sound.
        sound = f"checksum = seal({old})"
        db.execute(f"UPDATE {table} SET checksum = seal({old}, {new}) WHERE {sound}")


def _add_checksums(db: sqlite3.Connection, table: str) -> None:
    """A column `checksum` behind those that a table has now."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    db.create_function("seal", -1, seal, deterministic=True)
    db.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    db.execute(f"UPDATE {table} SET checksum = seal({', '.join(columns)})")


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [
    m001_records,
    m002_index_blocks,
    m003_scope_numbers,
    m004_postings,
    m005_checksums,
    m006_more_checksums,
    m007_marks,
]
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
