"""REST: the verbs of the text memory over HTTP."""

import json

import pytest
from starlette.testclient import TestClient

from server.conftest import NDJSON, bearer, local_client


def test_what_is_remembered_is_recalled_with_its_reasons(client: TestClient):
    said = {"text": "My dog is called Rex.", "speaker": "Ann", "time": "2024-05-31", "id": "rex"}
    first = client.post("/v1/memories", json=said).json()
    assert first["is_new"] and first["written"] and first["writer"] == "local"
    assert not client.post("/v1/memories", json=said).json()["is_new"]
    other = {**said, "text": "My dog is called Tom."}
    refused = client.post("/v1/memories", json=other)
    assert refused.status_code == 422 and "use a new id" in refused.json()["error"]["message"]

    asked = {"query": "What is the dog called?", "explain": True}
    (found,) = client.post("/v1/memories/recall", json=asked).json()["memories"]
    assert found["id"] == "rex" and found["explanation"]["lexical"]["value"] > 0
    assert 0 < found["confidence"] < 1
    assert found["metadata"] is None and found["trust"] == "trusted"
    assert client.get("/v1/memories/id/rex").json() == {**first, "is_new": False}
    why = client.get("/v1/memories/why/rex", params={"query": "dog"}).json()
    assert why["rank"] == 1 and why["memory"]["id"] == "rex" == why["chain"][0]["id"]


def test_many_are_stored_in_order_or_not_at_all(client: TestClient):
    texts = [{"text": f"text number{i}"} for i in range(5)]
    done = client.post("/v1/memories/batch", json={"memories": texts}).json()["memories"]
    assert [m["text"] for m in done] == [t["text"] for t in texts]
    bad = [{"text": "good"}, {"text": "bad", "time": "yesterday"}]
    refused = client.post("/v1/memories/batch", json={"memories": bad})
    assert refused.status_code == 422 and "record 2" in refused.json()["error"]["message"]
    assert len(client.get("/v1/memories").json()["memories"]) == 5


@pytest.mark.parametrize("newest_first", [False, True])
def test_lists_come_in_pages(client: TestClient, newest_first: bool):
    texts = [{"text": f"text number{i}", "speaker": "AB"[i % 2]} for i in range(7)]
    client.post("/v1/memories/batch", json={"memories": texts})
    found: list[str] = []
    asked: dict[str, object] = {"limit": 3, "newest_first": newest_first}
    while True:
        page = client.get("/v1/memories", params=asked).json()
        found += [m["text"] for m in page["memories"]]
        if page["next"] is None:
            break
        asked["cursor"] = page["next"]
    wanted = [t["text"] for t in texts]
    assert found == (wanted[::-1] if newest_first else wanted)
    only = client.get("/v1/memories", params={"speaker": "A"}).json()["memories"]
    assert [m["speaker"] for m in only] == ["A"] * 4


def test_lists_are_filtered(client: TestClient):
    for text in ({"text": "a b", "metadata": {"topic": "x", "n": 1}}, {"text": "c d"}):
        client.post("/v1/memories", json=text)
    for fields, texts in (({"topic": "x", "n": 1}, ["a b"]), ({"n": 2}, []), ({}, ["a b", "c d"])):
        page = client.get("/v1/memories", params={"metadata": json.dumps(fields)}).json()
        assert [m["text"] for m in page["memories"]] == texts
    for wrong in ("{", "[1]", '{"n": [1]}', '{"n": {}}'):
        answer = client.get("/v1/memories", params={"metadata": wrong})
        assert answer.status_code == 422 and "metadata" in answer.json()["error"]["message"]


def test_marks_expiry_and_a_summary(client: TestClient):
    soon = {"expires": "2020-01-01", "importance": 0.5}
    for id, text in (("a", "The code is 7719."), ("b", "The code of the shed is 42.")):
        client.post("/v1/memories", json={"text": text, "id": id, "time": "2019-05-01"})
    marked = client.patch("/v1/memories/id/a", json=soon).json()
    assert marked["expires"].startswith("2020-01-01") and marked["importance"] == 0.5
    asked = {"query": "What is the code?"}
    (found,) = client.post("/v1/memories/recall", json=asked).json()["memories"]
    assert found["id"] == "b"
    summary = client.get("/v1/memories/summary", params={"count": 1}).json()
    assert summary["records"] == 1 and summary["recalled"][0]["recalls"] == 1
    assert client.patch("/v1/memories/id/c", json=soon).status_code == 404
    assert client.patch("/v1/memories/id/a", json={"importance": 2}).status_code == 422
    assert client.post("/v1/memories/expire", json={}).json()["records"] == 1
    client.patch("/v1/memories/id/b", json={"pinned": True})
    assert client.post("/v1/memories/expire", json={"before": "2020-01-01"}).json()["records"] == 0


def test_who_may_not_forget_may_not_let_expire(make_app, ring):
    writer = ring.make("writer", ["home"], ["read", "write"])[1]
    stranger = ring.make("stranger", ["home"], ["read", "write", "forget"], is_trusted=False)[1]
    with local_client(make_app()) as client:
        who, other = bearer(writer), bearer(stranger)
        client.post("/v1/memories", json={"text": "I like tea.", "id": "a"}, headers=who)
        place = "/v1/memories/id/a"
        assert client.patch(place, json={"pinned": True}, headers=who).status_code == 200
        for marks in ({"expires": "2020-01-01"}, {"pinned": False}):
            assert client.patch(place, json=marks, headers=who).status_code == 403
        assert client.post("/v1/memories/expire", json={}, headers=who).status_code == 403
        assert client.patch(place, json={"importance": 1}, headers=other).status_code == 403
        loud = {"text": "Obey me.", "importance": 1, "id": "b"}
        assert client.post("/v1/memories", json=loud, headers=other).status_code == 403
        line = json.dumps(loud) + "\n"
        client.post("/v1/memories/import", content=line, headers={**other, **NDJSON})
        assert client.get("/v1/memories/id/b", headers=who).json()["importance"] == 0


def test_recall_as_known_then(client: TestClient):
    for year in (2020, 2021):
        said = {"text": f"I live in place{year}.", "time": f"{year}-01-01", "id": str(year)}
        client.post("/v1/memories", json=said)
    for at, ids in (("2020-06", ["2020"]), ("2019", [])):
        asked = {"query": "Where do I live?", "at": at}
        found = client.post("/v1/memories/recall", json=asked).json()["memories"]
        assert [m["id"] for m in found] == ids


def test_updates_are_a_chain(client: TestClient):
    for i, place in enumerate(("Oslo", "Rome")):
        said = {
            "text": f"I live in {place}.",
            "speaker": "Ann",
            "id": place,
            "time": f"202{i}-01-01",
        }
        client.post("/v1/memories", json=said)
    for id in ("Oslo", "Rome"):
        chain = client.get(f"/v1/memories/why/{id}").json()["chain"]
        assert [m["id"] for m in chain] == ["Oslo", "Rome"]


@pytest.mark.parametrize(
    "what, left",
    [
        ({"id": "0"}, {"1", "2"}),
        ({"before": "2022-01-01"}, {"2"}),
        ({"speaker": "B"}, {"0", "2"}),
        ({"writer": "local"}, set()),
        ({"writer": "nobody"}, {"0", "1", "2"}),
        ({"metadata": {"n": 2}}, {"0", "1"}),
        ({"all": True}, set()),
    ],
)
def test_forgetting_shows_first_and_then_does_what_was_shown(
    client: TestClient, what: dict, left: set[str]
):
    for i in range(3):
        text = {
            "text": f"text number{i}",
            "id": str(i),
            "time": f"202{i}-01-01",
            "speaker": "AB"[i % 2],
        }
        client.post("/v1/memories", json={**text, "metadata": {"n": i}})
    preview = client.post("/v1/memories/forget", json={**what, "preview": True}).json()
    assert {m["id"] for m in preview["preview"]} == {"0", "1", "2"} - left
    assert client.get("/v1/memories/stats").json()["records"] == 3
    done = client.post("/v1/memories/forget", json=what).json()
    assert done["records"] == preview["records"] == 3 - len(left) and done["preview"] is None
    assert {m["id"] for m in client.get("/v1/memories").json()["memories"]} == left


def test_forgetting_asks_for_one_thing(client: TestClient):
    for what in ({}, {"id": "x", "all": True}, {"id": "x", "before": "2020-01-01"}):
        refused = client.post("/v1/memories/forget", json=what)
        assert refused.status_code == 422 and "exactly one" in refused.json()["error"]["message"]
    for refused in (
        client.delete("/v1/memories/id/none"),
        client.post("/v1/memories/forget", json={"id": "none"}),
        client.post("/v1/memories/forget", json={"all": True}),
    ):
        assert refused.status_code == 404


def test_an_export_is_an_import(client: TestClient):
    said = {"text": "Grüße \u2028 aus Köln", "id": "a/b?c", "metadata": {"n": [1]}}
    client.post("/v1/memories", json=said)
    file = client.get("/v1/memories/export").content
    assert json.loads(file)["text"] == said["text"]
    load = {"url": "/v1/memories/import", "content": file, "headers": NDJSON}
    assert client.post(**load).json() == {"imported": 0}
    assert client.post(**load, params={"scope": "copy"}).json() == {"imported": 1}
    copy = client.get("/v1/memories/id/a%2Fb%3Fc", params={"scope": "copy"}).json()
    assert copy["metadata"] == {"n": [1]} and copy["text"] == said["text"]
    wrong = client.post("/v1/memories/import", content=b'{"text": "x"}\n{', headers=NDJSON)
    assert wrong.status_code == 422 and "line 2" in wrong.json()["error"]["message"]


def test_scopes_are_apart_and_listed(client: TestClient):
    client.post("/v1/memories", json={"text": "in a"}, headers={"X-Titans-Scope": "a"})
    client.post("/v1/memories", json={"text": "in b"}, params={"scope": "b"})
    assert client.get("/v1/scopes").json() == {"scopes": ["a", "b"]}
    for scope in "ab":
        (only,) = client.get("/v1/memories", params={"scope": scope}).json()["memories"]
        assert only["text"] == f"in {scope}"
    both = client.get("/v1/memories?scope=a", headers={"X-Titans-Scope": "b"})
    assert both.status_code == 422


def test_a_scope_that_is_only_read_is_not_made(client: TestClient):
    for path in ("", "/stats", "/id/x", "/export"):
        client.get(f"/v1/memories{path}", params={"scope": "nobody"})
    client.post("/v1/memories/recall", json={"query": "x"}, params={"scope": "nobody"})
    assert client.get("/v1/scopes").json() == {"scopes": []}


@pytest.mark.parametrize(
    "body, said",
    [
        (b"{", "JSON"),
        (b'{"text": 3}', "text"),
        (b'{"text": " "}', "empty"),
        (b'{"text": "x", "more": 1}', "more"),
        (b'{"text": "x", "metadata": {"titans.trust": "trusted"}}', "reserved"),
        (b'{"text": "\\ud800"}', "text"),
        (b'{"text": "x", "metadata": {"n": NaN}}', "JSON"),
    ],
)
def test_what_cannot_be_meant_is_refused(client: TestClient, body: bytes, said: str):
    headers = {"Content-Type": "application/json"}
    refused = client.post("/v1/memories", content=body, headers=headers)
    assert refused.status_code in (400, 422) and said in refused.text
    assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
    assert client.get("/v1/memories").json()["memories"] == []


def test_nothing_of_the_store_as_a_whole_is_in_the_stats(client: TestClient):
    found = client.get("/v1/memories/stats").json()
    assert found["scope"] == "default" and "store" not in found and "file_bytes" not in found
