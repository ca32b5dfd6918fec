"""Damage is noticed when it is read, listed by `check`, and repaired from what is sound."""

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from golden.files import DATA
from recall.conftest import HASHING
from titans.cli.main import main as titans
from titans.errors import StoreError
from titans.recall import RecallConfig, TextMemory
from titans.recall.upkeep import find_damage, repair

CONFIG = RecallConfig(encoder="hashing:64", snapshot_every=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two scopes, snapshots, duplicates, updates, persistent texts, something gone."""
    place = tmp_path / "m.db"
    for scope in ("ann", "bob"):
        with TextMemory(place, scope, CONFIG) as memory:
            for i in range(24):
                memory.remember(f"{scope} tells tale{i} of day{i % 5}", id=str(i), speaker=scope)
            memory.remember(f"{scope} tells tale3 of day3", id="again", speaker=scope)
            memory.remember("the office is in Rome", id="old")
            memory.remember("the office is in Oslo", id="new")
            memory.persistent_texts = [f"{scope} likes tales"]
            memory.forget("7")
    return place


def damage(path: Path, statement: str) -> None:
    """Change something past all checksums."""
    with sqlite3.connect(path) as db:
        assert db.execute(statement).rowcount > 0
    db.close()


def content(path: Path, scope: str) -> list[tuple[object, ...]]:
    with TextMemory(path, scope, CONFIG) as memory:
        return [(r.id, r.text, r.speaker, r.time, r.metadata) for r in memory.records()]


def test_a_sound_store_has_no_damage(path: Path):
    with TextMemory(path, "ann", CONFIG) as memory:
        assert list(find_damage(memory)) == []


def test_an_old_store_has_no_damage(tmp_path: Path, minilm):
    shutil.copy(DATA / "memory.db", tmp_path / "m.db")
    with TextMemory(tmp_path / "m.db", encoder=minilm) as memory:
        assert list(find_damage(memory)) == []


DAMAGES = {
    "text": "UPDATE records SET text = 'ann tells lies' WHERE seq = 5",
    "speaker": "UPDATE records SET speaker = 'eve' WHERE seq = 5",
    "crossed": "UPDATE records SET scope = 2, id = 'x' WHERE seq = 5",
    "vector": "UPDATE passages SET vectors = zeroblob(length(vectors)) WHERE seq = 3",
    "token": "UPDATE passage_tokens SET vectors = zeroblob(length(vectors)) WHERE passage = 3",
    "write": "UPDATE neural_writes SET vectors = zeroblob(length(vectors)) WHERE seq = 3",
    "snapshot": "UPDATE snapshots SET state = zeroblob(length(state)) WHERE scope = 1",
    "word": "UPDATE terms SET term = 'tail3' WHERE term = 'tale3'",
    "posting": "UPDATE postings SET count = 2 WHERE passage = 3",
    "lost posting": "DELETE FROM postings WHERE passage = 3",
    "lost record": "DELETE FROM records WHERE seq = 3",
    "persistent": "UPDATE persistent_texts SET text = 'eve likes tales' WHERE scope = 1",
    "name": "UPDATE scopes SET name = 'eve' WHERE name = 'ann'",
    "progress": "UPDATE scopes SET last_seq = last_seq - 1 WHERE name = 'ann'",
    "setting": "UPDATE meta SET value = value || ' ' WHERE key = 'neural'",
}
UNNAMED = ("name", "progress")
"""Damages after which the row that names the scope is not sound."""


@pytest.mark.parametrize("kind", DAMAGES)
def test_changed_rows_are_listed_and_what_is_sound_is_kept(path: Path, kind: str):
    before = {scope: content(path, scope) for scope in ("ann", "bob")}
    damage(path, DAMAGES[kind])
    try:
        with TextMemory(path, "ann", CONFIG) as memory:
            assert list(find_damage(memory)) != []
    except StoreError as error:
        assert "damaged" in str(error)
    done = repair(path, CONFIG)
    with TextMemory(path, "ann", CONFIG) as memory:
        assert list(find_damage(memory)) == []
        if kind not in UNNAMED:
            assert memory.recall("tale11", 1)[0].id == "11"
    lost = [b for b in before["ann"] if b not in content(path, "ann")]
    assert [r for r in before["bob"] if r not in content(path, "bob")] == []
    if kind in UNNAMED:
        # Whose they are is not known for sure, so they are nobody's.
        assert lost == before["ann"] == content(path, "scope-1")
    else:
        assert len(lost) == (kind in ("text", "speaker", "crossed", "lost record"))
        assert done.records + done.lost == sum(map(len, before.values()))
    assert done.damaged.exists()


def test_flipped_bytes_lose_what_they_hit_and_nothing_else(path: Path):
    """Pages that cannot be read at all are read around."""
    before = {scope: content(path, scope) for scope in ("ann", "bob")}
    data = bytearray(path.read_bytes())
    rng = random.Random(0)
    for _ in range(4):
        place = rng.randrange(4096, len(data) - 600)
        data[place : place + 600] = rng.randbytes(600)
    path.write_bytes(data)
    done = repair(path, CONFIG)
    kept = {scope: content(path, scope) for scope in before}
    assert 0 < done.records == sum(map(len, kept.values()))
    for scope in before:
        assert set(map(str, kept[scope])) <= set(map(str, before[scope]))
    with TextMemory(path, "ann", CONFIG) as memory:
        assert list(find_damage(memory)) == []


def test_a_repair_waits_for_nobody_and_loses_nobody(path: Path):
    with TextMemory(path, "ann", CONFIG), pytest.raises(StoreError, match="another process"):
        repair(path, CONFIG)
    assert len(content(path, "ann")) == 26


def test_the_commands(path: Path, capsys: pytest.CaptureFixture[str]):
    assert titans(["memory", "check", "--store", str(path)]) == 0
    damage(path, DAMAGES["text"])
    assert titans(["memory", "check", "--store", str(path)]) == 1
    assert (
        "a row of records (seq 5, scope 1, id 4) is not what was written" in capsys.readouterr().out
    )
    assert titans(["recall", "tale4", "--store", str(path), "--scope", "ann"]) == 1
    assert "titans memory repair" in capsys.readouterr().err
    assert titans(["memory", "repair", "--store", str(path), "--json"]) == 0
    assert '"lost": 1' in capsys.readouterr().out
    assert titans(["memory", "check", "--store", str(path)]) == 0


def test_a_file_that_cannot_be_read_at_all_says_so(tmp_path: Path):
    path = tmp_path / "m.db"
    path.write_bytes(b"x" * 8192)
    with pytest.raises(StoreError, match="cannot be read at all"):
        repair(path, HASHING)
