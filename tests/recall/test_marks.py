"""Expiry, importance and pinning: in the store, in old stores, and in what is recalled."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from recall.conftest import HASHING
from titans.errors import DataError, StoreError
from titans.recall import TextMemory, export_records, import_records
from titans.recall.store import Marks, Store, StoredPassage, StoredRecord, open_store
from titans.recall.store.seal import SEALED, seal
from titans.recall.upkeep import find_damage, repair

MARKED = Marks(expires=10**15, importance=0.5, pinned=True)


def stored(id: str, marks: Marks) -> StoredRecord:
    return StoredRecord(0, id, "a text", None, 0, None, 1.0, False, "", None, None, marks)


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with closing(open_store(place)) as opened:
        yield opened


def test_the_store_tells_what_was_marked_since(store: Store) -> None:
    passage = StoredPassage([], 0, b"\0" * 8, b"")
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


def found(memory: TextMemory, query: str, **wanted) -> list[str]:
    return [answer.id for answer in memory.recall(query, 9, **wanted)]


def test_what_has_expired_is_never_recalled(place: str, memory: TextMemory) -> None:
    memory.remember("The code is 7719.", id="old", expires="2020-01-01")
    memory.remember("The code is 8820.", id="new", expires="2999-01-01")
    memory.remember("The code is 9931.", id="kept", expires="2020-01-01", pinned=True)
    for wanted in ({}, {"speaker": None}, {"after": "2000-01-01"}, {"metadata": {}}):
        assert set(found(memory, "What is the code?", **wanted)) == {"new", "kept"}
    assert memory.mark("kept", pinned=False).expires == datetime(2020, 1, 1, tzinfo=UTC)
    assert found(memory, "What is the code?") == ["new"]
    memory.mark("old", expires="never")
    assert set(found(memory, "What is the code?")) == {"new", "old"}
    with TextMemory(place, config=HASHING) as other:
        assert set(found(other, "What is the code?")) == {"new", "old"}
        memory.mark("old", expires="2020-01-01")
        assert found(other, "What is the code?") == ["new"]


def test_what_a_fact_was_before_holds_again_when_its_update_expires(real_memory) -> None:
    real_memory.remember("I live in Rome.", id="home", time="2020-01-01")
    real_memory.remember("I moved to Oslo.", id="stay", time="2021-01-01")
    assert real_memory.recall("Where do I live?", 1)[0].id == "stay"
    real_memory.mark("stay", expires="2022-01-01")
    (answer,) = real_memory.recall("Where do I live?")
    assert answer.id == "home" and answer.succeeded_by is None


def test_expire_removes_permanently_but_not_what_is_pinned(memory: TextMemory) -> None:
    for i in range(20):
        memory.remember(f"tale{i} of a day", id=str(i), time=f"2020-01-{i + 1:02}")
    memory.mark("3", expires="2021-01-01")
    memory.mark("4", expires="2021-01-01", pinned=True)
    memory.mark("5", pinned=True)
    assert memory.expire().records == 1
    assert [r.id for r in memory.records(limit=5)] == ["0", "1", "2", "4", "5"]
    assert memory.expire("2020-01-11").records == 7
    assert [r.id for r in memory.records()] == ["4", "5", *map(str, range(10, 20))]
    assert memory.expire().records == 0
    for content in map(Path.read_bytes, memory.store.files[:1]):  # a server has none
        assert b"tale3 of" not in content and b"tale4 of" in content
    assert not list(find_damage(memory))


def test_importance_weighs(memory: TextMemory) -> None:
    memory.remember("The milk stands in the fridge.", id="a")
    memory.remember("Some bread lies in a cupboard.", id="b")
    before = {answer.id: answer.score for answer in memory.recall("What is in the kitchen?")}
    for id in ("a", "b"):
        memory.mark(id, importance=1)
        answers = memory.recall("What is in the kitchen?")
        assert answers[0].id == id
        assert sum(vars(answers[0].parts).values()) == pytest.approx(answers[0].score)
        odds = answers[0].score / (1 - answers[0].score)
        assert odds == pytest.approx(2.718 * before[id] / (1 - before[id]), rel=1e-2)
        assert answers[0].parts.importance > 0 == answers[1].parts.importance
        memory.mark(id, importance=0)


def test_marks_are_checked(memory: TextMemory) -> None:
    memory.remember("I like tea.", id="a")
    for marks, told in (
        ({"importance": 2}, "importance must be a number in"),
        ({"importance": True}, "importance must be a number in"),
        ({"pinned": "yes"}, "pinned must be True or False"),
        ({"expires": "soon"}, "is not a time"),
    ):
        with pytest.raises(DataError, match=told):
            memory.mark("a", **marks)
        with pytest.raises(DataError, match=told):
            memory.remember("I like coffee.", **marks)
    with pytest.raises(DataError, match="no record 'b'"):
        memory.mark("b", pinned=True)
    assert [r.id for r in memory.records()] == ["a"]


def test_marks_survive_export_and_many_at_once(memory: TextMemory, tmp_path: Path) -> None:
    marks = {"expires": "2999-01-01T00:00:00+00:00", "importance": 0.5, "pinned": True}
    memory.remember_many([{"text": "I like tea.", "id": "a", **marks}, {"text": "No.", "id": "b"}])
    with (tmp_path / "out.jsonl").open("w+") as file:
        export_records(memory, file)
        file.seek(0)
        with TextMemory(tmp_path / "copy.db", config=HASHING) as copy:
            import_records(copy, file)
            kept, plain = (record.as_dict() for record in copy.records())
    assert {name: kept[name] for name in marks} == marks
    assert plain["expires"] is None and not plain["pinned"]


def test_a_summary_shows_what_stands_out(real_memory: TextMemory) -> None:
    for year, place in enumerate(("Rome", "Oslo", "Lima")):
        real_memory.remember(f"I live in {place} now.", id=place, time=f"202{year}-01-01")
    real_memory.remember("My dog is called Rex.", id="dog")
    real_memory.remember("My dog is called Rex.", id="again")
    real_memory.remember("Xylophone quarks zigzag beyond Popocatepetl.", id="odd")
    real_memory.remember("Zebras gobble volcanic marzipan, Rumpelstiltskin.", id="past",
                         expires="2020-01-01")  # fmt: skip
    for _ in range(2):
        real_memory.recall("What is my dog called?", 1)
    real_memory.recall("What is my dog called?", 9, explain=True)
    summary = real_memory.summary(2)
    assert summary.records == 6
    assert summary.surprising[0].id == "odd" and len(summary.surprising) == 2
    assert [(r.id in ("dog", "again"), r.recalls) for r in summary.recalled] == [(True, 2)]
    assert [r.id for r in summary.updated] == ["Lima"] and summary.updates == {"Lima": 2}
    assert summary.updated[0].successor_of is not None
    real_memory.forget("Oslo")
    assert real_memory.summary().updates == {"Lima": 1}


def test_recalls_are_counted_when_the_memory_is_closed(tmp_path: Path) -> None:
    with TextMemory(tmp_path / "m.db", config=HASHING) as memory:
        memory.remember("I like tea.", id="a")
        memory.recall("tea")
    with TextMemory(tmp_path / "m.db", config=HASHING) as memory:
        assert [r.recalls for r in memory.records()] == [1]
        memory.recall("tea")
        memory.remember("I like coffee.", id="b")
        assert [r.recalls for r in memory.records()] == [2, 0]
        memory.forget("a")
        assert memory.summary().recalled == []
