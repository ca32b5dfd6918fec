"""Processes that are killed while they work, and what they had acknowledged by then."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from soak.driver import count, wait

Acknowledge = Callable[[str], None]
Work = Callable[[Acknowledge], None]

DISK_CALLS = frozenset(
    """chmod chown close commit execute executemany flush fsync ftruncate link mkdir open remove
    rename replace rmdir save_file serialize_file symlink truncate unlink write""".split()
)
"""Functions by which a program changes files (in C) or a database (psycopg's), by their names."""


def kill_while(
    work: Work,
    rng: random.Random,
    *,
    seconds: float,
    calls: int,
    begin: Callable[[], None] | None = None,
) -> list[str]:
    """Run `work` in a child and kill it at a moment of chance; returns what it acknowledged.

    Every other time it is killed before or after one of its calls to the disk, which chance alone
    hits too seldom; else anywhere, the middle of a call included.

    Args:
        seconds: how long the work takes, about.
        calls: how many calls to the disk it makes, about.
        begin: returns when the work of a server's threads begins, and their time.
    """
    reading, writing = os.pipe()
    by_call = rng.random() < 0.5
    number, after = rng.randrange(1, max(calls, 2)), rng.random() < 0.5
    delay = rng.random() * seconds
    pid = os.fork()
    if not pid:
        os.close(reading)
        _work(work, writing, number if by_call else None, after, is_server=begin is not None)
    os.close(writing)
    if not by_call:
        if begin is not None:
            begin()
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    with open(reading, encoding="utf-8") as pipe:
        lines = [line for line in pipe if line.endswith("\n")]
    status = wait(pid, 60)
    assert status is not None, "the victim hangs"
    count("kills", int(os.WIFSIGNALED(status)))
    assert not os.WIFEXITED(status) or not os.WEXITSTATUS(status), f"the victim failed: {lines}"
    return [line.rstrip("\n") for line in lines]


def _work(work: Work, pipe: int, number: int | None, after: bool, *, is_server: bool) -> None:
    """The child: do the work, to its end or to the call at which it dies."""
    left = number or 0

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        kind = "return" if after else "call"
        if event == f"c_{kind}":
            left -= getattr(argument, "__name__", "") in DISK_CALLS
        elif event == kind and "psycopg" in frame.f_code.co_filename:
            left -= frame.f_code.co_name in DISK_CALLS
        else:
            return
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 0
    try:
        if number is not None:
            (threading if is_server else sys).setprofile(watch)
        work(lambda line: acknowledge(pipe, line))
    except BaseException as error:
        sys.setprofile(None)
        acknowledge(pipe, repr(error))
        code = 1
    os._exit(code)


def acknowledge(pipe: int, line: str) -> None:
    """Tell the parent, past all buffers."""
    os.write(pipe, f"{line}\n".encode())
