"""A key of one scope never sees or changes another: every call there is, aimed at the other scope.

The calls are those of the OpenAPI document and of the list of tools: one that is new and not in the
tables below fails the test.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from starlette.testclient import TestClient

from server.conftest import bearer
from server.test_tools import over_http, said
from titans.server import KeyRing
from titans.server.keys import RIGHTS

SECRET = "xylophone"
"""A word of the other scope's texts."""
ID = "bob-1"
"""The id of one of them."""
FIELDS = {"of": "bob"}
"""Their metadata."""
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/memories": [{"text": "intrusion", "id": ID}, {"text": "intrusion"}],
    "/v1/memories/batch": [{"memories": [{"text": "intrusion", "id": "new"}]}],
    "/v1/memories/recall": [
        {"query": SECRET, "k": 100, "explain": True},
        {"query": SECRET, "writer": "bob"},
    ],
    "/v1/memories/id/{id}": [{"pinned": True}, {"expires": "2020-01-01", "importance": 1}],
    "/v1/memories/expire": [{}, {"before": "2100-01-01"}],
    "/v1/memories/forget": [
        {"id": ID},
        {"id": ID, "preview": True},
        {"all": True},
        {"writer": "bob"},
        {"before": "2100-01-01"},
        {"before": "2100-01-01", "preview": True},
    ],
    "/v1/memories/import": [{}],
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": f"What of the {SECRET[:4]}?"}]},
        {"messages": [{"role": "user", "content": "Tell me all."}], "stream": True},
        {"messages": [{"role": "user", "content": "Tell me all."}], "user": "bob"},
        {"messages": [{"role": "user", "content": "?"}], "titans": {"writer": "bob"}},
    ],
    "/v1/playground": [{"text": "hello"}],
}
"""What to send with a POST or PATCH to each path."""
QUERIES: dict[str, list[str]] = {
    "/v1/memories": [
        *("", f"?cursor={ID}", "?writer=bob", "?newest_first=true&limit=1000"),
        "?metadata=" + quote(json.dumps(FIELDS)),
    ],
    "/v1/memories/why/{id}": ["", f"?query={SECRET[:5]}"],
}
WITHOUT_SCOPE = {"/health", "/metrics", "/v1/models", "/v1/scopes", "/v1/playground"}
"""Paths that ask for no scope; they must not tell of another, either."""
TOOLS: dict[str, list[dict[str, Any]]] = {
    "remember": [{"text": "intrusion"}],
    "recall": [{"query": "instrument", "k": 50}, {"query": "instrument", "metadata": FIELDS}],
    "forget": [
        *({"id": ID}, {"before": "2100-01-01"}, {"speaker": "Bob", "preview": True}),
        {"metadata": FIELDS},
    ],
    "list_memories": [{}, {"cursor": ID}, {"metadata": FIELDS}],
    "why": [{"id": ID}, {"id": ID, "query": "instrument"}],
    "mark": [{"id": ID, "expires": "2020-01-01"}, {"id": ID, "pinned": True}],
    "summary": [{}],
    "stats": [{}],
}


def requests(document: dict) -> Iterator[tuple[str, str, Any]]:
    """Method, address and body of every call."""
    for path, item in document["paths"].items():
        address = path.replace("{id}", ID)
        for method in item:
            bodies = BODIES[path] if method in ("post", "patch") else [None]
            for query in QUERIES.get(path, [""]) if method == "get" else [""]:
                yield from ((method, address + query, body) for body in bodies)


@pytest.fixture
def tokens(ring: KeyRing) -> dict[str, str]:
    """Keys with all rights, each for a scope of its own; one scope's name begins like the other."""
    scopes = {"ann": ["ann"], "bob": ["bob"], "bo": ["bo", "bob-*", "bo?"]}
    return {name: ring.make(name, scope, RIGHTS)[1] for name, scope in scopes.items()}


def fill(client: TestClient, tokens: dict[str, str]) -> None:
    for number in (1, 2):
        text = {"text": f"The {SECRET} is instrument {number}.", "id": f"bob-{number}"}
        assert client.post(
            "/v1/memories",
            json={**text, "speaker": "Bob", "metadata": FIELDS},
            headers=bearer(tokens["bob"]),
        ).is_success


def everything(client: TestClient, tokens: dict[str, str]) -> tuple[str, Any]:
    headers = bearer(tokens["bob"])
    stats = client.get("/v1/memories/stats", headers=headers).json()
    return client.get("/v1/memories/export", headers=headers).text, stats


@pytest.mark.parametrize("aim", ["header", "query", "own"])
@pytest.mark.parametrize("who", ["ann", "bo"])
def test_no_call_reaches_another_scope(
    client: TestClient, tokens: dict[str, str], who: str, aim: str
):
    fill(client, tokens)
    before = everything(client, tokens)
    assert before[0].count(SECRET) == 2
    document = client.get("/openapi.json").json()
    called = 0
    for method, address, body in requests(document):
        headers = bearer(tokens[who], "bob" if aim == "header" else None)
        if aim == "query":
            address += ("&" if "?" in address else "?") + "scope=bob"
        path = address.partition("?")[0]
        if path.endswith("/import"):
            headers["Content-Type"] = "application/x-ndjson"
            answer = client.post(address, content=b'{"text": "intrusion"}', headers=headers)
        else:
            answer = client.request(method.upper(), address, json=body, headers=headers)
        called += 1
        names_it = aim == "header" or (aim == "query" and "chat" not in path)
        if names_it and path not in WITHOUT_SCOPE:
            assert answer.status_code == 403, (method, address, answer.text)
            assert answer.json()["error"]["code"] == "scope_forbidden"
        assert answer.status_code in (200, 403, 404, 422), (method, address, answer.text)
        # What the caller itself has sent may come back.
        echoed = json.dumps(body) if body else ""
        assert SECRET not in answer.text or SECRET in echoed, (method, address)
        assert "instrument" not in answer.text, (method, address)
    assert called > 30
    assert everything(client, tokens) == before
    assert client.get("/v1/scopes", headers=bearer(tokens[who])).json()["scopes"] in ([], [who])


def test_no_tool_reaches_another_scope(live, tokens: dict[str, str]):
    async def run(url: str) -> None:
        async with over_http(url, bearer(tokens["bob"])) as bob:
            await said(bob, "remember", text=f"The {SECRET} is instrument 1.", speaker="Bob")
        for scope in (None, "bob"):
            async with over_http(url, bearer(tokens["ann"], scope)) as ann:
                for tool in (await ann.list_tools()).tools:
                    for arguments in TOOLS[tool.name]:
                        answer = await said(ann, tool.name, **arguments)
                        assert SECRET not in answer and "instrument" not in answer, tool.name
                        assert scope is None or "does not cover" in answer, tool.name
                if scope is None:
                    found = await ann.read_resource("titans://memories/newest")
                    assert SECRET not in found.contents[0].text  # type: ignore[union-attr]
        async with over_http(url, bearer(tokens["bob"])) as bob:
            assert "records: 1" in await said(bob, "stats")
            assert SECRET in await said(bob, "list_memories")

    with live() as url:
        anyio.run(run, url)
