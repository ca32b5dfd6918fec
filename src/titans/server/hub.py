"""Open scopes: each a text memory with a thread of its own and a queue of limited length.

Calls of one scope run in their order, those of different scopes side by side. Calls that only read
may go to a second memory of the scope if the first is busy. Nothing here blocks the event loop.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from titans.recall import AsyncTextMemory, Encoder, RecallConfig, TextMemory
from titans.server.refusal import Refusal

P = ParamSpec("P")
R = TypeVar("R")
SEATS = 2
"""Memories of one scope at once: further ones cost memory, and Python runs one at a time anyway."""
SLICE_SECONDS = 0.1
"""How long a piece of a long call keeps the others of its scope waiting, about."""


class _Seat:
    """A memory of a scope that is open or about to be, and the calls that wait for it or run."""

    def __init__(self, opening: "asyncio.Task[AsyncTextMemory]") -> None:
        self.opening = opening
        self.pending = 0


class _Scope:
    """A scope: the memory that does everything, and one for reading once both had work."""

    def __init__(self, first: _Seat) -> None:
        self.seats = [first]

    @property
    def pending(self) -> int:
        """Calls that wait or run."""
        return sum(seat.pending for seat in self.seats)


class Hub:
    """The scopes of one store.

    Args:
        place: the store, as `TextMemory` takes it.
        queue: calls that may wait for one scope.
        open_scopes: scopes that stay open.
    """

    def __init__(
        self,
        place: str | Path,
        config: RecallConfig | None,
        encoder: Encoder,
        *,
        queue: int,
        open_scopes: int,
    ) -> None:
        self.place, self.config, self.encoder = place, config, encoder
        self._queue, self._open_scopes = queue, open_scopes
        self._scopes: OrderedDict[str, _Scope] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        """Calls that wait or run."""
        return sum(scope.pending for scope in self._scopes.values())

    @property
    def num_open(self) -> int:
        """Scopes that are open."""
        return len(self._scopes)

    async def run(
        self,
        scope: str,
        function: Callable[Concatenate[TextMemory, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a function of a scope's memory in its thread.

        A caller that goes away gives up the result; the call is finished.
        """
        seat = self._enter(scope).seats[0]
        return await self._call(scope, seat, lambda memory: function(memory, *args, **kwargs))

    async def read(self, scope: str, function: Callable[[TextMemory], R]) -> R:
        """The same for a function that changes nothing: it does not wait for long calls.

        It sees everything that was acknowledged before.
        """
        entry = self._enter(scope)
        if entry.pending and len(entry.seats) < SEATS:
            entry.seats.append(self._open(scope))
        seat = min(entry.seats, key=lambda seat: seat.pending)
        return await self._call(scope, seat, function)

    async def run_in_slices(
        self, scope: str, steps: Callable[[TextMemory], Generator[object, None, R]]
    ) -> R:
        """Run a long call step by step; other calls of the scope come in between.

        A caller that goes away ends it after a step.
        """
        work: list[Generator[object, None, R]] = []

        def advance(memory: TextMemory) -> tuple[bool, R | None]:
            if not work:
                work.append(steps(memory))
            end = time.monotonic() + SLICE_SECONDS
            while time.monotonic() < end:
                try:
                    next(work[0])
                except StopIteration as stop:
                    return True, stop.value
            return False, None

        while True:
            is_done, result = await self.run(scope, advance)
            if is_done:
                return result  # type: ignore[return-value]

    async def _call(self, scope: str, seat: _Seat, function: Callable[[TextMemory], R]) -> R:
        async def finish() -> R:
            try:
                try:
                    memory = await asyncio.shield(seat.opening)
                except BaseException:
                    entry = self._scopes.get(scope)
                    if entry is not None and seat in entry.seats:
                        self._close_later(self._scopes.pop(scope))
                    raise
                return await memory.run(function)
            finally:
                seat.pending -= 1

        seat.pending += 1
        return await asyncio.shield(asyncio.ensure_future(finish()))

    def _open(self, scope: str) -> _Seat:
        opening = AsyncTextMemory.open(self.place, scope, self.config, encoder=self.encoder)
        return _Seat(asyncio.ensure_future(opening))

    def _enter(self, scope: str) -> _Scope:
        """A scope whose queue has room, opened if need be."""
        entry = self._scopes.get(scope)
        if entry is not None and entry.pending >= self._queue:
            raise Refusal(
                503,
                "scope_busy",
                f"{entry.pending} calls wait for this scope: try again in a second",
                retry_after=1,
            )
        if entry is None:
            self._make_room()
            entry = self._scopes[scope] = _Scope(self._open(scope))
        self._scopes.move_to_end(scope)
        return entry

    def _make_room(self) -> None:
        """Close the idle scope that was not used longest, if too many are open."""
        if len(self._scopes) < self._open_scopes:
            return
        idle = next((name for name, entry in self._scopes.items() if not entry.pending), None)
        if idle is None:
            raise Refusal(
                503,
                "server_busy",
                f"{len(self._scopes)} scopes are in use at once: try again in a second",
                retry_after=1,
            )
        self._close_later(self._scopes.pop(idle))

    def _close_later(self, entry: _Scope) -> None:
        async def finish(seat: _Seat) -> None:
            with suppress(Exception):  # whoever called it has been told
                await (await seat.opening).close()

        for seat in entry.seats:
            task = asyncio.ensure_future(finish(seat))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Let go of all scopes when the calls under way are done."""
        while self._scopes:
            self._close_later(self._scopes.popitem()[1])
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)
