"""The store in one SQLite file for many scopes, safe for several processes."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from titans.recall.store.base import Head, Scalar
from titans.recall.store.connection import SQLITE_ERRORS, Connection
from titans.recall.store.tables import Tables


class SQLiteStore(Connection, Tables):
    """An open store. Not for several threads at once: the caller holds a lock."""

    def scan(self, query: str, size: int) -> Iterator[list[Any]]:
        """The rows of a query, some at a time."""
        rows = self.db.execute(query)
        while part := rows.fetchmany(size):
            yield part

    def new_numbers(self, table: str, count: int) -> Iterator[int]:
        """Numbers that a table never had, rising; of `terms`, that it does not have."""
        if table == "terms":
            found = self.execute("SELECT max(id) FROM terms").fetchone()
        else:
            found = self.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", table).fetchone()
        first = int((found or (0,))[0] or 0) + 1
        return iter(range(first, first + count))

    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        """The condition that a column has one of many values, however many they are."""
        return f"{column} IN (SELECT value FROM json_each(?))", [json.dumps(values)]

    def has_field(self, name: str, value: Scalar) -> tuple[str, list[Any]]:
        """The condition that a record's metadata has a field with a value."""
        # By type as well: SQLite gives true as 1.
        types = (
            "'true', 'false'" if isinstance(value, bool) else "'integer', 'real', 'text', 'null'"
        )
        condition = (
            "CASE WHEN json_valid(metadata) THEN EXISTS (SELECT 1 FROM json_each(metadata)"
            f" WHERE key = ? AND atom IS ? AND type IN ({types})) ELSE 0 END"
        )
        return condition, [name, value]

    def head(self, scope: str) -> Head | None:
        """How far a scope has come; None if nothing was ever stored under this name.

        The names are looked through one by one if they are not found by SQLite's own index of
        them: damage there must not hide a whole scope.
        """
        found = super().head(scope)
        if found is None:
            hidden = "SELECT count(*) FROM scopes NOT INDEXED WHERE name = ?"
            if self.execute(hidden, scope).fetchone()[0]:
                raise self.damage(f"the index of scopes leaves out {scope!r}")
        return found

    def damages(self, progress: Callable[[str], None] | None = None) -> Iterator[str]:
        """Everything that cannot have been written like this, a line each."""
        if progress is not None:
            progress("pages")
        try:
            for (line,) in self.db.execute("PRAGMA integrity_check"):
                if line != "ok":
                    yield f"file: {' '.join(str(line).split())}"
        except SQLITE_ERRORS as error:
            yield f"file: {' '.join(str(error).split())}"
        yield from super().damages(progress)
