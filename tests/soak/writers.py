"""Several processes on one store: writers, readers, and all of them when the store is made."""

import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from soak.driver import count, suite, wait
from soak.kills import CONFIG, OTHERS, assert_sound, filled, new_store, told
from soak.victims import Acknowledge, kill_while
from titans.recall import TextMemory, checks
from titans.recall.upkeep import find_damage

EACH = 6
"""Records that each writer writes."""


def in_child(work: Callable[[], None]) -> int:
    """Start work in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        work()
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        code = 1
    os._exit(code)


def read(path: Path, seconds: float) -> None:
    """A reader: whole records only, bob's as they were, ann's never fewer."""
    end, before = time.monotonic() + seconds, 0
    with TextMemory(path, "ann", CONFIG) as ann, TextMemory(path, "bob", CONFIG) as bob:
        while time.monotonic() < end:
            found = ann.records()
            assert len(found) >= before and all(r.text == told(int(r.id)) for r in found)
            before = len(found)
            assert ann.recall("story1", 2) and [r.text for r in bob.records()] == OTHERS


@suite("write.many", prepare=lambda: filled(5))
def many(work: Path, rng: random.Random) -> str:
    """Two or four writers, one of them killed, and readers: every record acknowledged is there."""
    path, number = new_store(work, 5), rng.choice((2, 4))

    def write(begin: int, acknowledge: Acknowledge) -> None:
        with TextMemory(path, "ann", CONFIG) as ann:
            for place in range(begin, begin + EACH):
                ann.remember(told(place), id=str(place), speaker="ann")
                acknowledge(str(place))

    readers = [in_child(lambda: read(path, 0.5)) for _ in range(rng.choice((1, 2)))]
    others = [
        in_child(lambda begin=100 * n: write(begin, lambda _: None)) for n in range(1, number)
    ]
    said = kill_while(lambda acknowledge: write(900, acknowledge), rng, seconds=0.4, calls=300)
    assert all(wait(pid, 60) == 0 for pid in (*others, *readers)), "a writer or reader failed"
    found = assert_sound(path)
    wanted = {*said, *(str(100 * n + i) for n in range(1, number) for i in range(EACH))}
    assert wanted <= set(found), "an acknowledged record is lost"
    assert all(text == told(int(name)) for name, text in found.items())
    count("writers", number)
    return f"{number} writers"


@suite("write.create")
def create(work: Path, rng: random.Random) -> str:
    """Several processes make one store at the same moment: all of them open it."""
    path, number = work / "new" / "m.db", rng.choice((2, 3, 5))
    begin = time.monotonic() + 0.05

    def write(name: str) -> None:
        time.sleep(max(0.0, begin - time.monotonic()))
        with TextMemory(path, name, CONFIG) as one:
            one.remember(f"{name} was here")

    pids = [in_child(lambda n=n: write(f"scope{n}")) for n in range(number)]
    assert all(wait(pid, 60) == 0 for pid in pids), "a process could not open the new store"
    for n in range(number):
        with TextMemory(path, f"scope{n}", CONFIG) as one:
            assert [r.text for r in one.records()] == [f"scope{n} was here"]
    count("writers", number)
    return f"{number} processes"


@suite("write.clock", prepare=lambda: filled(5))
def clock(work: Path, rng: random.Random) -> str:
    """The clock jumps by years while records are written: their order is that of writing."""
    path = new_store(work, 0)

    class Clock(datetime):
        """Years off, another way at each look."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            years = timedelta(days=365.25 * rng.uniform(-1900, 7900))
            return datetime.now(UTC) + years

    real, checks.datetime = checks.datetime, Clock
    try:
        with TextMemory(path, "ann", CONFIG) as ann, TextMemory(path, "ann", CONFIG) as second:
            for place in range(12):
                record = rng.choice((ann, second)).remember(told(place), id=str(place))
                assert ann.get(str(place)) == second.get(str(place)) is not None
                if rng.random() < 0.3:
                    when = record.time
                    later = {r.id for r in ann.records(after=when)}
                    earlier = {r.id for r in second.records(before=when)}
                    assert not later & earlier and len(later | earlier) == place + 1
            assert [r.id for r in second.records()] == [str(place) for place in range(12)]
            ann.forget("5")
            assert not list(find_damage(second))
    finally:
        checks.datetime = real
    found = assert_sound(path)
    assert len(found) == 11
    count("jumps", 12)
    return "in order"
