"""Suites of trials: how they are declared, run one by one, and counted."""

import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

SUITES = ("kills", "serving", "training", "writers", "damage", "disks", "signals", "noise")
"""The modules that declare them."""
Trial = Callable[[Path, random.Random], str]
SECONDS = 120.0
"""A trial that takes longer hangs."""

# The progress bars of libraries share a lock with all forked processes; a victim that is killed
# while it holds the lock would halt every trial after it.
tqdm.set_lock(threading.RLock())


@dataclass(frozen=True)
class Suite:
    """A kind of trial."""

    name: str
    trial: Trial
    about: str
    prepare: Callable[[], object]
    """What all trials share, made once before they fork."""


@dataclass
class Tally:
    """What came out of the trials of a suite."""

    ends: Counter[str] = field(default_factory=Counter)
    """How a trial ended -> how often."""
    failures: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """What the trials did (`count`) -> how often."""
    seconds: float = 0.0

    def fail(self, failure: str) -> None:
        """Note a failure and show it: a long run is looked at before its end."""
        self.failures.append(failure)
        print(f"FAILED {failure}", file=sys.stderr, flush=True)

    @property
    def trials(self) -> int:
        """How many there were."""
        return self.ends.total() + len(self.failures)


_FOUND: dict[str, Suite] = {}
_DONE: Counter[str] = Counter()


def count(what: str, times: int = 1) -> None:
    """Note in a trial what it has done: "kills", "flips", "calls"."""
    _DONE[what] += times


def suite(name: str, prepare: Callable[[], object] = int) -> Callable[[Trial], Trial]:
    """Declare a trial under a name of the form "kind.subject"."""

    def declare(trial: Trial) -> Trial:
        about = (trial.__doc__ or "").strip().splitlines()[0]
        _FOUND[name] = Suite(name, trial, about, prepare)
        return trial

    return declare


def suites(prefixes: Sequence[str] = ()) -> list[Suite]:
    """All suites, or those whose names begin with one of the prefixes."""
    for module in SUITES:
        importlib.import_module(f"soak.{module}")
    chosen = [s for s in _FOUND.values() if not prefixes or s.name.startswith(tuple(prefixes))]
    if not chosen:
        raise SystemExit(f"no suite begins with {prefixes}; there are: {', '.join(_FOUND)}")
    return chosen


def run_trial(chosen: Suite, seed: int, number: int, tally: Tally) -> None:
    """Run one trial in a forked process and count how it ended."""
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        chosen.prepare()
        pid = os.fork()
        if not pid:
            _child(chosen, f"{seed}/{chosen.name}/{number}", folder)
        status = wait(pid, SECONDS)
        again = f"{chosen.name} --seed {seed} --first {number} --trials 1"
        said = _read(folder / "end")
        tally.done.update(json.loads(_read(folder / "done") or "{}"))
        if status is None:
            tally.fail(f"{again}: no end after {SECONDS:.0f} s")
        elif os.WIFSIGNALED(status):
            tally.fail(f"{again}: died of signal {os.WTERMSIG(status)}")
        elif os.WEXITSTATUS(status):
            tally.fail(f"{again}: {said}")
        else:
            tally.ends[said] += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        tally.seconds += time.monotonic() - begin


def _child(chosen: Suite, seed: str, folder: Path) -> None:
    """A trial from its beginning to the end of the process."""
    work = folder / "work"
    work.mkdir()
    code = 0
    try:
        # What a trial prints is looked at by itself; the rest would only be in the way.
        with open(folder / "noise", "w") as noise:
            for stream in (1, 2):
                os.dup2(noise.fileno(), stream)
        said = chosen.trial(work, random.Random(seed))
    except BaseException as error:
        code, said = 1, f"{error}\n{traceback.format_exc()}"
    (folder / "end").write_text(said, errors="replace")
    (folder / "done").write_text(json.dumps(_DONE))
    os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """The status of a child; None if it had to be killed for taking too long."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def show(chosen: Suite, tally: Tally) -> None:
    """A line for the suite."""
    ends = ", ".join(f"{number} {end}" for end, number in tally.ends.most_common())
    done = ", ".join(f"{number} {what}" for what, number in sorted(tally.done.items()))
    print(
        f"{chosen.name:<18} {tally.trials:6d} trials {len(tally.failures):4d} failed "
        f"{tally.seconds:6.0f} s   {done} ({ends})",
        flush=True,
    )
