"""The store in a PostgreSQL database: several servers write one scope, scopes side by side.

A writer of a scope holds its advisory lock until its transaction ends, so the records of a scope
are in the order in which they were committed. Row-level security hides the rows of all scopes but
the one that a transaction is about. A connection that was lost is made again at the next call.
"""

import hashlib
import json
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from pgvector import HalfVector
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format, TransactionStatus
from psycopg.sql import Literal
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader

from titans.errors import DataError, StoreError, TitansError
from titans.recall.store.address import FORM, shown
from titans.recall.store.base import Scalar, StoredPassage, StoredRecord
from titans.recall.store.postgres_schema import HEAD, MIGRATIONS, TABLES, migrate
from titans.recall.store.rows import BUSY_SECONDS, Answer
from titans.recall.store.seal import Value
from titans.recall.store.tables import Tables

OLDEST_SERVER = 15
CONNECT_SECONDS = 10
SCRUB_AGAIN_SECONDS = 30.0
"""How long writers leave traces alone that a reader still holds."""
IS_STORE = """EXISTS (SELECT FROM pg_class
    WHERE relname = 'titans' AND relnamespace = current_schema()::regnamespace)"""
PROBE = f"""SELECT current_schema(), current_database(), current_user,
    (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user),
    to_regtype('halfvec')::oid, {IS_STORE},
    (SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace
        AND relkind IN ('r', 'p', 'v', 'm') AND NOT EXISTS (
            SELECT 1 FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'e'))"""
"""Where the tables are or would be, who asks, and what is there already."""
ESCAPE = "\x10"
NUL = ESCAPE + "0"
"""How the character NUL is kept; the escape itself is kept as two of it."""
INDICATORS = ("passages", "persistent_texts")
"""Tables that only forgetting deletes from, and from one of which it does."""
COUNT_DEAD = """SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_all_tables
    WHERE schemaname = current_schema() AND relname = ANY(?::text[])"""


class PostgresStore(Tables):
    """An open store. Not for several threads at once: the caller holds a lock.

    Args:
        address: `postgresql://...` as libpq reads it. The tables are in the first schema of the
            role's search path.
    """

    repair_hint = (
        "`titans memory check` lists all damage; restore a backup, or forget what is damaged"
    )

    def __init__(self, address: str) -> None:
        self._name = shown(address)
        try:
            given = conninfo_to_dict(address)
        except psycopg.Error:
            # Its message quotes the address, the password included.
            raise StoreError(f"the address is not {FORM}, or has an unknown option") from None
        defaults = {"connect_timeout": CONNECT_SECONDS, "application_name": "titans"}
        added = {name: value for name, value in defaults.items() if name not in given}
        self._address = make_conninfo(address, **added)
        self._db: psycopg.Connection[Any] | None = None
        self._schema = ""
        self._is_closed = self._is_in_transaction = self._is_about_all = False
        self._scrub_is_due = False
        self._scrub_again = 0.0
        with self._translated("opened"):
            self._connected()
            self._scrub(wait=0.0)

    @property
    def name(self) -> str:
        """The address without a password."""
        return self._name

    @property
    def files(self) -> list[Path]:
        """None of this machine's files is the store's."""
        return []

    @property
    def size(self) -> int:
        """Bytes of its tables with their indexes."""
        query = """SELECT sum(pg_total_relation_size(oid)) FROM pg_class
            WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"""
        return int(self.execute(query).fetchone()[0])

    def close(self) -> None:
        """Let go of the connection."""
        self._is_closed = True
        if self._db is not None:
            self._db.close()

    # The connection

    def _connected(self) -> psycopg.Connection[Any]:
        """The connection; a new one if there is none or it was lost."""
        if self._db is None or self._db.closed:
            if self._is_closed:
                raise StoreError(f"{self.name} was closed: open it again")
            if self._is_in_transaction:
                raise StoreError(f"{self.name}: the connection was lost; try again")
            self._db = psycopg.connect(self._address, autocommit=True)
            try:
                self._prepare(self._db)
            except BaseException:
                self._db.close()
                raise
        return self._db

    def _prepare(self, db: psycopg.Connection[Any]) -> None:
        """Recognise the store, or make it, and bring it up to date."""
        if db.info.server_version < OLDEST_SERVER * 10_000:
            raise StoreError(
                f"{self.name} is PostgreSQL {db.info.server_version // 10_000}: "
                f"{OLDEST_SERVER} or newer is needed"
            )
        found = db.execute(PROBE.encode()).fetchone()
        assert found is not None
        schema, database, role, is_free, vectors, is_store, others = found
        if schema is None:
            raise StoreError(
                f"{self.name} has no schema for role {role}: as an administrator run "
                f"CREATE SCHEMA AUTHORIZATION {role}"
            )
        if others and not is_store:
            raise StoreError(
                f"{self.name} has tables of another program in schema {schema}: as an "
                f"administrator run CREATE SCHEMA AUTHORIZATION {role}, or choose another database"
            )
        self._schema = schema
        if vectors is None:
            raise StoreError(
                f"{self.name} lacks the extension vector: as an administrator run "
                f"CREATE EXTENSION vector in database {database}"
            )
        db.adapters.register_dumper(str, TextDumper)
        db.adapters.register_loader("text", TextLoader)
        db.adapters.register_dumper(Vectors, type("Dumper", (VectorsDumper,), {"oid": vectors}))
        db.adapters.register_loader(vectors, VectorsLoader)
        if is_free:
            warnings.warn(
                f"role {role} is not bound by row-level security: scopes are kept apart by "
                "queries only; use a plain role (docs/recall.md)",
                stacklevel=2,
            )
        if is_store and self._version(db) == len(MIGRATIONS):
            return
        with db.transaction():
            db.execute(f"SELECT pg_advisory_xact_lock({self._key(None)})".encode())
            # Another process may just have done it.
            done = self._version(db) if self._is_there(db) else 0
            if done > len(MIGRATIONS):
                raise StoreError(
                    f"{self.name} was written by a newer version (schema {done}, this one knows "
                    f"{len(MIGRATIONS)}): upgrade titans-neural-memory"
                )
            migrate(db, done)

    def _is_there(self, db: psycopg.Connection[Any]) -> bool:
        found = db.execute(f"SELECT {IS_STORE}".encode()).fetchone()
        return bool(found and found[0])

    def _version(self, db: psycopg.Connection[Any]) -> int:
        found = db.execute("SELECT version FROM titans").fetchone()
        assert found is not None
        return found[0]

    def _key(self, scope: str | None) -> int:
        """The number of a lock: of a scope, or of the store."""
        name = "\0".join((self._schema, "" if scope is None else f"scope {scope}"))
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """PostgreSQL's errors as `StoreError`s that say what to do."""
        try:
            yield
        except psycopg.Error as error:
            raise explain(error, self.name, action) from error

    # Transactions

    @contextmanager
    def writing(self, scope: str | None = None) -> Iterator[None]:
        """One transaction that sees the newest state and excludes other writers of a scope."""
        if scope is None:
            locks = [f"SELECT pg_advisory_xact_lock({self._key(None)})"]
        else:
            locks = [
                f"SELECT pg_advisory_xact_lock_shared({self._key(None)})",
                f"SELECT pg_advisory_xact_lock({self._key(scope)})",
            ]
        script = (
            *("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", _about(scope)),
            *(f"SET LOCAL lock_timeout = '{BUSY_SECONDS * 1000:.0f}ms'", *locks),
            "SELECT count(*) FROM meta WHERE starts_with(key, 'scrub ')",
        )
        self._scrub_is_due, self._is_about_all = False, scope is None
        with self._transaction("written", script) as left:
            yield
        if self._scrub_is_due:
            self._scrub(wait=BUSY_SECONDS)
        elif left and time.monotonic() > self._scrub_again:
            self._scrub(wait=0.0)

    @contextmanager
    def reading(self, scope: str | None = None) -> Iterator[None]:
        """One transaction in which every query sees the same state, of one scope or of all."""
        script = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", _about(scope))
        with self._transaction("read", script):
            yield

    @contextmanager
    def _transaction(self, action: str, script: Sequence[str]) -> Iterator[Any]:
        """Run a script that begins a transaction; what its last statement has found."""
        with self._translated(action):
            try:
                found = self._begin("; ".join(script).encode())
                self._is_in_transaction = True
                yield found
                self._commit()
            except BaseException:
                self._roll_back()
                raise
            finally:
                self._is_in_transaction = False

    def _begin(self, script: bytes) -> Any:
        db = self._connected()
        try:
            answer = db.execute(script)
        except psycopg.OperationalError:
            if not db.closed:
                raise
            # The server was restarted since the last call; nothing was asked of it yet.
            answer = self._connected().execute(script)
        while answer.nextset():
            pass
        found = answer.fetchone()
        return found and found[0]

    def _commit(self) -> None:
        assert self._db is not None
        try:
            done = self._db.execute("COMMIT").statusmessage
        except psycopg.OperationalError as error:
            if not self._db.closed:
                raise
            raise StoreError(
                f"{self.name}: the connection was lost while a change was stored; look whether it "
                "is there, or repeat it: the same id and text again change nothing"
            ) from error
        if done != "COMMIT":
            raise StoreError(f"{self.name}: a statement failed, so nothing was stored; try again")

    def _roll_back(self) -> None:
        db = self._db
        if db is None or db.closed or db.info.transaction_status == TransactionStatus.IDLE:
            return
        with suppress(psycopg.Error):
            db.execute("ROLLBACK")
        if db.info.transaction_status != TransactionStatus.IDLE:
            db.close()

    # What the tables need of a database

    def execute(self, query: str, *values: Any) -> Answer:
        """Run a statement."""
        with self._translated("used"):
            cursor = self._connected().cursor(binary=True)
            return cursor.execute(_with_marks(query), values)

    def execute_many(self, query: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run a statement for each row of values, without waiting for each."""
        if len(rows) == 1:
            self.execute(query, *rows[0])
        elif rows:
            with self._translated("used"):
                self._connected().cursor().executemany(_with_marks(query), rows)

    def scan(self, query: str, size: int) -> Iterator[list[Any]]:
        """The rows of a query, some at a time; inside a transaction."""
        with self._translated("read"), self._connected().cursor("scan", binary=True) as cursor:
            cursor.execute(_with_marks(query))
            while part := cursor.fetchmany(size):
                yield part

    def select(self, table: str, where: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The sealed columns of some rows, each checked."""
        assert table == "meta" or self._is_in_transaction, (
            "no scope is set, so no row would be seen"
        )
        return super().select(table, where, *values)

    def insert_many(
        self, table: str, rows: Iterable[tuple[Value, ...]], *, replace: bool = False
    ) -> None:
        """Add rows with their checksums; the bytes of a passage become a vector."""
        if table == "passages":
            rows = [(*kept, Vectors(data)) for *kept, data in rows]  # type: ignore[arg-type]
        super().insert_many(table, rows, replace=replace)

    def add_record(
        self,
        scope_id: int,
        record: StoredRecord,
        passages: Iterable[StoredPassage],
        neural_write: bytes | None,
    ) -> int:
        """Store a record with everything that belongs to it; returns its seq."""
        if self._is_about_all:
            # Rows without a scope among their columns get it from the transaction.
            name = self.scope_row(scope_id)[1]
            self.execute("SELECT set_config('titans.scope', ?, true)", name)
        return super().add_record(scope_id, record, passages, neural_write)

    def new_numbers(self, table: str, count: int) -> Iterator[int]:
        """Numbers that a table never had, rising."""
        query = f"SELECT nextval('{table}_numbers') FROM generate_series(1, ?)"
        return iter([row[0] for row in self.execute(query, count)] if count else ())

    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        """The condition that a column has one of many values."""
        if column == "term":
            heads = sorted({str(term)[:HEAD] for term in values})
            return "head = ANY(?::text[]) AND term = ANY(?::text[])", [heads, list(values)]
        return f"{column} = ANY(?::bigint[])", [list(values)]

    def has_field(self, name: str, value: Scalar) -> tuple[str, list[Any]]:
        """The condition that a record's metadata has a field with a value."""
        return "metadata::jsonb -> ? = ?::jsonb", [name, json.dumps(value, ensure_ascii=False)]

    def scopes(self) -> list[str]:
        """The names of all scopes, sorted; also in a transaction about one of them."""
        change = "SELECT set_config('titans.all_scopes', ?, true)"
        before = self.execute("SELECT current_setting('titans.all_scopes', true)").fetchone()[0]
        self.execute(change, "on")
        found = super().scopes()
        self.execute(change, before or "off")
        return found

    def check_sound(self) -> None:
        """Nothing to do: the server checks its pages whenever it reads them."""

    # Forgetting for good

    def request_scrub(self) -> None:
        """Have deleted rows removed from the tables after this transaction."""
        self.set_setting(f"scrub {uuid.uuid4().hex}", "vacuum")
        self._scrub_is_due = True

    @property
    def is_clean(self) -> bool:
        """Whether nothing that was forgotten is left in any table."""
        return not self._scrub_marks()

    def _scrub_marks(self) -> list[str]:
        query = "SELECT key FROM meta WHERE starts_with(key, 'scrub ')"
        return [row[0] for row in self.execute(query)]

    def _scrub(self, wait: float) -> None:
        """Remove deleted rows from the tables and their indexes, if a mark asks for it.

        What cannot be removed, because a transaction that began earlier could still see it, stays
        marked.
        """
        end = time.monotonic() + wait
        while marks := self._scrub_marks():
            try:
                # In this order: what may go from the first table may go from the others.
                self.execute(f"VACUUM (INDEX_CLEANUP ON) {', '.join((*INDICATORS, *TABLES))}")
                dead = self.execute(COUNT_DEAD, list(INDICATORS)).fetchone()[0]
            except StoreError:
                dead = None  # the rows are deleted in any case; the mark stays
            if dead == 0:
                self.execute("DELETE FROM meta WHERE key = ANY(?::text[])", marks)
                return
            if dead is None or time.monotonic() > end:
                self._scrub_again = time.monotonic() + SCRUB_AGAIN_SECONDS
                return
            time.sleep(0.05)


class TextDumper(StrBinaryDumper):
    """Text with the character NUL, which PostgreSQL refuses, spelt with another."""

    def dump(self, obj: str) -> Buffer | None:
        """The bytes of a text."""
        return super().dump(_escaped(obj))


class TextLoader(TextBinaryLoader):
    """The inverse."""

    def load(self, data: Buffer) -> str:
        """The text of some bytes."""
        text = str(super().load(data))
        if ESCAPE not in text:
            return text
        return ESCAPE.join(part.replace(NUL, "\0") for part in text.split(ESCAPE * 2))


def _escaped(text: str) -> str:
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, ESCAPE * 2).replace("\0", NUL)


class Vectors(bytes):
    """The vectors of a passage on the way into the database."""


class VectorsDumper(Dumper):
    """As pgvector sends a vector of float16."""

    format = Format.BINARY

    def dump(self, obj: Vectors) -> bytes:
        """The bytes of a value."""
        return HalfVector(np.frombuffer(obj, np.float16)).to_binary()


class VectorsLoader(Loader):
    """The inverse, as bytes."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        """The value of some bytes."""
        return HalfVector.from_binary(data).to_numpy().tobytes()


@lru_cache(maxsize=512)
def _with_marks(query: str) -> bytes:
    """A query as psycopg takes it; values go to the server in their binary form."""
    return query.replace("%", "%%").replace("?", "%b").encode()


def _about(scope: str | None) -> str:
    """The statement that shows a transaction the rows of one scope, or of all."""
    name, every = ("", "on") if scope is None else (scope, "off")
    name = Literal(_escaped(name)).as_string(None)
    return (
        f"SELECT set_config('titans.scope', {name}, true), "
        f"set_config('titans.all_scopes', '{every}', true)"
    )


def explain(error: psycopg.Error, name: str, action: str) -> TitansError:
    """What a user can do about an error of PostgreSQL or of the connection."""
    text = " ".join(str(error).split())
    if error.sqlstate == "22P05":
        return DataError("metadata holds the character NUL, as PostgreSQL's JSON cannot: remove it")
    if error.sqlstate == "54000":
        return DataError(f"a name is too long for PostgreSQL: shorten the id or scope ({text})")
    known = {
        "53100": "the disk of the server is full; nothing was stored",
        "25006": f"the server is read-only ({text}); give the address of the primary server",
        "55P03": f"another process has held it for {BUSY_SECONDS:.0f} s; try again when it is done",
        "42501": f"the role lacks a right ({text}); docs/recall.md has the SQL for a new role",
    }.get(error.sqlstate or "")
    if known is not None:
        return StoreError(f"{name} cannot be {action}: {known}")
    if (error.sqlstate or "08")[:2] in ("08", "28", "3D", "57") or error.sqlstate == "53300":
        return StoreError(
            f"{name} cannot be reached ({text}): check the address, and that the server runs"
        )
    return StoreError(f"{name} cannot be {action} ({text})")
