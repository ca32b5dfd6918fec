"""The index from blocks is the index by rows, whatever was written or forgotten in between."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from recall.conftest import HASHING
from titans.recall import TextMemory
from titans.recall.search import blocks
from titans.recall.search.index import ScopeIndex

DAY = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 8)


def fill(memory: TextMemory, count: int = 60) -> None:
    for i in range(count):
        said = f"tale{i} of thing{i % 9}" if i % 13 else "one sentence of many words here. " * 90
        speaker = (None, "Ann", "Bob", "Cem")[i * i % 4]
        memory.remember(said, id=str(i), speaker=speaker, time=DAY + timedelta(minutes=i))
    memory.remember("The office is in Rome.", id="old")
    memory.remember("The office is in Oslo now.", id="new")


def by_rows(memory: TextMemory) -> ScopeIndex:
    head = memory.store.head("default")
    assert head is not None
    index = ScopeIndex(memory.encoder.dim)
    index.extend([*memory.store.index_entries(head.scope_id, 0)])
    return index


def assert_same(one: ScopeIndex, other: ScopeIndex) -> None:
    assert len(one) == len(other) and one.speakers == other.speakers
    for name in ("passage", "seq", "time", "speaker", "group", "fact", "vectors", "flags"):
        assert np.array_equal(one.column(name), other.column(name)), name
    assert np.allclose(one.column("small_more"), other.column("small_more"), atol=1e-6)
    assert np.array_equal(one.mean, other.mean)


def reopened(path: Path) -> TextMemory:
    memory = TextMemory(path)
    memory.stats()
    return memory


def test_an_index_from_blocks_equals_one_by_rows(tmp_path: Path):
    path = tmp_path / "m.db"
    with TextMemory(path, config=HASHING) as memory:
        fill(memory)
        assert memory.records()[-1].successor_of == "old"
    with reopened(path) as memory:
        head = memory.store.head("default")
        assert head is not None and memory.store.rows_in_blocks(head.scope_id) >= 56
        assert_same(memory._replica.index, by_rows(memory))
        index = memory._replica.index
        assert len(index.histories(np.arange(len(index)))) == 1


def test_forgetting_makes_again_the_blocks_that_held_the_record(tmp_path: Path):
    path = tmp_path / "m.db"
    with TextMemory(path, config=HASHING) as memory:
        fill(memory)
        head = memory.store.head("default")
        assert head is not None
        scope, ends = head.scope_id, memory.store.block_ends(head.scope_id)
        held = memory.store.rows_in_blocks(scope)
        blocks = dict(zip(ends, memory.store.blocks(scope), strict=True))
        memory.forget("30")
        assert memory.store.block_ends(scope) == ends
        assert memory.store.rows_in_blocks(scope) == held - 1
        after = dict(zip(ends, memory.store.blocks(scope), strict=True))
        assert sum(blocks[end] != after[end] for end in ends) == 1 < len(ends)
        memory.stats()
        assert_same(memory._replica.index, by_rows(memory))
        memory.remember("after that", id="after")
    with reopened(path) as memory:
        assert_same(memory._replica.index, by_rows(memory))
        memory.forget(before=DAY + timedelta(minutes=50))
        assert not list(memory.store.damages())
        assert_same(reopened(path)._replica.index, by_rows(memory))


def test_two_memories_on_one_store_make_each_block_once(tmp_path: Path):
    path = tmp_path / "m.db"
    with TextMemory(path, config=HASHING) as one, TextMemory(path) as other:
        for i in range(40):
            (one if i % 3 else other).remember(f"tale{i} of thing{i % 9}", id=str(i))
        one.stats()
        other.stats()
        for memory in (one, other):
            assert_same(memory._replica.index, by_rows(memory))
    with reopened(path) as memory:
        assert_same(memory._replica.index, by_rows(memory))


def test_scopes_have_blocks_of_their_own(tmp_path: Path):
    path = tmp_path / "m.db"
    with TextMemory(path, "a", config=HASHING) as a, TextMemory(path, "b") as b:
        for i in range(30):
            a.remember(f"tale{i} of ann")
            b.remember(f"story{i} of bob")
    with TextMemory(path, "a") as a:
        assert {r.text.split()[-1] for r in a.recall("tale story", 30)} == {"ann"}
        assert len(a._replica.index) == 30
