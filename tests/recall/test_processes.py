"""Several processes, killed processes: nothing acknowledged is lost, all see one memory."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recall.conftest import HASHING
from titans.recall import TextMemory

WRITER = """
import sys
from titans.recall import TextMemory
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
memory = TextMemory(path)
for i in range(count):
    memory.remember(f"{name} tells tale{i} of {name}{i % 7}", id=f"{name}-{i}")
    print(f"{name}-{i}", flush=True)
"""

DIGEST = """
import hashlib, sys
from titans.recall import TextMemory
memory = TextMemory(sys.argv[1])
memory.remember("one more thing about tales", id="next", time="2024-01-01")
state = memory._replica.state
print(hashlib.sha256(state.weights.tobytes()).hexdigest())
print(repr([(r.id, r.score) for r in memory.recall("tale of ann", 5)]))
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    )


def write_with_two_processes(path: Path, count: int) -> None:
    with TextMemory(path, config=HASHING):
        pass
    writers = [start(WRITER, str(path), name, str(count)) for name in ("ann", "bob")]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    with TextMemory(path) as memory:
        ids = {r.id for r in memory.records()}
        assert ids == {f"{name}-{i}" for name in ("ann", "bob") for i in range(count)}
        # What both wrote in turns equals replaying the common log from nothing.
        state = memory.neural.initial_state()
        memory._replica.refresh()
        for _, data in memory.store.neural_writes(memory._replica.scope_id, 0, 10**9):
            state = memory.neural.absorb(state, memory._replica._write_from(data))
        assert (memory._replica.state.weights == state.weights).all()
        written = [r for r in memory.records() if r.written]
        assert len(written) == memory.stats()["neural_writes"]


def test_two_processes_write_one_store(tmp_path: Path):
    write_with_two_processes(tmp_path / "m.db", 60)


@pytest.mark.slow
def test_two_processes_write_two_thousand_records_each(tmp_path: Path):
    write_with_two_processes(tmp_path / "m.db", 2000)


def fork_writer(path: Path, name: str) -> tuple[int, int]:
    """A child that writes for ever and acknowledges each record on a pipe: (pid, reading end)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    memory = TextMemory(path)
    for i in range(10**6):
        memory.remember(f"{name} tells tale{i} of {name}{i % 7}", id=f"{name}-{i}")
        os.write(writing, f"{name}-{i}\n".encode())
    os._exit(0)


def kill_writers(path: Path, times: int) -> None:
    with TextMemory(path, config=HASHING):
        pass
    acknowledged: set[str] = set()
    rng = random.Random(0)
    for number in range(times):
        pid, reading = fork_writer(path, f"w{number}")
        with open(reading, encoding="utf-8") as pipe:
            # Some while the store is opened, most at a random moment of the writing.
            lines = [pipe.readline()] if rng.random() < 0.9 else []
            time.sleep(rng.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
            acknowledged.update(line.strip() for line in [*lines, *pipe] if line.endswith("\n"))
        os.waitpid(pid, 0)
    assert len(acknowledged) >= times // 2
    with TextMemory(path) as memory:
        assert acknowledged <= {r.id for r in memory.records()}
        assert memory.store.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert len(memory.recall("tale", 5)) == 5
        assert memory.remember("still alive").is_new


def test_killed_writers_lose_nothing(tmp_path: Path):
    kill_writers(tmp_path / "m.db", 10)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_hundred_killed_writers_lose_nothing(tmp_path: Path):
    kill_writers(tmp_path / "m.db", 200)


def test_another_process_continues_identically(tmp_path: Path):
    """A store reopened elsewhere goes on bit for bit as if it had never been closed."""
    for name in ("kept.db", "reopened.db"):
        with TextMemory(tmp_path / name, config=HASHING) as memory:
            for i in range(25):
                memory.remember(f"ann tells tale{i}", id=str(i), time="2024-01-01")
            if name == "kept.db":
                memory.remember("one more thing about tales", id="next", time="2024-01-01")
                weights = memory._replica.state.weights.tobytes()
                expected = [
                    hashlib.sha256(weights).hexdigest(),
                    repr([(r.id, r.score) for r in memory.recall("tale of ann", 5)]),
                ]
    other = start(DIGEST, str(tmp_path / "reopened.db"))
    assert other.communicate()[0].split("\n")[:2] == expected
