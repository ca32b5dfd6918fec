"""Scopes share a file and nothing else: no handle of one reads, ranks by or deletes another's."""

import sqlite3
from pathlib import Path

import pytest

from recall.conftest import HASHING
from titans.errors import DataError, StoreError
from titans.recall import TextMemory


def test_a_handle_of_a_forgotten_scope_sees_nothing_of_the_next_one(place: str):
    with TextMemory(place, "alice", HASHING) as alice, TextMemory(place, "bob", HASHING) as bob:
        alice.remember("alice's PIN is 1234")
        alice.forget(scope="alice")
        bob.remember("bob's PIN is 4711", time="2024-01-01")
        assert alice.recall("PIN") == [] == alice.records()
        assert alice.forget(before="2030-01-01").records == 0
        assert [r.text for r in bob.records()] == ["bob's PIN is 4711"]
        alice.remember("alice is back")
        assert [r.text for r in alice.recall("PIN", 9)] == ["alice is back"]
        assert [r.text for r in bob.recall("PIN", 9)] == ["bob's PIN is 4711"]


def test_a_scope_that_was_forgotten_and_made_anew_is_noticed_by_every_handle(place: str):
    with TextMemory(place, "a", HASHING) as one, TextMemory(place, "a", HASHING) as other:
        for i in range(5):
            one.remember(f"old tale{i}")
        assert len(other.recall("tale", 9)) == 5
        one.forget(scope="a")
        assert one.remember("new tale").is_new
        for memory in (one, other):
            assert [r.text for r in memory.recall("tale", 9)] == ["new tale"]
            assert memory.stats()["records"] == 1


def test_a_first_write_that_is_rolled_back_ties_the_handle_to_nothing(place: str, monkeypatch):
    with TextMemory(place, "alice", HASHING) as alice, TextMemory(place, "bob", HASHING) as bob:
        with monkeypatch.context() as patched:
            patched.setattr(alice.store, "add_record", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                alice.remember("never stored")
        bob.remember("bob's PIN is 4711", id="x", time="2024-01-01")
        assert alice.recall("PIN") == [] and alice.get("x") is None
        assert alice.stats()["records"] == 0
        with pytest.raises(DataError, match="no record 'x'"):
            alice.forget("x")
        assert len(bob.records()) == 1


def test_numbers_of_scopes_are_never_used_again(place: str):
    seen: list[int] = []
    with TextMemory(place, "a", HASHING) as memory:
        for _ in range(3):
            memory.remember("here and gone")
            with memory.store.reading():
                head = memory.store.head("a")
            assert head is not None
            seen.append(head.scope_id)
            memory.forget(scope="a")
    assert len(set(seen)) == 3


HOSTILE = ["x_s2xzebra s2xzebra", "zebra_s1xzebra", "zebra _ __ s1 s2x \u017f2xzebra"]


def test_what_one_scope_writes_moves_nothing_in_another(place: str, tmp_path: Path):
    """Rankings, scores, surprise and the gate of a scope are those of a file of its own."""
    texts = [f"the zebra number{i} eats grass{i % 3}" for i in range(12)]

    def measure(memory: TextMemory) -> list[object]:
        for i, text in enumerate(texts):
            memory.remember(text, id=str(i), time="2024-01-01")
        found = [(r.id, r.score) for q in ("zebra", "grass1") for r in memory.recall(q, 12)]
        return [found, [r.surprise for r in memory.records()], memory._replica.gate()]

    with TextMemory(tmp_path / "alone.db", "second", HASHING) as memory:
        alone = measure(memory)
    with (
        TextMemory(place, "first", HASHING) as first,
        TextMemory(place, "second", HASHING) as second,
    ):
        for text in HOSTILE * 5:
            first.remember(text)
        assert measure(second) == alone


@pytest.mark.parametrize(
    "word", ["größe", "müller", "łódź", "max_token", "__init__", "naïve", "x_s2xzebra", "4829105"]
)
def test_words_of_every_form_are_found(place: str, word: str):
    with TextMemory(place, "first", HASHING) as memory:
        for i in range(20):
            memory.remember(f"filler{i} of talk{i % 3}", id=str(i))
        memory.remember(f"They spoke of {word} for hours.", id="it")
        found = memory.recall(word.upper() if word.islower() else word, 1)[0]
        assert found.id == "it" and found.parts.lexical > 0


def test_letters_without_their_accents_find_those_with_them(place: str):
    with TextMemory(place, config=HASHING) as memory:
        memory.remember("We met in the café.", id="it", time="2024-01-01")
        memory.remember("Rain fell all day.", id="other", time="2024-02-01")
        for asked in ("cafe", "café", "cafe\u0301"):
            lexical = {r.id: r.parts.lexical for r in memory.recall(asked, 2)}
            assert lexical["it"] > 10 * lexical["other"], asked


def test_an_exact_number_is_first_among_its_like(tmp_path: Path, minilm):
    """Vectors cannot tell numbers apart; the record that holds the number asked for must win."""
    with TextMemory(tmp_path / "m.db", encoder=minilm) as memory:
        numbers = [str(4_000_003 + 7_919 * i) for i in range(30)]
        for i, number in enumerate(numbers):
            memory.remember(f"The ticket of my neighbour is {number}.", speaker="AB"[i % 2])
        first = [memory.recall(f"Who has ticket {n}?", 1)[0].text for n in numbers]
        assert sum(n in text for n, text in zip(numbers, first, strict=True)) == len(numbers)


def test_a_store_deleted_or_replaced_under_an_open_handle_acknowledges_nothing(tmp_path: Path):
    path = tmp_path / "m.db"
    with TextMemory(path, config=HASHING) as memory:
        memory.remember("kept")
        path.rename(path.with_suffix(".moved"))
        with pytest.raises(StoreError, match="deleted or replaced"):
            memory.remember("lost")
        sqlite3.connect(path).close()
        path.touch()
        with pytest.raises(StoreError, match="deleted or replaced"):
            memory.remember("lost")


def test_a_store_with_a_relative_path_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with TextMemory("m.db", config=HASHING) as memory:
        memory.remember("kept")
        monkeypatch.chdir("/")
        memory.remember("kept, too")
        assert memory.stats()["file_bytes"] > 0
        assert [r.text for r in memory.recall("kept", 2)] == ["kept", "kept, too"]


def test_a_store_without_a_file_is_refused():
    with pytest.raises(StoreError, match="nothing would be remembered"):
        TextMemory(":memory:", config=HASHING)
