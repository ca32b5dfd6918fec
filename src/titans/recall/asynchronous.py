"""`AsyncTextMemory`: a `TextMemory` for programs with an event loop, which it never blocks.

    async with await AsyncTextMemory.open("memory.db", "ann") as memory:
        await memory.remember("My dog is called Rex.")
        await memory.recall("What is the dog called?")

Every call runs in one thread of its own, in the order of the calls.
"""

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from titans.recall.memory import TextMemory

P = ParamSpec("P")
R = TypeVar("R")


def _in_thread(
    method: Callable[Concatenate[TextMemory, P], R],
) -> Callable[Concatenate["AsyncTextMemory", P], Awaitable[R]]:
    """The same method of the text memory, awaited."""

    @functools.wraps(method)
    async def run(self: "AsyncTextMemory", *args: P.args, **kwargs: P.kwargs) -> R:
        # By its name: what was put around the method since (telemetry.py) is called, too.
        current: Callable[..., R] = getattr(TextMemory, method.__name__)
        return await self.run(current, *args, **kwargs)

    return run


class AsyncTextMemory:
    """A text memory whose methods are awaited.

    A call that is cancelled while it runs is finished in its thread; its result is dropped.
    """

    def __init__(self, memory: TextMemory, thread: ThreadPoolExecutor) -> None:
        self.memory, self._thread = memory, thread

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> "AsyncTextMemory":
        """Open a `TextMemory`; the arguments are those of the class."""
        thread = ThreadPoolExecutor(1, "titans-memory")
        loop = asyncio.get_running_loop()
        try:
            opening = functools.partial(TextMemory, *args, **kwargs)
            return cls(await loop.run_in_executor(thread, opening), thread)
        except BaseException:
            thread.shutdown(wait=False)
            raise

    async def run(
        self,
        function: Callable[Concatenate[TextMemory, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a function of the text memory and other arguments in the memory's thread."""
        call = functools.partial(function, self.memory, *args, **kwargs)
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._thread, context.run, call)

    remember = _in_thread(TextMemory.remember)
    remember_many = _in_thread(TextMemory.remember_many)
    recall = _in_thread(TextMemory.recall)
    turn = _in_thread(TextMemory.turn)
    attend = _in_thread(TextMemory.attend)
    forget = _in_thread(TextMemory.forget)
    expire = _in_thread(TextMemory.expire)
    mark = _in_thread(TextMemory.mark)
    get = _in_thread(TextMemory.get)
    records = _in_thread(TextMemory.records)
    history = _in_thread(TextMemory.history)
    summary = _in_thread(TextMemory.summary)
    stats = _in_thread(TextMemory.stats)

    async def close(self) -> None:
        """Let go of the store when the calls under way are done."""
        await self.run(TextMemory.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> "AsyncTextMemory":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
