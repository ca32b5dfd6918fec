"""Signals at any moment of a command: it ends as it should, and what it said is true."""

import io
import os
import random
import signal
import sys
import time
from pathlib import Path

from soak.driver import count, suite, wait
from soak.kills import CONFIG, assert_sound, filled, new_store, told
from soak.writers import in_child
from titans.cli.main import main
from titans.recall import TextMemory


def options(path: Path) -> list[str]:
    """Which store, scope and encoder."""
    return ["--store", str(path), "--scope", "ann", "--encoder", "hashing:16"]


@suite("signal.stop", prepare=lambda: filled(5))
def stop(work: Path, rng: random.Random) -> str:
    """Ctrl-C or a termination during a command: no traceback, and a store that is sound."""
    path, source, said = new_store(work, 5), work / "in.jsonl", work / "said"
    source.write_text("".join(f'{{"text": "{told(n)}"}}\n' for n in range(5, 25)))
    words = rng.choice(
        [
            ["import", str(source)],
            ["forget", "3"],
            ["recall", "story3", "--json"],
            ["memory", "check"],
            ["memory", "repair"],
            ["export", str(work / "out.jsonl")],
        ]
    )
    sent = rng.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    delay = rng.random() * 0.4

    def run() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with said.open("w") as stream:
            sys.stdout = sys.stderr = stream
            try:
                code = main([*words, *options(path)])
            except KeyboardInterrupt:
                code = 130  # it came before the command began or after it ended
        os._exit(code)

    pid = in_child(run)
    time.sleep(delay)
    os.kill(pid, sent)
    status = wait(pid, 60)
    count("signals")
    text = said.read_text() if said.exists() else ""
    assert status is not None and "Traceback" not in text and "unexpected" not in text, text
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) in (0, 130), text
        end = "done" if not os.WEXITSTATUS(status) else "stopped"
    else:
        assert os.WTERMSIG(status) == sent != signal.SIGINT
        end = "ended by the signal"
    found = assert_sound(path)
    assert all(text in map(told, range(25)) for text in found.values()), "half a record"
    assert set(found) >= {"0", "1", "2", "4"}
    return end


@suite("signal.pause", prepare=lambda: filled(5))
def pause(work: Path, rng: random.Random) -> str:
    """A writer is halted again and again: others wait for it, and no record is lost."""
    path = new_store(work, 5)

    def write() -> None:
        with TextMemory(path, "ann", CONFIG) as ann:
            for number in range(5, 20):
                ann.remember(told(number), id=str(number), speaker="ann")

    pid = in_child(write)
    for number in range(100, 106):
        time.sleep(rng.random() * 0.05)
        os.kill(pid, signal.SIGSTOP)
        other = in_child(lambda number=number: _one(path, number))
        time.sleep(rng.random() * 0.05)
        os.kill(pid, signal.SIGCONT)
        assert wait(other, 60) == 0, "a writer did not wait for the one that was halted"
        count("signals", 2)
    assert wait(pid, 60) == 0
    assert set(assert_sound(path)) == {*map(str, range(20)), *map(str, range(100, 106))}
    return "all records"


def _one(path: Path, number: int) -> None:
    with TextMemory(path, "ann", CONFIG) as ann:
        ann.remember(told(number), id=str(number), speaker="ann")


@suite("signal.pipe", prepare=lambda: filled(12))
def pipe(work: Path, rng: random.Random) -> str:
    """The reader of the output goes away: the command ends without a word."""
    path = new_store(work, 12)
    words = rng.choice([["export", "-"], ["recall", "story", "-k", "9"], ["memory", "stats"]])
    reading, writing = os.pipe()
    os.close(reading)

    def run() -> None:
        sys.stdout, sys.stderr = os.fdopen(writing, "w"), (errors := io.StringIO())
        code = main([*words, *options(path)])
        os._exit(7 if errors.getvalue() else code)

    pid = in_child(run)
    os.close(writing)
    status = wait(pid, 60)
    assert status is not None and os.WIFEXITED(status), status
    assert os.WEXITSTATUS(status) == 0, os.WEXITSTATUS(status)
    count("signals")
    return "silent"
