"""Ctrl-C and SIGTERM ask a run to stop; a second one stops it at once."""

import signal
from collections.abc import Callable
from types import FrameType


class StopOnSignal:
    """While in use: the first signal calls `ask`, the second raises `KeyboardInterrupt`."""

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
