import random
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from recall.conftest import HASHING, on_sqlite
from titans.errors import DataError
from titans.recall import TextMemory
from titans.recall.search.index import BARE
from titans.recall.store import connection
from titans.recall.store.connection import files_of
from titans.recall.store.erasure import overwrite_gaps
from titans.recall.vectors import unit

DAY = datetime(2024, 5, 1, tzinfo=UTC)
SECRET = "zanzibar xylophone"


def fill(memory: TextMemory, secret_at: int = 7, count: int = 30) -> None:
    for i in range(count):
        said = f"the {SECRET} is hidden" if i == secret_at else f"talk{i} of thing{i % 5}"
        memory.remember(said, id=str(i), speaker="Ann", time=DAY + timedelta(minutes=i))


def raw_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in files_of(path)).lower()


@on_sqlite
@pytest.mark.parametrize(
    "how", [{"id": "7"}, {"before": DAY + timedelta(minutes=8)}, {"scope": "default"}]
)
def test_nothing_of_a_forgotten_text_is_left_in_any_file(memory: TextMemory, how):
    fill(memory)
    path = memory.store.path
    assert b"zanzibar" in raw_bytes(path) and b"xylophone" in raw_bytes(path)
    done = memory.forget(**how)
    assert done.records == {"id": 1, "before": 8, "scope": 30}[next(iter(how))]
    for word in (b"zanzibar", b"xylophon"):
        assert word not in raw_bytes(path)
    memory.close()
    assert b"zanzibar" not in raw_bytes(path)


@on_sqlite
def test_forgotten_vectors_are_gone_too(memory: TextMemory):
    fill(memory)
    vector = memory._replica.index.column("vectors")[7, BARE].tobytes()
    assert vector in b"".join(f.read_bytes() for f in files_of(memory.store.path))
    memory.forget("7")
    memory.close()
    assert vector not in b"".join(f.read_bytes() for f in files_of(memory.store.path))


def test_the_neural_state_is_the_replay_of_what_is_left(memory: TextMemory):
    memory.config = memory._replica.config = HASHING.change(snapshot_every=8)
    fill(memory)
    before = memory._replica.state.weights.copy()
    memory.forget("7")
    with memory.store.reading():
        memory._replica.refresh()
        after = memory._replica.state
        state = memory.neural.initial_state()
        for _, data in memory.store.neural_writes(memory._replica.scope_id, 0, 10**9):
            state = memory.neural.absorb(state, memory._replica._write_from(data))
    np.testing.assert_allclose(after.weights, state.weights, atol=1e-6, rtol=1e-5)
    assert np.abs(after.weights - before).max() > 1e-2


def test_no_bit_of_the_neural_state_tells_what_was_forgotten(tmp_path: Path):
    """Two stores that differ only in a text are the same without it, also for other processes."""
    states: list[bytes] = []
    for number, secret in enumerate(("zanzibar xylophone", "quite another thing")):
        path = tmp_path / f"{number}.db"
        with TextMemory(path, config=HASHING) as memory, TextMemory(path) as other:
            for i in range(12):  # fewer than the gate needs, so that all are written
                text = secret if i == 4 else f"talk{i} of thing{i % 5}"
                memory.remember(text, id=str(i), time=DAY + timedelta(minutes=i))
            other.stats()
            memory.forget("4")
            memory.remember("and on we go", id="next", time=DAY + timedelta(hours=1))
            other.stats()
            assert np.array_equal(memory._replica.state.weights, other._replica.state.weights)
            states.append(memory._replica.state.weights.tobytes())
    assert states[0] == states[1]


def test_no_write_that_stays_holds_the_forgotten_vector(memory: TextMemory):
    fill(memory, count=12)
    gone = memory._replica.index.bare(7)
    memory.forget("7")
    with memory.store.reading():
        logged = list(memory.store.neural_writes(memory._replica.scope_id, 0, 10**9))
    assert logged
    for _, data in logged:
        write = memory._replica._write_from(data)
        for vector in (*write.keys, *write.values):
            assert abs(float(unit(vector) @ unit(gone))) < 0.5


def test_a_forgotten_record_is_unknown_and_its_id_free(memory: TextMemory):
    fill(memory)
    memory.forget("7")
    assert memory.get("7") is None
    assert all(r.id != "7" for r in memory.recall(SECRET, 30))
    assert memory.remember("something else", id="7").is_new
    with pytest.raises(DataError, match="no record 'nope'"):
        memory.forget("nope")
    with pytest.raises(ValueError, match="exactly one"):
        memory.forget("7", before=DAY)


def test_another_open_memory_notices(place: str, memory: TextMemory):
    fill(memory)
    with TextMemory(place, config=HASHING) as other:
        assert other.recall(SECRET, 1)[0].id == "7"
        other.forget("7")
    assert all(r.id != "7" for r in memory.recall(SECRET, 30))
    assert memory.remember("and on we go").is_new


def test_a_group_whose_first_record_goes_is_led_by_the_next(memory: TextMemory):
    for name in "abc":
        memory.remember("The sky is blue.", id=name)
    memory.remember("I moved, the sky was grey.", id="d")
    memory.forget("a")
    records = {r.id: r for r in memory.records()}
    assert records["b"].duplicate_of is None and records["c"].duplicate_of == "b"


def test_forgetting_before_a_time_is_exclusive(memory: TextMemory):
    fill(memory, count=10)
    assert memory.forget(before=DAY + timedelta(minutes=4)).records == 4
    assert [r.id for r in memory.records()] == [str(i) for i in range(4, 10)]


@on_sqlite
def test_the_file_is_not_written_anew_for_one_record_but_made_smaller_for_many(memory: TextMemory):
    fill(memory, count=200)
    memory.forget("7")
    path, before = memory.store.path, memory.store.path.stat().st_size
    memory.forget("8")
    assert memory.store.is_clean and path.stat().st_size >= before
    memory.forget(after=DAY + timedelta(minutes=20))
    assert memory.store.is_clean and path.stat().st_size < 0.7 * before
    memory.store.check_sound()
    assert not list(memory.store.damages())


def test_what_sqlite_leaves_of_deleted_rows_is_overwritten(tmp_path: Path):
    """Pages that were divided keep copies of rows, which `secure_delete` does not know of."""
    path, rng = tmp_path / "pages.db", random.Random(0)
    keys = [f"{rng.getrandbits(64):016x}" + "y" * rng.randint(200, 900) for _ in range(1500)]
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v BLOB) WITHOUT ROWID")
        rows = [(key, rng.randbytes(rng.choice([0, 10_000]))) for key in keys]
        db.executemany("INSERT INTO t VALUES (?, ?)", rows)
        gone = keys[::2]
        db.executemany("DELETE FROM t WHERE k = ?", [(key,) for key in gone])
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw = path.read_bytes()
        assert any(key[:16].encode() in raw for key in gone)
    assert overwrite_gaps(path)
    assert overwrite_gaps(path) == 0
    raw = path.read_bytes()
    assert not any(key[:16].encode() in raw for key in gone)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        left = db.execute("SELECT k, v FROM t").fetchall()
        assert sorted(left) == sorted(row for row in rows if row[0] not in set(gone))


@on_sqlite
@pytest.mark.parametrize("by", ["a writer", "the next open"])
def test_what_a_reader_holds_back_is_removed_later(memory: TextMemory, monkeypatch, by: str):
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.1)
    fill(memory)
    path = memory.store.path
    with TextMemory(path, config=HASHING) as reader, TextMemory(path, config=HASHING) as third:
        with reader.store.reading():
            assert reader.store.scopes() == ["default"]
            done = memory.forget("7")
            assert done.records == 1 and not done.is_complete
            assert b"zanzibar" in raw_bytes(path)
            third.remember("a writer while it is read")
        assert memory.get("7") is None and b"zanzibar" in raw_bytes(path)
        if by == "a writer":
            third.remember("a writer afterwards")
        else:
            TextMemory(path, config=HASHING).close()
        assert b"zanzibar" not in raw_bytes(path) and third.store.is_clean
        assert memory.forget("8").is_complete


@on_sqlite
def test_what_is_forgotten_while_an_older_scrub_waits_is_removed_too(
    memory: TextMemory, monkeypatch
):
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.1)
    fill(memory)
    with TextMemory(memory.store.path, config=HASHING) as reader, reader.store.reading():
        assert reader.store.scopes()
        memory.forget("1")
        assert not memory.forget("7").is_complete
    memory.remember("a writer")
    assert memory.store.is_clean and b"zanzibar" not in raw_bytes(memory.store.path)


@on_sqlite
def test_a_copied_store_opens_elsewhere(memory: TextMemory, tmp_path: Path):
    fill(memory)
    expected = [(r.id, r.score) for r in memory.recall("thing", 5)]
    memory.close()
    shutil.copy(memory.store.path, tmp_path / "copy.db")
    with TextMemory(tmp_path / "copy.db") as copy:
        assert [(r.id, r.score) for r in copy.recall("thing", 5)] == expected
