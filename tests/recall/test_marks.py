"""Expiry, importance and pinning: in the store, in old stores, and in what is recalled."""

import sqlite3
from pathlib import Path

import pytest

from recall.conftest import HASHING
from titans.errors import StoreError
from titans.recall import TextMemory
from titans.recall.store import Marks, SQLiteStore, StoredPassage, StoredRecord
from titans.recall.store.seal import SEALED, seal
from titans.recall.upkeep import find_damage, repair

MARKED = Marks(expires=10**15, importance=0.5, pinned=True)


def stored(id: str, marks: Marks) -> StoredRecord:
    return StoredRecord(0, id, "a text", None, 0, None, 1.0, False, "", None, None, marks)


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    return SQLiteStore(tmp_path / "m.db")


def test_the_store_tells_what_was_marked_since(store: SQLiteStore) -> None:
    passage = StoredPassage([], 0, b"", b"")
    with store.writing():
        scope, other = store.create_scope("ann"), store.create_scope("bob")
        first = store.add_record(scope, stored("a", Marks()), [passage], None)
        assert store.head("ann").marks == 0 and store.marks(scope, 0) == {}
        second = store.add_record(scope, stored("b", MARKED), [passage], None)
        assert store.head("ann").marks == 1 and store.marks(scope, 0) == {second: MARKED}
        store.set_marks(scope, first, Marks(pinned=True))
        store.set_marks(scope, second, Marks())
        assert store.head("ann").marks == 3
        assert store.marks(scope, 1) == {first: Marks(pinned=True), second: Marks()}
        assert store.marks(scope, 3) == store.marks(other, 0) == {}
        store.count_recalls(scope, {first: 2, second: 1, 99: 1})
        store.count_recalls(scope, {first: 1})
        store.count_recalls(other, {first: 5})
        found = store.records(scope, [first, second])
        assert [found[seq].recalls for seq in (first, second)] == [3, 1]
        assert found[first].marks == Marks(pinned=True)
        assert store.marks(scope, 1).keys() == {first, second}
        store.delete_records(scope, [second])
        assert store.marks(scope, 0) == {first: Marks(pinned=True)}
    with store.reading():
        assert not list(store.damages())


def make_old(path: Path) -> None:
    """A store as it was before records had marks."""
    with TextMemory(path, config=HASHING) as memory:
        memory.remember("I like tea.", id="a")
        memory.remember("The code is 7719.", id="b")
    added = {
        "records": ("expires", "importance", "pinned", "recalls", "marked"),
        "scopes": ("marks",),
    }
    with sqlite3.connect(path) as db:
        db.create_function("seal", -1, seal)
        db.execute("DROP INDEX records_by_marks")
        for table, names in added.items():
            old = ", ".join(name for name in SEALED[table] if name not in names)
            for name in names:
                db.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
            db.execute(f"UPDATE {table} SET checksum = seal({old})")
        db.execute("PRAGMA user_version = 6")
    db.close()


def test_a_store_from_before_marks_opens(tmp_path: Path) -> None:
    make_old(tmp_path / "m.db")
    with TextMemory(tmp_path / "m.db", config=HASHING) as memory:
        assert not list(find_damage(memory))
        assert [r.id for r in memory.records()] == ["a", "b"]


def test_what_was_damaged_before_marks_is_still_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    make_old(path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE records SET text = 'The code is 7718.' WHERE id = 'b'")
    db.close()
    assert repair(path, HASHING).records == 1
    with TextMemory(path, config=HASHING) as memory:
        assert [r.id for r in memory.records()] == ["a"]
    with (
        TextMemory(path.with_name("m.db.damaged"), config=HASHING) as memory,
        pytest.raises(StoreError, match="damaged"),
    ):
        memory.records()
