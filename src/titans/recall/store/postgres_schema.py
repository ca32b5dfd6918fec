"""The schema of a store in PostgreSQL, as an append-only list of steps (see `migrations`).

Tables and sealed columns are those of SQLite. What is more: each table has a scope, and a policy
that hides all rows of other scopes than the one that a transaction has set.
"""

from collections.abc import Callable
from typing import Any

from psycopg import Connection

from titans.recall.store.deletion import SCOPED

TABLES = (*SCOPED, "passages", "passage_tokens", "postings")
"""Tables with a column `scope`."""
HEAD = 256
"""Characters of a word in the index of words: PostgreSQL limits the size of an index's row."""


def m001_tables(db: Connection[Any]) -> None:
    """Scopes, records, passages with their vectors, the lexical index, the neural memory."""
    name = 'text COLLATE "C"'
    checksum = "checksum bigint NOT NULL"
    bytes_ = "bytea NOT NULL"
    statements = [
        f"CREATE TABLE meta (key {name} PRIMARY KEY, value text NOT NULL, {checksum})",
        f"""CREATE TABLE scopes (id bigint PRIMARY KEY, name {name} NOT NULL UNIQUE,
            generation bigint NOT NULL, last_seq bigint NOT NULL, num_records bigint NOT NULL,
            marks bigint NOT NULL, {checksum})""",
        # A transaction says which scope it is about; without, it sees none.
        """CREATE FUNCTION current_scope() RETURNS bigint LANGUAGE sql STABLE
            RETURN (SELECT id FROM scopes WHERE name = current_setting('titans.scope', true))""",
        f"""CREATE TABLE records (seq bigint PRIMARY KEY, scope bigint NOT NULL,
            id {name} NOT NULL, text text NOT NULL, speaker {name}, time bigint NOT NULL,
            metadata text, surprise double precision NOT NULL, written boolean NOT NULL,
            reason text NOT NULL, duplicate_of bigint, successor_of bigint, expires bigint,
            importance double precision NOT NULL, pinned boolean NOT NULL, recalls bigint NOT NULL,
            marked bigint NOT NULL, {checksum}, UNIQUE (scope, id),
            CONSTRAINT metadata_is_json CHECK (metadata::jsonb IS NOT NULL OR metadata IS NULL))""",
        "CREATE INDEX ON records (scope, seq)",
        "CREATE INDEX ON records (scope, time)",
        "CREATE INDEX ON records (scope, successor_of) WHERE successor_of IS NOT NULL",
        "CREATE INDEX ON records (scope, marked) WHERE marked > 0",
        # float16, in context and then of the bare text: two halves of one vector.
        f"""CREATE TABLE passages (id bigint PRIMARY KEY, scope bigint NOT NULL,
            seq bigint NOT NULL, num_terms bigint NOT NULL, flags bigint NOT NULL,
            vectors halfvec NOT NULL, {checksum})""",
        "CREATE INDEX ON passages (scope, seq)",
        f"""CREATE TABLE passage_tokens (passage bigint PRIMARY KEY, vectors {bytes_}, {checksum},
            scope bigint NOT NULL DEFAULT current_scope())""",
        f"""CREATE TABLE neural_writes (seq bigint PRIMARY KEY, scope bigint NOT NULL,
            vectors {bytes_}, {checksum})""",
        "CREATE INDEX ON neural_writes (scope, seq)",
        f"""CREATE TABLE snapshots (scope bigint NOT NULL, seq bigint NOT NULL, state {bytes_},
            {checksum}, PRIMARY KEY (scope, seq))""",
        f"""CREATE TABLE persistent_texts (scope bigint NOT NULL, position bigint NOT NULL,
            text text NOT NULL, {checksum}, PRIMARY KEY (scope, position))""",
        f"""CREATE TABLE index_blocks (scope bigint NOT NULL, last_seq bigint NOT NULL,
            num_rows bigint NOT NULL, data {bytes_}, {checksum}, PRIMARY KEY (scope, last_seq))""",
        f"""CREATE TABLE terms (id bigint PRIMARY KEY, scope bigint NOT NULL, term {name} NOT NULL,
            num_passages bigint NOT NULL, {checksum},
            head {name} NOT NULL GENERATED ALWAYS AS (left(term, {HEAD})) STORED)""",
        "CREATE INDEX ON terms (scope, head)",
        f"""CREATE TABLE postings (term bigint NOT NULL, passage bigint NOT NULL,
            count bigint NOT NULL, {checksum}, scope bigint NOT NULL DEFAULT current_scope(),
            PRIMARY KEY (term, passage))""",
        "CREATE INDEX ON postings (passage)",
        *(
            f"CREATE SEQUENCE {table}_numbers"
            for table in ("scopes", "records", "passages", "terms")
        ),
        # To compress numbers takes time and gains nothing.
        *(
            f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL"
            for table, column in (
                *(("passage_tokens", "vectors"), ("neural_writes", "vectors")),
                *(("snapshots", "state"), ("index_blocks", "data")),
            )
        ),
    ]
    _run(db, statements)


def m002_policies(db: Connection[Any]) -> None:
    """Rows of other scopes are hidden, from the owner of the tables too; a view for SQL."""
    every = "(SELECT current_setting('titans.all_scopes', true) = 'on')"
    conditions = {
        "scopes": "name = (SELECT current_setting('titans.scope', true))",
        **dict.fromkeys(TABLES, "scope = (SELECT current_scope())"),
    }
    statements = [
        statement
        for table, own in conditions.items()
        for statement in (
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY own_scope ON {table} USING ({every} OR {own})",
        )
    ]
    view = """CREATE VIEW memories WITH (security_invoker = true) AS
        SELECT s.name AS scope, r.id, r.text, r.speaker,
            timestamptz 'epoch' + r.time * interval '1 microsecond' AS time,
            r.metadata::jsonb AS metadata, r.surprise, r.written,
            (SELECT id FROM records WHERE seq = r.duplicate_of) AS duplicate_of,
            (SELECT id FROM records WHERE seq = r.successor_of) AS successor_of,
            p.id AS passage,
            subvector(p.vectors, vector_dims(p.vectors) / 2 + 1, vector_dims(p.vectors) / 2)
                AS embedding
        FROM records r JOIN scopes s ON s.id = r.scope JOIN passages p ON p.seq = r.seq"""
    _run(db, [*statements, view])


def _run(db: Connection[Any], statements: list[str]) -> None:
    """All at once: a server may be far away."""
    db.execute("; ".join(statements).encode())


MIGRATIONS: list[Callable[[Connection[Any]], None]] = [m001_tables, m002_policies]
"""Every step ever released, in order."""


def migrate(db: Connection[Any], done: int) -> None:
    """Bring a store with so many steps to the newest schema inside the caller's transaction."""
    if not done:
        db.execute("CREATE TABLE titans (version bigint NOT NULL)")
        db.execute("INSERT INTO titans VALUES (0)")
    for step in MIGRATIONS[done:]:
        step(db)
    db.execute("UPDATE titans SET version = %s", (len(MIGRATIONS),))
