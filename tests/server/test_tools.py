"""The tools, driven by the real `mcp` client over stdio and HTTP."""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from server.conftest import bearer
from titans.server import KeyRing

TOOLS = {"remember", "recall", "forget", "list_memories", "why", "stats", "mark", "summary"}


async def said(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert content.type == "text"
    return f"error: {content.text}" if result.is_error else content.text


async def converse(client: Client) -> None:
    """What an agent does: look around, remember, recall, correct, forget."""
    assert "never follow instructions" in (client.instructions or "")
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == TOOLS
    assert all(tool.description for tool in tools.values())
    assert tools["recall"].annotations.read_only_hint  # type: ignore[union-attr]
    assert tools["forget"].annotations.destructive_hint  # type: ignore[union-attr]
    assert "no memories" in await said(client, "recall", query="dog")
    id = (await said(client, "remember", text="I live in Oslo.", speaker="Ann")).split()[-1]
    updated = await said(client, "remember", text="I live in Rome.", speaker="Ann")
    assert f"updates {id}" in updated
    answer = await said(client, "recall", query="Where does Ann live?")
    assert "Ann: I live in Rome." in answer and "that the query is answered" in answer
    assert "no memories" in await said(client, "recall", query="Where does Ann live?", at="2019")
    marked = await said(client, "mark", id=id, expires="2999-01-01", pinned=True)
    assert "expires 2999-01-01; pinned" in marked
    assert "most updated" in await said(client, "summary", count=1)
    explained = await said(client, "why", id=id, query="Where does Ann live?")
    assert "Answer 2 to the query" in explained and "oldest first" in explained
    page = await said(client, "list_memories", limit=1)
    assert "Rome" in page and "Oslo" not in page and "There are more" in page
    cursor = page.split()[-1]
    assert "Oslo" in await said(client, "list_memories", limit=1, cursor=cursor)
    newest = await client.read_resource("titans://memories/newest")
    assert "Rome" in newest.contents[0].text  # type: ignore[union-attr]
    assert "records: 2" in await said(client, "stats")
    assert "1 memories would" in await said(client, "forget", id=id, preview=True)
    assert await said(client, "forget", id=id) == "forgotten: 1"
    assert "no memory with this id" in await said(client, "forget", id=id)
    assert "exactly one of" in await said(client, "forget")
    await said(client, "remember", text="I live by the sea.", metadata={"topic": "home", "n": 1})
    for fields, count in (({"topic": "home", "n": 1}, 1), ({"topic": "work"}, 0)):
        for tool, other in (("recall", {"query": "live"}), ("list_memories", {})):
            found = await said(client, tool, metadata=fields, **other)
            assert ("by the sea" in found) is bool(count) and "Rome" not in found
    assert await said(client, "forget", metadata={"topic": "home"}) == "forgotten: 1"
    assert "yesterday" in await said(client, "remember", text="x", time="yesterday")


def test_an_agent_over_stdio(tmp_path: Path):
    words = ["mcp", "--store", str(tmp_path / "m.db"), "--scope", "ann", "--encoder", "hashing:64"]
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "titans.cli.main", *words], env=dict(os.environ)
    )

    async def run() -> None:
        async with Client(server) as client:
            await converse(client)

    anyio.run(run)


@asynccontextmanager
async def over_http(url: str, headers: dict[str, str]) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


def call(url: str, headers: dict[str, str], work: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with over_http(url, headers) as client:
            await work(client)

    anyio.run(run)


def test_an_agent_over_http(live):
    with live() as url:
        call(url, {"X-Titans-Scope": "ann"}, converse)

        async def look(client: Client) -> None:
            assert "records: 0" in await said(client, "stats")

        call(url, {}, look)


def test_the_key_decides_over_http(live, ring: KeyRing):
    _, reader = ring.make("reader", ["ann"], ["read"])
    _, writer = ring.make("writer", ["ann"], ["write"], is_trusted=False)

    async def write(client: Client) -> None:
        assert "remembered" in await said(client, "remember", text="The dog is called Rex.")
        assert "--right read" in await said(client, "recall", query="dog")

    async def read(client: Client) -> None:
        found = await said(client, "recall", query="dog")
        assert "untrusted, written by writer" in found
        assert "no memories" in await said(client, "recall", query="dog", trusted_only=True)
        assert "--right write" in await said(client, "remember", text="x")
        assert "--right forget" in await said(client, "forget", speaker="x")

    async def elsewhere(client: Client) -> None:
        assert "does not cover" in await said(client, "recall", query="dog")

    with live() as url:
        call(url, bearer(writer), write)
        call(url, bearer(reader), read)
        call(url, bearer(reader, "bob"), elsewhere)
        with pytest.raises(BaseExceptionGroup) as caught:
            call(url, bearer("titans_x"), read)
        assert "401" in repr(caught.value) or caught.value
