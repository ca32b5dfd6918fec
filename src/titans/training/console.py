"""What a person sees and does while a model trains: progress on stderr, Ctrl-C to stop.

A terminal has a live line, anything else a plain line per log line; both fit into 80 columns, as
long as steps have at most six digits. stdout belongs to results.
"""

import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType

from tqdm import tqdm

_SHOWN = (
    ("loss", "loss {:.3f}"),
    ("bits_per_byte", "{:.3f} bits/byte"),
    ("accuracy", "accuracy {:.1%}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
)
"""Parts of a line. The memory's gates and the rest are in the log and on TensorBoard."""


class Console:
    """Shows progress in one process; a silent one in the others."""

    def __init__(self, *, total: int, start: int, is_main: bool) -> None:
        self._is_main = is_main
        self._total, self._start = total, start
        self._began = time.perf_counter()
        self._bar: tqdm | None = None
        if is_main and sys.stderr.isatty():
            self._bar = tqdm(
                total=total,
                initial=start,
                # The bar takes what the line leaves.
                bar_format="{n_fmt}/{total_fmt}  {desc}{remaining} left {bar}",
                dynamic_ncols=True,
                leave=False,
                file=sys.stderr,
            )

    def advance(self, step: int) -> None:
        """One more step is done."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def show(self, step: int, values: Mapping[str, object]) -> None:
        """The newest line of the log."""
        text = "".join(
            form.format(value) + "  "
            for name, form in _SHOWN
            if isinstance(value := values.get(name), (int, float))
        )
        if self._bar is not None:
            self._bar.set_description_str(text)
        else:
            pace = (time.perf_counter() - self._began) / max(1, step - self._start)
            left = tqdm.format_interval(max(0.0, pace * (self._total - step)))
            self.say(f"{step}/{self._total}  {text}{left} left")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._is_main:
            tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the terminal in order."""
        if self._bar is not None:
            self._bar.close()


class StopOnSignal:
    """While in use: the first Ctrl-C or SIGTERM calls `ask`, the second stops at once."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask, self._asked = ask, False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopOnSignal":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:
                # Only the main thread may; a run in another one cannot be interrupted this way.
                return self
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._ask()
