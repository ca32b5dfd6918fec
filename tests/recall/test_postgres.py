"""PostgreSQL: what only a server has. The other suites of the text memory run on both stores."""

import random
import re
import subprocess
import sys
import threading
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from recall.conftest import HASHING
from support.postgres import PASSWORD, new_place, server
from titans.cli.main import main as titans
from titans.errors import DataError, StoreError
from titans.recall import RecallConfig, Record, TextMemory, export_records, import_records
from titans.recall.store import open_store, postgres, shown
from titans.recall.store.postgres_schema import MIGRATIONS, TABLES, migrate
from titans.recall.upkeep import find_damage

SAID = [
    ("My dog is called Rex.", "Ann"),
    ("I live in Oslo.", "Ann"),
    ("The meeting is on Friday.", None),
    ("My dog is called Rex.", "Ann"),
    ("I moved to Rome.", "Ann"),
    ("Größe and max_token, \x00 and \x10, \x10\x00.", "Łukasz \x00"),
] + [(f"talk{i} of thing{i % 5}", "Bob") for i in range(24)]


@pytest.fixture
def place() -> str:
    return new_place()


def say(memory: TextMemory) -> list[Record]:
    said: list[Record] = []
    for number, (text, speaker) in enumerate(SAID):
        more = {"time": f"2024-01-{number + 1:02}", "metadata": {"n": number % 3}}
        said.append(memory.remember(text, speaker=speaker, id=str(number), **more))
    return said


def sql(place: str) -> "psycopg.Connection[Any]":
    """A connection as the plain role has it, for SQL by hand."""
    return psycopg.connect(place, autocommit=True)


def as_admin(place: str) -> "psycopg.Connection[Any]":
    return psycopg.connect(place.replace("//titans@", "//postgres@"), autocommit=True)


def test_both_stores_answer_alike_to_the_bit(place: str, tmp_path: Path):
    found: list[object] = []
    config = RecallConfig(encoder="hashing:64", snapshot_every=5)
    for where in (place, tmp_path / "m.db"):
        with TextMemory(where, config=config) as memory:
            said = say(memory)
            assert said[3].duplicate_of == "0" and said[4].successor_of == "1"
            memory.forget("2")
            memory.forget(metadata={"n": 1}, speaker=None)
        with TextMemory(where, config=config) as memory:
            asked = ("What is the dog called?", "Where does Ann live?", "thing3", "größe")
            recalled = [
                (r.id, r.score, r.parts, r.why, r.confidence)
                for q in asked
                for r in memory.recall(q, 9)
            ]
            with memory.store.reading():
                weights = [np.asarray(w).tobytes() for w in memory._replica.state.weights]
            found.append((said, recalled, weights, memory.records()))
            assert not list(find_damage(memory))
    assert found[0] == found[1]


# Apart


@pytest.fixture
def two(place: str) -> str:
    """A store with two scopes and something in every table of both."""
    config = RecallConfig(encoder="hashing:16", snapshot_every=1)
    for scope in ("ann", "bob"):
        with TextMemory(place, scope, config) as memory:
            memory.persistent_texts = [f"{scope} likes tea"]
            memory.remember(f"{scope} has a secret", id="x")
            with memory.store.writing(scope):
                memory.store.save_block(memory._replica.scope_id, 1, 0, b"a block")
    return place


def test_sql_about_one_scope_sees_and_changes_nothing_of_another(two: str):
    with as_admin(two) as admin:
        numbers = dict(admin.execute("SELECT name, id FROM scopes").fetchall())
        before = {t: _rows(admin, t) for t in TABLES}
    assert all({row[0] for row in rows} == set(numbers.values()) for rows in before.values())
    with sql(two) as db:
        assert all(not _rows(db, table) for table in TABLES), "no scope set, nothing to see"
        db.execute("SET titans.scope = 'ann'")
        assert db.execute("SELECT name FROM scopes").fetchall() == [("ann",)]
        assert db.execute("SELECT DISTINCT scope FROM memories").fetchall() == [("ann",)]
        for table in TABLES:
            assert {row[0] for row in _rows(db, table)} == {numbers["ann"]}, table
            name = Identifier(table)
            assert (
                db.execute(
                    SQL("DELETE FROM {} WHERE scope <> %s").format(name), [numbers["ann"]]
                ).rowcount
                == 0
            )
            change = SQL("UPDATE {} SET scope = %s").format(name)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(change, [numbers["bob"]])
    with as_admin(two) as admin:
        assert before == {t: _rows(admin, t) for t in TABLES}


def _rows(db: "psycopg.Connection[Any]", table: str) -> list[Any]:
    return sorted(db.execute(SQL("SELECT scope, checksum FROM {}").format(Identifier(table))))


def test_a_query_that_names_the_wrong_scope_finds_nothing(two: str):
    with TextMemory(two, "ann") as ann, TextMemory(two, "bob") as bob:
        with bob.store.reading("bob"):
            head = bob.store.head("bob")
            assert head is not None and bob.store.find(head.scope_id, "x") is not None
        number = head.scope_id
        with ann.store.reading("ann"):
            assert ann.store.find(number, "x") is None
            assert ann.store.head("bob") is None and ann.store.scopes() == ["ann", "bob"]
            assert ann.store.head("bob") is None


def test_a_role_that_no_policy_binds_is_told(place: str):
    with pytest.warns(UserWarning, match="not bound by row-level security"):
        open_store(place.replace("//titans@", "//postgres@")).close()


def test_vectors_can_be_asked_in_sql(place: str, minilm):
    with TextMemory(place, "ann", encoder=minilm) as memory:
        for text in ("My dog is called Rex.", "Our puppy is named Max.", "Rain fell all day."):
            memory.remember(text, id=text[:3], time="2024-05-31T10:00", metadata={"page": 3})
    with sql(place) as db:
        db.execute("SET titans.scope = 'ann'")
        near = """SELECT b.text FROM memories a, memories b WHERE a.id = 'My ' AND b.id <> a.id
            ORDER BY a.embedding <=> b.embedding"""
        assert db.execute(near).fetchone() == ("Our puppy is named Max.",)
        plain = "SELECT time::text, metadata->>'page', vector_dims(embedding) FROM memories LIMIT 1"
        db.execute("SET timezone = 'UTC'")
        assert db.execute(plain).fetchone() == ("2024-05-31 10:00:00+00", "3", minilm.dim)


# Together


def test_scopes_are_written_side_by_side_and_one_scope_in_turns(place: str, monkeypatch):
    monkeypatch.setattr(postgres, "BUSY_SECONDS", 0.2)
    with TextMemory(place, "ann", HASHING) as ann, TextMemory(place, "bob", HASHING) as bob:
        with closing(open_store(place)) as other, other.writing("ann"):
            bob.remember("nobody writes here")
            with pytest.raises(StoreError, match="another process has held it"):
                ann.remember("somebody writes here")
            assert ann.records() == []
        assert ann.remember("now").is_new
        with (
            closing(open_store(place)) as other,
            other.writing(),
            pytest.raises(StoreError, match="another process has held it"),
        ):
            bob.remember("all scopes are being written")


def test_a_lost_connection_is_an_error_of_one_line_and_made_again(place: str):
    with TextMemory(place, config=HASHING) as memory:
        memory.remember("before", id="a")
        _cut(place)
        assert memory.recall("before")[0].id == "a", "nothing was under way: nothing is said"
        with pytest.raises(StoreError) as caught, memory.store.writing("default"):
            _cut(place)
            memory.store.set_setting("x", "never")
        assert "\n" not in str(caught.value) and "cannot be reached" in str(caught.value)
        assert memory.remember("after", id="b").is_new
        assert memory.store.setting("x") is None and len(memory.records()) == 2
    with pytest.raises(StoreError, match="was closed"):
        memory.records()


def _cut(place: str) -> None:
    with as_admin(place) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'titans'"
        )


def test_a_connection_lost_at_the_commit_says_what_is_not_known(place: str):
    with TextMemory(place, config=HASHING) as memory:
        lost = pytest.raises(StoreError, match="lost while a change was stored")
        with lost, memory.store.writing("default"):
            _cut(place)
        assert memory.remember("after").is_new


# Opened


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("mysql://localhost/db", "mysql:// is no store"),
        ("http://hidden@host", "http:// is no store"),
        ("postgresql://u:hid/den@host/db", "write @ : / "),
        ("postgresql://u:hidden@[host/db", "the address is not postgresql://ROLE"),
        ("postgresql://u:hidden@host/db?hidden=1", "the address is not postgresql://ROLE"),
        ("postgresql://u:hidden@127.0.0.1:1/db", "postgresql://u@127.0.0.1:1/db cannot be reached"),
        ("postgresql://u@127.0.0.1:1/db?password=hidden", "cannot be reached"),
    ],
)
def test_addresses_that_lead_nowhere(address: str, said: str):
    with pytest.raises(StoreError) as caught:
        TextMemory(address)
    message = str(caught.value)
    assert said in message and "hid" not in message and "\n" not in message
    assert "hid" not in "".join(traceback.format_exception(caught.value))


def test_a_password_is_never_shown(capsys: pytest.CaptureFixture[str]):
    quoted = PASSWORD.replace(":", "%3A").replace("@", "%40").replace("/", "%2F")
    place = new_place("secret").replace("secret@", f"secret:{quoted}@")
    with TextMemory(place, config=HASHING) as memory:
        assert memory.remember("kept").is_new
        seen = f"{memory.stats()} {memory.store.name} {shown(place)}"
    wrong = place.replace("7719", "77190")
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        TextMemory(wrong)
    assert titans(["recall", "x", "--store", wrong]) == 1
    assert titans(["remember", "x", "--store", place, "--json"]) == 0
    seen += f"{caught.value} {caught.value.__cause__} {capsys.readouterr()}"
    assert "7719" not in seen and "p4ss" not in seen and "secret@127.0.0.1" in seen


def test_what_is_missing_is_said(place: str):
    with server().admin() as db:
        db.execute("CREATE DATABASE bare OWNER titans")
        db.execute("CREATE ROLE stranger LOGIN")
    with pytest.raises(StoreError, match="CREATE EXTENSION vector in database bare"):
        open_store(server().address(database="bare"))
    with sql(place) as db:
        db.execute("CREATE TABLE songs (title text)")
    with pytest.raises(StoreError, match="tables of another program in schema test_"):
        open_store(place)
    with pytest.raises(StoreError, match="lacks a right"):
        open_store(server().address("stranger"))
    with pytest.raises(StoreError, match="has no schema for role titans"):
        open_store(server().address() + "?options=-csearch_path%3Dnowhere")


def test_an_old_store_is_brought_up_to_date_and_a_newer_one_left_alone(place: str, monkeypatch):
    with monkeypatch.context() as patched, sql(place) as db, db.transaction():
        patched.setattr("titans.recall.store.postgres_schema.MIGRATIONS", MIGRATIONS[:1])
        migrate(db, 0)
    with TextMemory(place, config=HASHING) as memory, sql(place) as db:
        assert memory.remember("fine").is_new
        assert db.execute("SELECT count(*) FROM records").fetchone() == (0,), "no scope is set"
        assert db.execute("SELECT version FROM titans").fetchone() == (len(MIGRATIONS),)
        db.execute("UPDATE titans SET version = version + 1")
    with pytest.raises(StoreError, match="newer version"):
        open_store(place)


def test_several_handles_make_one_store_at_once(place: str):
    failed: list[BaseException] = []

    def work() -> None:
        try:
            open_store(place).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from titans.recall import RecallConfig, TextMemory
with TextMemory(sys.argv[2], config=RecallConfig(encoder="hashing:16")) as memory:
    memory.remember("kept")
assert "psycopg" not in sys.modules or sys.argv[1] == "psycopg"
try:
    TextMemory("postgresql://ann:hidden@localhost/db")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_missing_extra_is_named_and_a_file_needs_none(tmp_path: Path):
    words = [sys.executable, "-c", WITHOUT, "psycopg", str(tmp_path / "m.db")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout == (
        "StoreError postgresql://ann@localhost/db needs psycopg: "
        "pip install 'titans-neural-memory[postgres]'\n"
    ), done.stderr


# Forgotten, noticed


def _content(place: str) -> str:
    """All that any table has, as its administrator sees it."""
    with as_admin(place) as db:
        queries = [SQL("SELECT * FROM {}").format(Identifier(t)) for t in ("scopes", *TABLES)]
        return str([db.execute(query).fetchall() for query in queries])


def test_nothing_of_a_forgotten_text_is_left_and_its_rows_are_vacuumed(place: str, monkeypatch):
    monkeypatch.setattr(postgres, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(postgres, "SCRUB_AGAIN_SECONDS", 0.0)
    with TextMemory(place, config=HASHING) as memory:
        say(memory)
        memory.remember("the zanzibar xylophone", id="gone", speaker="Zanzibar")
        assert "xylophone" in _content(place) and "zanzibar" in _content(place)
        assert memory.forget("gone").is_complete
        assert "xyloph" not in _content(place) and "anzibar" not in _content(place)
        assert _dead(place) == 0
        with closing(open_store(place)) as reader, reader.reading():
            assert reader.scopes() == ["default"]  # from now on it sees what is there now
            assert not memory.forget("7").is_complete
            assert memory.remember("a writer meanwhile").is_new
        assert not memory.store.is_clean
        memory.remember("a writer afterwards")
        assert memory.store.is_clean and _dead(place) == 0
        assert memory.forget(scope="default").is_complete
    assert all(text not in _content(place) for text in ("Rex", "oslo", "default"))


def _dead(place: str) -> int:
    """Deleted rows of passages that were still in the table."""
    told: list[str] = []
    with as_admin(place) as db:
        db.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
        db.execute("VACUUM (VERBOSE) passages")
    counts = re.search(r"tuples: (\d+) removed, \d+ remain, (\d+) are dead", "".join(told))
    assert counts is not None
    return int(counts[1]) + int(counts[2])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE records SET text = 'I like tee.'",
        "UPDATE passages SET vectors = array_fill(0, ARRAY[128])::halfvec",
        "DELETE FROM records",
    ],
)
def test_what_was_changed_behind_our_back_is_never_answered(place: str, change: str):
    with TextMemory(place, config=HASHING) as memory:
        memory.remember("I like tea.", id="a")
    with as_admin(place) as db:
        assert db.execute(change.encode()).rowcount == 1
    with TextMemory(place) as memory:
        assert list(find_damage(memory))
        with pytest.raises(StoreError, match="is damaged"):
            memory.recall("tea")
            memory.get("a")
    assert titans(["memory", "check", "--store", place]) == 1


def test_what_postgresql_cannot_keep_is_refused(place: str):
    with TextMemory(place, config=HASHING) as memory:
        with pytest.raises(DataError, match="NUL"):
            memory.remember("fine", metadata={"a": "\x00"})
        with pytest.raises(DataError, match="too long"):
            memory.remember("fine", id=random.Random(0).randbytes(9000).hex())
        assert memory.records() == []
        unusual = random.Random(0).randbytes(9000).hex()  # one word
        memory.remember(f"the key is {unusual}", id="key")
        memory.remember("the key is lost", id="lost")
        assert memory.recall(unusual, 1)[0].id == "key"


# Moved, and used


def test_records_move_between_stores(place: str, tmp_path: Path):
    with TextMemory(tmp_path / "m.db", config=HASHING) as old, TextMemory(place) as new:
        old.persistent_texts = ["Be brief."]
        say(old)
        with (tmp_path / "out.jsonl").open("w", encoding="utf-8") as file:
            export_records(old, file)
        lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")
    with TextMemory(tmp_path / "m.db") as old, TextMemory(new_place(), config=HASHING) as new:
        assert import_records(new, lines) == len(SAID)
        assert new.records() == old.records() and new.persistent_texts == ["Be brief."]


def test_the_commands(place: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("TITANS_STORE", place)
    hashing = ["--encoder", "hashing:64"]
    assert titans(["remember", "My dog is called Rex.", *hashing]) == 0
    assert titans(["recall", "dog"]) == 0
    assert "Rex" in capsys.readouterr().out
    out = tmp_path / "out.jsonl"
    assert titans(["export", str(out)]) == 0 and "Rex" in out.read_text()
    assert titans(["memory", "stats", "--scopes"]) == titans(["memory", "check"]) == 0
    assert titans(["forget", "--all"]) == 0
    assert titans(["memory", "repair"]) == 1
    assert "restore a backup" in capsys.readouterr().err
    assert titans(["keys", "list"]) == 0
