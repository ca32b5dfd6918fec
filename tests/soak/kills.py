"""Killed while writing: what was acknowledged is there, the rest is there whole or not at all."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from evaluation.subjects import CARD, Scripted, needle_in_text
from golden.files import DATA
from soak.driver import count, suite
from soak.victims import Acknowledge, kill_while
from support.postgres import new_place, server
from titans.evaluation.record import Record
from titans.evaluation.runner import run_task
from titans.files import writing
from titans.recall import RecallConfig, TextMemory, export_records, import_records
from titans.recall.store import SQLiteStore
from titans.recall.upkeep import find_damage, repair
from titans.tasks.niah import SNiah

CONFIG = RecallConfig(encoder="hashing:16", snapshot_every=7)
OTHERS = [f"bob tells tale{i} of day{i % 3}" for i in range(6)]


@cache
def filled(count: int) -> bytes:
    """A store in which bob has his records and ann as many as this."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.db"
        fill(path, count)
        return path.read_bytes()


def fill(place: str | Path, count: int) -> None:
    """Give bob his records and ann as many as this."""
    with TextMemory(place, "bob", CONFIG) as bob:
        for number, text in enumerate(OTHERS):
            bob.remember(text, id=str(number))
    with TextMemory(place, "ann", CONFIG) as ann:
        for number in range(count):
            ann.remember(told(number), id=str(number), speaker="ann")


def new_store(work: Path, count: int) -> Path:
    """Such a store in the folder of a trial."""
    path = work / "m.db"
    path.write_bytes(filled(count))
    return path


def told(number: int) -> str:
    """The text with a number."""
    return f"ann tells story{number} of town{number % 5}"


def assert_sound(path: str | Path) -> dict[str, str]:
    """Nothing in the store is damaged, bob has what he had; returns ann's texts by id."""
    with TextMemory(path, "ann", CONFIG) as ann, TextMemory(path, "bob", CONFIG) as bob:
        damage = list(find_damage(ann))
        assert not damage, damage
        assert [r.text for r in bob.records()] == OTHERS
        assert ann.remember("goes on after it all", id="next").is_new
        found = {r.id: r.text for r in ann.records()}
        assert found.pop("next") == "goes on after it all"
        for number, text in list(found.items())[:2]:
            first = ann.recall(text, 9)
            assert any(number in (r.id, *r.duplicates) for r in first), "not recalled"
    return found


@suite("kill.remember", prepare=lambda: filled(5))
def remember(work: Path, rng: random.Random) -> str:
    """A writer is killed: every record it acknowledged is there, and whole."""
    path = new_store(work, 5)

    def write(acknowledge: Acknowledge) -> None:
        with TextMemory(path, "ann", CONFIG) as memory:
            for number in range(5, 30):
                memory.remember(told(number), id=str(number), speaker="ann")
                acknowledge(str(number))

    said = kill_while(write, rng, seconds=0.4, calls=1150)
    found = assert_sound(path)
    assert set(said) <= set(found), "an acknowledged record is lost"
    assert all(found[i] == told(int(i)) for i in found) and len(found) - 5 - len(said) in (0, 1)
    return "no record" if not said else "some records" if len(said) < 25 else "all records"


@suite("kill.import", prepare=lambda: filled(5))
def load(work: Path, rng: random.Random) -> str:
    """An import is killed and started again: every line is there once."""
    path = new_store(work, 5)
    lines = [json.dumps({"text": told(n), "time": f"2024-01-{n:02}"}) for n in range(5, 30)]
    if rng.random() < 0.5:
        lines = [json.dumps({**json.loads(line), "id": line}) for line in lines]

    def write(acknowledge: Acknowledge) -> None:
        with TextMemory(path, "ann", CONFIG) as memory:
            import_records(memory, lines, progress=lambda n: acknowledge(str(n)))

    said = kill_while(write, rng, seconds=0.4, calls=1150)
    found = assert_sound(path)
    assert len(found) >= 5 + len(said)
    with TextMemory(path, "ann", CONFIG) as memory:
        import_records(memory, lines)
        texts = sorted(r.text for r in memory.records() if r.id != "next")
    assert texts == sorted(told(n) for n in range(30)), "not every line once"
    return "cut off" if len(found) < 30 else "whole"


@suite("kill.forget", prepare=lambda: filled(12))
def forget(work: Path, rng: random.Random) -> str:
    """Forgetting is killed: what was acknowledged leaves no trace in any file once opened again."""
    path = new_store(work, 12)
    order = rng.sample(range(12), 4)

    def write(acknowledge: Acknowledge) -> None:
        with TextMemory(path, "ann", CONFIG) as memory:
            for number in order:
                memory.forget(str(number))
                acknowledge(str(number))
            memory.forget(scope="ann")
            acknowledge("all")

    said = kill_while(write, rng, seconds=0.2, calls=275)
    found = assert_sound(path)
    if "all" in said or len(found) < 8:
        assert not found and len(said) >= 4, "a scope is half gone"
        gone = range(12)
    else:
        gone = [int(i) for i in said]
        kept = {str(n) for n in range(12)} - set(said)
        assert kept - {str(order[len(said)])} <= set(found) <= kept if len(said) < 4 else True
    content = b"".join(file.read_bytes() for file in work.iterdir())
    for number in gone:
        assert f"story{number} ".encode() not in content, "a forgotten text is still in a file"
    return f"{len(said)} acknowledged"


@suite("kill.postgres", prepare=server)
def postgres(work: Path, rng: random.Random) -> str:
    """A writer of PostgreSQL is killed: what it acknowledged is there, or forgotten, and whole."""
    place = new_place()
    fill(place, 5)

    def write(acknowledge: Acknowledge) -> None:
        with TextMemory(place, "ann", CONFIG) as memory:
            for number in range(5, 13):
                memory.remember(told(number), id=str(number), speaker="ann")
                acknowledge(str(number))
                memory.forget(str(number - 5))
                acknowledge(str(number - 5))

    said = kill_while(write, rng, seconds=0.6, calls=600)
    found = assert_sound(place)
    wanted = {str(number) for number in range(5)}
    steps = [str(number) for n in range(5, 13) for number in (n, n - 5)]
    assert said == steps[: len(said)]
    for step in said:
        wanted ^= {step}
    # The step under way is done or not.
    assert set(found) in (wanted, wanted ^ set(steps[len(said) : len(said) + 1]))
    assert all(found[i] == told(int(i)) for i in found)
    return f"{len(said)} acknowledged"


@suite("kill.migrate", prepare=lambda: migrated_count())
def migrate(work: Path, rng: random.Random) -> str:
    """Opening a store of the first release is killed: it is old or new, and opens."""
    path = work / "m.db"
    shutil.copy(DATA / "memory.db", path)

    def write(acknowledge: Acknowledge) -> None:
        SQLiteStore(path).close()
        acknowledge("open")

    said = kill_while(write, rng, seconds=0.05, calls=190)
    store = SQLiteStore(path)
    with store.reading():
        damage = list(store.damages())
        names = store.scopes()
        texts = [r.text for name in names for r in store.list_records(store.create_scope(name))]
    store.close()
    assert not damage and len(texts) == migrated_count(), damage
    return "finished" if said else "cut off"


@cache
def migrated_count() -> int:
    """How many records the store of the first release has."""
    with sqlite3.connect(f"file:{DATA / 'memory.db'}?mode=ro&immutable=1", uri=True) as db:
        return int(db.execute("SELECT count(*) FROM records").fetchone()[0])


@suite("kill.export", prepare=lambda: filled(20))
def export(work: Path, rng: random.Random) -> str:
    """An export is killed: the backup is the old one or the new one, whole."""
    path, backup = new_store(work, 20), work / "backup.jsonl"
    backup.write_text("the old backup\n")

    def write(acknowledge: Acknowledge) -> None:
        with TextMemory(path, "ann", CONFIG) as memory, writing(backup, [path]) as file:
            export_records(memory, file)
        acknowledge("done")

    said = kill_while(write, rng, seconds=0.05, calls=64)
    text = backup.read_text()
    if text == "the old backup\n":
        assert not said, "an acknowledged backup is not there"
        return "old"
    assert [json.loads(line)["text"] for line in text.splitlines()] == list(map(told, range(20)))
    return "new"


@suite("kill.repair", prepare=lambda: filled(12))
def repaired(work: Path, rng: random.Random) -> str:
    """A repair is killed: the store is the damaged one or the repaired one."""
    path = new_store(work, 12)
    with SQLiteStore(path).db as db:
        db.execute("UPDATE records SET text = 'ann tells lies' WHERE id = '3' AND speaker = 'ann'")
    db.close()

    def write(acknowledge: Acknowledge) -> None:
        repair(path, CONFIG)
        acknowledge("done")

    said = kill_while(write, rng, seconds=0.25, calls=620)
    with TextMemory(path, "ann", CONFIG) as memory:
        damage = list(find_damage(memory))
    assert not (said and damage), damage
    if damage:
        repair(path, CONFIG)
    assert sorted(assert_sound(path)) == sorted(str(n) for n in range(12) if n != 3)
    return "damaged" if damage else "repaired"


@suite("kill.save")
def save(work: Path, rng: random.Random) -> str:
    """Saving a state is killed: the file is the old one or the new one, and loads."""
    from titans import NeuralMemory, NeuralMemoryState

    torch.manual_seed(0)
    layer, path = NeuralMemory(8), work / "state.safetensors"
    old = layer(torch.randn(1, 5, 8))[1]
    new = layer(torch.randn(1, 9, 8), old)[1]
    old.save(path)

    def write(acknowledge: Acknowledge) -> None:
        new.save(path)
        acknowledge("done")

    said = kill_while(write, rng, seconds=0.02, calls=14)
    found = NeuralMemoryState.load(path).named_tensors()
    for name, state in (("new", new), ("old", old)):
        same = state.named_tensors()
        if all(found[key].equal(value) for key, value in same.items()):
            assert name == "new" or not said
            return name
    raise AssertionError("neither the old state nor the new one")


@suite("kill.eval")
def evaluate(work: Path, rng: random.Random) -> str:
    """A benchmark is killed and started again: the record is that of a run in one go."""
    path, haystack = work / "record.json", work / "haystack.txt"
    haystack.write_text("The wind and the rain met in a field by the gate of the road. " * 40)
    task = SNiah(lengths=(1024,), samples=40, haystack=haystack)

    def write(acknowledge: Acknowledge) -> None:
        run_task(task, Scripted(needle_in_text), CARD, path=path)
        acknowledge("done")

    said = kill_while(write, rng, seconds=0.15, calls=114)
    was_there = path.exists()
    assert was_there or not said
    scores = [
        run_task(task, Scripted(needle_in_text), CARD, path=place).scores
        for place in (path, work / "other.json")
    ]
    assert scores[0] == scores[1] == Record.load(path).scores
    return "whole" if was_there else "cut off"


@suite("kill.command", prepare=lambda: filled(5))
def command(work: Path, rng: random.Random) -> str:
    """The real command line is killed: what it printed is there."""
    path = new_store(work, 5)
    options = ["--store", str(path), "--scope", "ann", "--encoder", "hashing:16"]
    source = work / "in.jsonl"
    source.write_text("".join(json.dumps({"text": told(n)}) + "\n" for n in range(5, 25)))
    words = rng.choice(
        [
            ["remember", told(5), "--id", "5"],
            ["memory", "import", str(source)],
            ["memory", "forget", "--id", "3"],
            ["memory", "export", str(work / "out.jsonl")],
        ]
    )
    victim = subprocess.Popen(
        [sys.executable, "-m", "titans.cli.main", *words, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, error = victim.communicate(timeout=1 + 5 * rng.random())
        assert victim.returncode == 0, error
    except subprocess.TimeoutExpired:
        victim.kill()
        count("kills")
        said = victim.communicate()[0]
    found = assert_sound(path)
    action = words[1] if words[0] == "memory" else words[0]
    if said and action == "remember":
        assert found["5"] == told(5)
    if said and action == "forget":
        assert "3" not in found
    if said and action == "import":
        assert len(found) == 25
    if said and action == "export":
        assert len((work / "out.jsonl").read_text().splitlines()) == 5
    return f"{action} {'done' if said else 'killed'}"
