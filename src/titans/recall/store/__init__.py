"""Where records are kept: in one SQLite file, or in a PostgreSQL database.

Reading order: `base`, `seal` (checksums), `rows` (what a database must bring), `tables` (records
and what belongs to them), `deletion`, `inspection` (looking for damage); for SQLite `connection`
(the file, transactions, errors), `migrations` (the schema), `sqlite`, `salvage`; for PostgreSQL
`address`, `postgres`, `postgres_schema`.
"""

from pathlib import Path

from titans.errors import StoreError
from titans.recall.store.address import is_address as is_address
from titans.recall.store.address import shown as shown
from titans.recall.store.base import NO_MARKS as NO_MARKS
from titans.recall.store.base import Filter as Filter
from titans.recall.store.base import Head as Head
from titans.recall.store.base import IndexEntry as IndexEntry
from titans.recall.store.base import Marks as Marks
from titans.recall.store.base import Scalar as Scalar
from titans.recall.store.base import Store as Store
from titans.recall.store.base import StoredPassage as StoredPassage
from titans.recall.store.base import StoredRecord as StoredRecord
from titans.recall.store.sqlite import SQLiteStore as SQLiteStore

__all__ = [
    "NO_MARKS",
    "Filter",
    "Head",
    "IndexEntry",
    "Marks",
    "SQLiteStore",
    "Scalar",
    "Store",
    "StoredPassage",
    "StoredRecord",
    "is_address",
    "open_store",
    "shown",
]


def open_store(place: str | Path) -> Store:
    """The store at a place, made if it is not there: the path of an SQLite file, or
    `postgresql://...`."""
    if not is_address(place):
        return SQLiteStore(place)
    name = shown(place)
    try:
        from titans.recall.store.postgres import PostgresStore
    except ImportError as error:
        raise StoreError(
            f"{name} needs {error.name or 'psycopg'}: pip install 'titans-neural-memory[postgres]'"
        ) from error
    return PostgresStore(str(place))
