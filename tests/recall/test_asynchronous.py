"""The text memory beside an event loop."""

import asyncio
import time
from pathlib import Path

import pytest

from recall.conftest import HASHING
from titans.errors import StoreError
from titans.recall import AsyncTextMemory, ScriptedGenerator, TextMemory
from titans.recall.reader import ScopeReader


def test_it_does_what_the_text_memory_does(tmp_path: Path):
    async def use() -> None:
        async with await AsyncTextMemory.open(tmp_path / "m.db", "ann", HASHING) as memory:
            record = await memory.remember("My dog is called Rex.", speaker="Ann")
            assert (await memory.get(record.id)) == (await memory.records())[0]
            found = await memory.recall("dog", 1)
            assert found[0].id == record.id
            turn = await memory.turn("Hello", ScriptedGenerator(["Hi."]))
            assert turn.answer == "Hi."
            assert (await memory.stats())["records"] == 3
            assert (await memory.forget(record.id)).records == 1
            many = await memory.remember_many([{"text": "a"}, {"text": "b"}])
            assert [r.text for r in many] == ["a", "b"]

    asyncio.run(use())


def test_it_has_every_method_of_the_text_memory():
    named = {name for name in vars(TextMemory) | vars(ScopeReader) if not name.startswith("_")}
    methods = {name for name in named if callable(getattr(TextMemory, name))}
    assert {"recall", "attend", "records"} <= methods
    # Research looks at all features of a search; it has no event loop.
    assert methods - {"search"} <= set(dir(AsyncTextMemory))


def test_the_loop_goes_on_while_the_memory_works(tmp_path: Path):
    def slow(memory: TextMemory, seconds: float) -> str:
        time.sleep(seconds)
        return memory.scope

    async def use() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        async with await AsyncTextMemory.open(tmp_path / "m.db", "ann", HASHING) as memory:
            ticking = asyncio.create_task(tick())
            first = asyncio.create_task(memory.run(slow, 0.3))
            second = asyncio.create_task(memory.remember("after it"))
            assert await first == "ann"
            assert not second.done()  # one call at a time
            assert (await second).text == "after it"
            ticking.cancel()
        assert ticks > 10

    asyncio.run(use())


def test_a_cancelled_write_is_whole(tmp_path: Path):
    async def use() -> None:
        async with await AsyncTextMemory.open(tmp_path / "m.db", "ann", HASHING) as memory:
            await memory.remember("one")
            task = asyncio.create_task(memory.remember("two"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [r.text for r in await memory.records()] in (["one"], ["one", "two"])

    asyncio.run(use())


def test_what_cannot_be_opened_says_so(tmp_path: Path):
    (tmp_path / "m.db").write_text("no store at all, but long enough to look at" * 40)
    with pytest.raises(StoreError, match="not a store"):
        asyncio.run(AsyncTextMemory.open(tmp_path / "m.db", "ann", HASHING))
