"""Several processes, killed processes: nothing acknowledged is lost, all see one memory."""

import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from recall.conftest import HASHING
from titans.recall import TextMemory
from titans.recall.upkeep import find_damage

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


def digest(memory: TextMemory) -> str:
    """The neural state of a memory after the newest record."""
    with memory.store.reading(memory.scope):
        memory._replica.refresh()
        return hashlib.sha256(memory._replica.state.weights.tobytes()).hexdigest()


def write(place: str, name: str, count: int, turns: Barrier, digests: "Queue[str]") -> None:
    with TextMemory(place) as memory:
        for i in range(count):
            memory.remember(f"{name} tells tale{i} of {name}{i % 7}", id=f"{name}-{i}")
        turns.wait(500)
        digests.put(digest(memory))


def write_with_processes(place: str, names: str, count: int) -> None:
    with TextMemory(place, config=HASHING):
        pass
    fork = multiprocessing.get_context("fork")
    turns, digests = fork.Barrier(len(names)), fork.Queue()
    writers = [fork.Process(target=write, args=(place, n, count, turns, digests)) for n in names]
    for writer in writers:
        writer.start()
    states = {digests.get(timeout=500) for _ in names}
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    with TextMemory(place) as memory:
        ids = {r.id for r in memory.records()}
        assert ids == {f"{name}-{i}" for name in names for i in range(count)}
        # What they wrote in turns equals replaying the common log from nothing, in each of them.
        state = memory.neural.initial_state()
        with memory.store.reading():
            memory._replica.refresh()
            for _, data in memory.store.neural_writes(memory._replica.scope_id, 0, 10**9):
                state = memory.neural.absorb(state, memory._replica._write_from(data))
        assert states == {digest(memory)} == {hashlib.sha256(state.weights.tobytes()).hexdigest()}
        written = [r for r in memory.records() if r.written]
        assert len(written) == memory.stats()["neural_writes"]


def test_four_processes_write_one_scope(place: str):
    write_with_processes(place, "abcd", 20)


@pytest.mark.slow
def test_two_processes_write_two_thousand_records_each(place: str):
    write_with_processes(place, "ab", 2000)


def fork_writer(place: str, name: str) -> tuple[int, int]:
    """A child that writes for ever and acknowledges each record on a pipe: (pid, reading end)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    memory = TextMemory(place)
    for i in range(10**6):
        memory.remember(f"{name} tells tale{i} of {name}{i % 7}", id=f"{name}-{i}")
        os.write(writing, f"{name}-{i}\n".encode())
    os._exit(0)


def kill_writers(place: str, times: int) -> None:
    with TextMemory(place, config=HASHING):
        pass
    acknowledged: set[str] = set()
    rng = random.Random(0)
    for number in range(times):
        pid, reading = fork_writer(place, f"w{number}")
        with open(reading, encoding="utf-8") as pipe:
            # Some while the store is opened, most at a random moment of the writing.
            lines = [pipe.readline()] if rng.random() < 0.9 else []
            time.sleep(rng.random() * 0.05)
            os.kill(pid, signal.SIGKILL)
            acknowledged.update(line.strip() for line in [*lines, *pipe] if line.endswith("\n"))
        os.waitpid(pid, 0)
    assert len(acknowledged) >= times // 2
    with TextMemory(place) as memory:
        assert acknowledged <= {r.id for r in memory.records()}
        assert not list(find_damage(memory))
        assert len(memory.recall("tale", 5)) == 5
        assert memory.remember("still alive").is_new


def test_killed_writers_lose_nothing(place: str):
    kill_writers(place, 10)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_hundred_killed_writers_lose_nothing(place: str):
    kill_writers(place, 200)


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
