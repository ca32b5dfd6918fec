import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from recall.conftest import HASHING
from titans.errors import DataError
from titans.recall import TextMemory
from titans.recall.search.index import BARE
from titans.recall.store import connection
from titans.recall.store.connection import files_of
from titans.recall.vectors import unit

DAY = datetime(2024, 5, 1, tzinfo=UTC)
SECRET = "zanzibar xylophone"


def fill(memory: TextMemory, secret_at: int = 7, count: int = 30) -> None:
    for i in range(count):
        said = f"the {SECRET} is hidden" if i == secret_at else f"talk{i} of thing{i % 5}"
        memory.remember(said, id=str(i), speaker="Ann", time=DAY + timedelta(minutes=i))


def raw_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in files_of(path)).lower()


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
    memory._replica.refresh()
    after = memory._replica.state
    state = memory.neural.initial_state()
    for _, data in memory.store.neural_writes(memory._replica.scope_id, 0, 10**9):
        state = memory.neural.absorb(state, memory._replica._write_from(data))
    assert np.array_equal(after.weights, state.weights)
    assert not np.array_equal(after.weights, before)


def test_no_write_that_stays_holds_the_forgotten_vector(memory: TextMemory):
    fill(memory, count=12)
    gone = memory._replica.index.bare(7)
    memory.forget("7")
    for _, data in memory.store.neural_writes(memory._replica.scope_id, 0, 10**9):
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


def test_another_open_memory_notices(memory: TextMemory):
    fill(memory)
    with TextMemory(memory.store.path, config=HASHING) as other:
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


def test_a_copied_store_opens_elsewhere(memory: TextMemory, tmp_path: Path):
    fill(memory)
    expected = [(r.id, r.score) for r in memory.recall("thing", 5)]
    memory.close()
    shutil.copy(memory.store.path, tmp_path / "copy.db")
    with TextMemory(tmp_path / "copy.db") as copy:
        assert [(r.id, r.score) for r in copy.recall("thing", 5)] == expected
