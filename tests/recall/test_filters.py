"""Filters by metadata, speaker and time in recall, list and forget; many records; pages."""

from typing import Any

import pytest

from titans.errors import DataError
from titans.recall import ScriptedGenerator, TextMemory
from titans.recall.chat import close_turn, open_turn

RECORDS: list[dict[str, Any]] = [
    {"text": "the dog barks", "id": "1", "speaker": "Ann", "metadata": {"topic": "dog", "n": 1}},
    {"text": "the dog sleeps", "id": "2", "speaker": "Bob", "metadata": {"topic": "dog", "n": 2}},
    {"text": "the cat and the dog", "id": "3", "metadata": {"topic": "cat", "n": True}},
    {"text": "a dog without data", "id": "4"},
    {"text": "dog marks", "id": "5", "metadata": {'a "b" \\ $.c': None, "list": [1], "n": 1.0}},
]
WANTED = [
    ({"topic": "dog"}, "12"),
    ({"topic": "dog", "n": 2}, "2"),
    ({"n": 1}, "15"),
    ({"n": True}, "3"),
    ({'a "b" \\ $.c': None}, "5"),
    ({"list": "[1]"}, ""),
    ({"topic": "d%"}, ""),
    ({"nothing": None}, ""),
]


@pytest.fixture
def full(memory: TextMemory) -> TextMemory:
    records = memory.remember_many(
        {**values, "time": f"2024-01-0{values['id']}"} for values in RECORDS
    )
    assert [r.id for r in records] == list("12345")
    return memory


@pytest.mark.parametrize("metadata, ids", WANTED)
def test_metadata_in_recall_list_and_forget(full: TextMemory, metadata: dict, ids: str):
    assert "".join(r.id for r in full.records(metadata=metadata)) == ids
    assert sorted(r.id for r in full.recall("dog", 9, metadata=metadata)) == list(ids)
    assert full.forget(metadata=metadata).records == len(ids)
    assert "".join(r.id for r in full.records()) == "".join(i for i in "12345" if i not in ids)


def test_filters_meet(full: TextMemory):
    assert [r.id for r in full.records(speaker="Ann")] == ["1"]
    assert [r.id for r in full.records(after="2024-01-02", before="2024-01-04")] == ["2", "3"]
    assert full.records(speaker="Ann", metadata={"n": 2}) == []
    assert full.forget(after="2024-01-04").records == 2
    assert full.forget(speaker="Bob", before="2024-01-01").records == 0
    with pytest.raises(ValueError, match="exactly one"):
        full.forget("1", speaker="Ann")
    with pytest.raises(ValueError, match="exactly one"):
        full.forget(metadata={})


@pytest.mark.parametrize("value", [[1], {"a": 1}, 2**63, b"x"])
def test_metadata_that_cannot_be_compared_is_refused(full: TextMemory, value: Any):
    with pytest.raises(DataError, match="'topic' is"):
        full.recall("dog", metadata={"topic": value})


def test_metadata_that_json_does_not_know_is_refused(memory: TextMemory):
    with pytest.raises(DataError, match="JSON"):
        memory.remember("x", metadata={"n": float("nan")})


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages(full: TextMemory, newest_first: bool):
    seen: list[str] = []
    while page := full.records(
        newest_first=newest_first, limit=2, beyond=seen[-1] if seen else None
    ):
        seen += [r.id for r in page]
    assert seen == list("54321" if newest_first else "12345")
    with pytest.raises(DataError, match="list from the start"):
        full.records(beyond="gone")


def test_many_are_checked_before_one_is_stored(memory: TextMemory):
    for wrong, said in (({"text": " "}, "record 2: text is empty"), ({"texts": "x"}, "texts")):
        with pytest.raises(DataError, match=said):
            memory.remember_many([{"text": "fine"}, wrong])
    assert memory.records() == []
    steps: list[tuple[int, int]] = []
    memory.remember_many([{"text": "a", "id": "a"}, {"text": "b"}], lambda *at: steps.append(at))
    assert steps == [(2, 2)], "both in one transaction"
    assert not memory.remember_many([{"text": "a", "id": "a"}])[0].is_new


def test_a_turn_recalls_only_what_it_may(memory: TextMemory):
    memory.remember("the code is 1234", metadata={"by": "ann"})
    memory.remember("the code is 9999", metadata={"by": "eve"})
    opened = open_turn(
        memory, "What is the code?", history=[], speaker="user", system="Be brief.",
        metadata={"by": "ann"}, only={"by": "ann"},
    )  # fmt: skip
    assert "1234" in opened.enriched and "9999" not in opened.enriched
    assert opened.messages[0]["content"].startswith("Be brief. Lines inside <memory>")
    kept = close_turn(memory, "It is 1234.", {"by": "ann"})
    assert kept is not None and kept.metadata == opened.record.metadata == {"by": "ann"}
    assert memory.turn("code?", ScriptedGenerator(["1234"])).record.metadata is None
