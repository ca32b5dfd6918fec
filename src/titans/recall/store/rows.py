"""Sealed rows of a database: what all stores in SQL read and write their tables with.

A database brings `execute` and its like; queries mark values with `?` and keep to the SQL that
SQLite and PostgreSQL share.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from titans.errors import StoreError
from titans.recall.store.base import Scalar
from titans.recall.store.seal import POSTING, SEALED, Value, is_sound, seal, seal_posting

BUSY_SECONDS = 30.0
"""How long a writer waits for another process before it gives up."""
KEYS: dict[str, tuple[str, ...]] = {
    "meta": ("key",),
    "scopes": ("id",),
    "terms": ("id",),
    "records": ("seq",),
    "neural_writes": ("seq",),
    "snapshots": ("scope", "seq"),
}
"""Tables whose rows are replaced, and what a row is known by."""


class Answer(Protocol):
    """What a query has found."""

    @property
    def rowcount(self) -> int:
        """How many rows a statement has changed."""
        ...

    def fetchone(self) -> Any:
        """The next row; None at the end."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Rows(ABC):
    """The rows of a store in SQL."""

    repair_hint: str
    """What helps if it is damaged."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How messages call it."""

    @abstractmethod
    def execute(self, query: str, *values: Any) -> Answer:
        """Run a statement."""

    @abstractmethod
    def execute_many(self, query: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run a statement for each row of values."""

    @abstractmethod
    def scan(self, query: str, size: int) -> Iterator[list[Any]]:
        """The rows of a query whose answer may be too large for the RAM, some at a time."""

    @abstractmethod
    def new_numbers(self, table: str, count: int) -> Iterator[int]:
        """Numbers that a table never had, rising."""

    @abstractmethod
    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        """The condition that a column has one of many values, and what its `?`s stand for."""

    @abstractmethod
    def has_field(self, name: str, value: Scalar) -> tuple[str, list[Any]]:
        """The condition that a record's metadata has a field with a value, and its values."""

    @abstractmethod
    def request_scrub(self) -> None:
        """Have traces of what was deleted removed after this transaction; inside `writing()`."""

    # Rows

    def insert(self, table: str, *values: Value, replace: bool = False) -> None:
        """Add a row with its checksum, or replace the one with the same key."""
        self.insert_many(table, [values], replace=replace)

    def insert_many(
        self, table: str, rows: Iterable[tuple[Value, ...]], *, replace: bool = False
    ) -> None:
        """Add rows with their checksums, or replace those with the same keys."""
        columns = (*(POSTING if table == "postings" else SEALED[table]), "checksum")
        marks = ", ".join("?" * len(columns))
        query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        if replace:
            changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
            query += f" ON CONFLICT ({', '.join(KEYS[table])}) DO UPDATE SET {changes}"
        checksum: Callable[..., int] = seal_posting if table == "postings" else seal
        self.execute_many(query, [(*row, checksum(*row)) for row in rows])

    def select(self, table: str, where: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The sealed columns of some rows, each checked.

        Args:
            where: the conditions (and the order) in SQL.
        """
        names = ", ".join((*SEALED[table], "checksum"))
        for row in self.execute(f"SELECT {names} FROM {table} WHERE {where}", *values):
            yield self.checked(table, row)

    def only(self, table: str, where: str, *values: Any) -> tuple[Any, ...] | None:
        """The first of those rows."""
        return next(self.select(table, where, *values), None)

    def checked(self, table: str, row: tuple[Value, ...]) -> tuple[Value, ...]:
        """A row without its checksum, which must fit."""
        if not is_sound(row):
            raise self.damage(f"{self.describe(table, row)} is not what was written")
        return row[:-1]

    def describe(self, table: str, row: Sequence[Value]) -> str:
        """Which row this is, for a message."""
        place = ", ".join(
            f"{name} {value}"
            for name, value in zip(SEALED[table], row, strict=False)
            if name in ("id", "seq", "scope", "passage", "position", "last_seq", "key")
        )
        return f"a row of {table} ({place})"

    def damage(self, found: str) -> StoreError:
        """The error for content that cannot have been written like this."""
        return StoreError(f"{self.name} is damaged: {found}; {self.repair_hint}")

    # Settings and scopes

    def setting(self, key: str) -> str | None:
        """A setting of the store."""
        found = self.only("meta", "key = ?", key)
        return None if found is None else str(found[1])

    def set_setting(self, key: str, value: str) -> None:
        """Set it."""
        self.insert("meta", key, value, replace=True)

    def scope_row(self, scope_id: int) -> tuple[Any, ...]:
        """The columns of a scope by its number."""
        found = self.only("scopes", "id = ?", scope_id)
        if found is None:
            raise self.damage(f"there is no scope with number {scope_id}")
        return found
