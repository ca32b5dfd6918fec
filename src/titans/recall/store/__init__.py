"""Where records are kept: `base` (what a store is), `sqlite` (the one that ships).

Reading order: `base`, `connection` (the file, transactions, errors), `sqlite` (records and what
belongs to them), `deletion`, `migrations` (the schema), `seal` (checksums), `inspection`.
"""

from titans.recall.store.base import Head as Head
from titans.recall.store.base import Passage as Passage
from titans.recall.store.base import Row as Row
from titans.recall.store.sqlite import SQLiteStore as SQLiteStore

__all__ = ["Head", "Passage", "Row", "SQLiteStore"]
