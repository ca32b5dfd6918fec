"""What a person sees while a model trains: a live line on a terminal, plain lines elsewhere.

Everything goes to stderr; stdout belongs to results.
"""

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_SHOWN = (
    ("loss", "loss {:.3f}"),
    ("bits_per_byte", "{:.3f} bits/byte"),
    ("accuracy", "accuracy {:.1%}"),
    ("tokens_per_second", "{:.0f} tok/s"),
    ("surprise", "surprise {:.3g}"),
    ("forget_gate", "alpha {:.3g}"),
    ("momentum_decay", "eta {:.3g}"),
    ("step_size", "theta {:.3g}"),
    ("written_share", "written {:.0%}"),
    ("skipped_steps", "{:.0f} skipped"),
)


class Display:
    """Shows progress in one process; a silent one in the others."""

    def __init__(self, *, total: int, start: int, is_main: bool) -> None:
        self._is_main = is_main
        self._console = Console(stderr=True, quiet=not is_main)
        self._progress: Progress | None = None
        self._total, self._start = total, start
        self._began = time.perf_counter()
        if is_main and sys.stderr.isatty():
            self._progress = Progress(
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("eta"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task("starting", total=total, completed=start)
            self._progress.start()

    def advance(self, step: int) -> None:
        """One more step is done."""
        if self._progress is not None:
            self._progress.update(self._task, completed=step)

    def show(self, step: int, values: Mapping[str, object], steps_left: int) -> None:
        """The newest line of the log."""
        text = "  ".join(
            form.format(value)
            for name, form in _SHOWN
            if isinstance(value := values.get(name), (int, float)) and (value or name == "loss")
        )
        if self._progress is not None:
            self._progress.update(self._task, completed=step, description=text)
        else:
            now = time.perf_counter()
            pace = (now - self._began) / max(1, step - self._start)
            self.say(f"{step}/{self._total}  {text}  {_clock(pace * steps_left)} left")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._is_main:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal in order."""
        if self._progress is not None:
            self._progress.stop()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
