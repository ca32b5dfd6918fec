import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from recall.conftest import HASHING, on_sqlite
from titans.errors import StoreError
from titans.recall import RecallConfig, TextMemory, preset
from titans.recall.store import connection
from titans.recall.store.migrations import MIGRATIONS, m001_records, schema_version
from titans.recall.upkeep import find_damage, repair


def make(path: Path) -> bytes:
    with TextMemory(path, config=HASHING) as memory:
        memory.remember("I like tea.", id="a")
    return path.read_bytes()


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path):
    path = tmp_path / "m.db"
    make(path)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer version"):
        TextMemory(path, config=HASHING)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["garbage", "truncated", "header"])
def test_a_damaged_file_is_explained_and_not_overwritten(tmp_path: Path, damage):
    path = tmp_path / "m.db"
    content = make(path)
    broken = {
        "garbage": b"this is no database, it is a letter to my aunt " * 100,
        "truncated": content[:5000],
        "header": b"\0" * 100 + content[100:],
    }[damage]
    path.write_bytes(broken)
    with (
        pytest.raises(StoreError, match=r"damaged|not a store"),
        TextMemory(path, config=HASHING) as memory,
    ):
        memory.records()
        memory.recall("tea")
    assert path.read_bytes() == broken


def test_another_programs_database_is_refused(tmp_path: Path):
    path = tmp_path / "other.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE songs (title TEXT)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        TextMemory(path, config=HASHING)
    assert path.read_bytes() == before


def test_a_mismatched_encoder_or_memory_is_refused(tmp_path: Path):
    path = tmp_path / "m.db"
    make(path)
    with pytest.raises(StoreError, match="written with encoder hashing:64"):
        TextMemory(path, config=RecallConfig(encoder="hashing:32"))
    with pytest.raises(StoreError, match="written with neural"):
        TextMemory(path, config=preset("classic").change(encoder="hashing:64"))
    with TextMemory(path) as memory:  # without settings the store's own are used
        assert memory.encoder.name == "hashing:64"
        assert memory.recall("tea")[0].id == "a"


@pytest.mark.parametrize("path", ["/proc/titans/memory.db", "/dev/null/memory.db"])
def test_a_path_that_cannot_be_written_is_explained(path):
    with pytest.raises(StoreError, match="cannot be opened"):
        TextMemory(path, config=HASHING)


def test_a_folder_is_not_a_store(tmp_path: Path):
    with pytest.raises(StoreError, match="cannot be opened"):
        TextMemory(tmp_path, config=HASHING)


def test_a_read_only_store_can_be_read_and_says_so_when_written(tmp_path: Path):
    path = tmp_path / "m.db"
    make(path)
    with TextMemory(path, config=HASHING) as memory:
        memory.store.db.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match="read-only"):
            memory.remember("no")
        assert len(memory.records()) == 1


@on_sqlite
def test_a_full_disk_loses_nothing_and_says_so(memory: TextMemory):
    memory.remember("first", id="a")
    pages = memory.store.db.execute("PRAGMA page_count").fetchone()[0]
    memory.store.db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreError, match="disk is full"):
        for i in range(100):
            memory.remember(f"filler {i} " * 200, id=f"f{i}")
    kept = len(memory.records())
    memory.store.db.execute("PRAGMA max_page_count = 100000")
    assert memory.remember("after", id="z").is_new
    assert len(memory.records()) == kept + 1
    assert memory.recall("after", 1)[0].id == "z"


FILE_LIMIT = """
import sys
from titans.errors import StoreError
from titans.recall import TextMemory
memory = TextMemory(sys.argv[1])
try:
    for i in range(1000):
        memory.remember(f"filler {i} " * 200, id=f"f{i}")
        print(f"f{i}", flush=True)
except StoreError as error:
    print("refused", error)
"""


def test_a_write_that_the_system_cuts_short_keeps_what_was_acknowledged(tmp_path: Path):
    path = tmp_path / "m.db"
    make(path)

    def limit() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    done = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(path)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = done.stdout.split("\n")
    acknowledged = [line for line in lines if line.startswith("f")]
    assert acknowledged and any(line.startswith("refused") for line in lines), done.stderr
    with TextMemory(path) as memory:
        assert {r.id for r in memory.records()} >= {"a", *acknowledged}


def test_an_old_store_is_brought_up_to_date(tmp_path: Path):
    db = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
    m001_records(db)
    db.execute("PRAGMA user_version = 1")
    db.close()
    with TextMemory(tmp_path / "old.db", config=HASHING) as memory:
        assert schema_version(memory.store.db) == len(MIGRATIONS)
        assert memory.remember("fine").is_new


def test_snapshots_are_spread_and_bounded(tmp_path: Path):
    config = HASHING.change(snapshot_every=2, keep_snapshots=4, gate_quantile=0.0)
    with TextMemory(tmp_path / "m.db", config=config) as memory:
        for i in range(60):
            memory.remember(f"topic{i} word{i} more{i}")
        seqs = [r[0] for r in memory.store.db.execute("SELECT seq FROM snapshots ORDER BY seq")]
        assert len(seqs) == 4 and seqs[0] < 20 and seqs[-1] >= 58


def test_the_data_folder_is_made(tmp_path: Path):
    with TextMemory(tmp_path / "a" / "b" / "m.db", config=HASHING) as memory:
        memory.remember("fine")
    assert os.path.exists(tmp_path / "a" / "b" / "m.db")


def test_a_new_store_and_its_log_are_for_their_owner_only(tmp_path: Path):
    old = os.umask(0o022)
    try:
        with TextMemory(tmp_path / "m.db", config=HASHING) as memory:
            memory.remember("fine")
            found = connection.files_of(tmp_path / "m.db")
            assert len(found) == 3
            assert {oct(f.stat().st_mode & 0o777) for f in found} == {"0o600"}
    finally:
        os.umask(old)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE records SET text = 'I like tee.'",
        "UPDATE records SET speaker = 'Bob'",
        "UPDATE records SET time = time + 1",
        "UPDATE records SET metadata = '{}'",
        "UPDATE passages SET flags = flags + 1",
        "UPDATE passages SET vectors = zeroblob(length(vectors))",
        "UPDATE passage_tokens SET vectors = zeroblob(length(vectors))",
        "UPDATE neural_writes SET vectors = zeroblob(length(vectors))",
        "DELETE FROM records",
        "DELETE FROM passage_tokens",
        "DELETE FROM neural_writes",
    ],
)
def test_what_was_changed_behind_our_back_is_never_answered(tmp_path: Path, change: str):
    path = tmp_path / "m.db"
    make(path)
    db = sqlite3.connect(path)
    db.execute(change)
    db.commit()
    db.close()
    with TextMemory(path) as memory, pytest.raises(StoreError, match="is damaged"):
        memory.recall("tea")
        memory.remember("tea")  # reads the neural memory, which recall does not


def test_a_record_that_vanished_under_an_open_handle_is_damage(tmp_path: Path):
    path = tmp_path / "m.db"
    make(path)
    with TextMemory(path) as memory:
        assert memory.recall("tea")
        db = sqlite3.connect(path)
        db.execute("DELETE FROM records")
        db.commit()
        db.close()
        for look in (lambda: memory.recall("tea"), lambda: memory.remember("I like tea, too.")):
            with pytest.raises(StoreError, match="is damaged"):
                look()


def test_a_scope_is_not_hidden_by_damage_in_the_index_of_names(tmp_path: Path):
    path = tmp_path / "m.db"
    make(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        name = "sqlite_autoindex_scopes_1"
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        page = db.execute(query, (name,)).fetchone()[0]
        size = db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    content = bytearray(path.read_bytes())
    begin = (page - 1) * size
    content[begin + 3 : begin + 5] = bytes(2)  # how many names it holds
    path.write_bytes(content)
    with TextMemory(path, config=HASHING) as memory:
        for use in (memory.records, lambda: memory.recall("tea"), lambda: memory.remember("x")):
            with pytest.raises(StoreError, match="leaves out 'default'"):
                use()
        assert any("sqlite_autoindex_scopes_1" in line for line in find_damage(memory))


@pytest.mark.parametrize("damage", [b"`s", b"`\xcc", b"xs", b"\xccs"])
def test_a_damaged_schema_is_one_line(tmp_path: Path, damage: bytes):
    """SQLite quotes the rest of it, line breaks and all, and Python may fail to read that."""
    path = tmp_path / "m.db"
    content = make(path)
    place = content.index(b" speaker TEXT")
    path.write_bytes(content[:place] + damage + content[place + 2 :])

    def recall(path: Path) -> None:
        with TextMemory(path, config=HASHING) as memory:
            memory.recall("tea")

    for use in (recall, lambda path: repair(path, HASHING)):
        with pytest.raises(StoreError) as raised:
            use(path)
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)
