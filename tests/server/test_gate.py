"""Keys, origins, limits, logs: what stands before every request."""

import asyncio
import json
import logging
import stat
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from server.conftest import HASHING, Serve, bearer, local_client
from titans.cli.main import main
from titans.errors import ConfigError
from titans.recall import TextMemory, load_encoder
from titans.server import KeyRing, ServerConfig
from titans.server.config import check_reach
from titans.server.hub import Hub
from titans.server.refusal import Refusal


def test_keys_are_kept_as_hashes_that_only_the_owner_reads(ring: KeyRing):
    key, token = ring.make("laptop", ["ann"])
    (file,) = ring.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token.split("_", 2)[2] not in file.read_text()
    assert ring.find(token) == key
    for wrong in ("", "x", token[:-1], token[:-1] + "!", f"titans_{key.id}_{'x' * 43}"):
        assert ring.find(wrong) is None


def test_a_key_works_until_it_is_revoked(client: TestClient, ring: KeyRing):
    assert client.get("/v1/memories").status_code == 200
    _, token = ring.make("laptop", ["ann"])
    refused = client.get("/v1/memories")
    assert refused.status_code == 401 and refused.headers["WWW-Authenticate"] == "Bearer"
    assert "titans keys make" in refused.json()["error"]["message"]
    assert client.get("/v1/memories", headers=bearer(token)).status_code == 200
    ring.revoke("laptop")
    assert client.get("/v1/memories", headers=bearer(token)).status_code == 401
    # The last key is gone: the server does not open to everybody.
    assert client.get("/v1/memories").status_code == 401
    assert client.get("/health").status_code == 200


def test_a_key_has_scopes_and_rights(client: TestClient, ring: KeyRing):
    _, reader = ring.make("reader", ["ann", "team-*"], ["read"])
    _, writer = ring.make("writer", ["*"], ["write"])
    said = {"text": "My dog is called Rex."}
    refused = client.post("/v1/memories", json=said, headers=bearer(reader))
    assert refused.status_code == 403 and "--right write" in refused.json()["error"]["message"]
    refused = client.post("/v1/memories", json=said, headers=bearer(writer))
    assert refused.status_code == 422 and "X-Titans-Scope" in refused.json()["error"]["message"]
    assert client.post("/v1/memories", json=said, headers=bearer(writer, "ann")).is_success
    assert client.get("/v1/memories", headers=bearer(writer, "ann")).status_code == 403
    (found,) = client.get("/v1/memories", headers=bearer(reader)).json()["memories"]
    assert found["writer"] == "writer"
    assert client.get("/v1/memories", headers=bearer(reader, "team-a")).is_success
    for scope in ("bob", "team", "ann2", "*"):
        assert client.get("/v1/memories", headers=bearer(reader, scope)).status_code == 403
    assert client.get("/metrics", headers=bearer(reader)).status_code == 403
    assert client.get("/v1/scopes", headers=bearer(reader)).status_code == 403


def test_trust_is_the_key_s_and_recall_can_ask_for_it(client: TestClient, ring: KeyRing):
    _, good = ring.make("good", ["ann"])
    _, bad = ring.make("bad", ["ann"], is_trusted=False)
    for token, name in ((good, "Rex"), (bad, "Tom")):
        said = {"text": f"The dog of my neighbour is called {name}."}
        client.post("/v1/memories", json=said, headers=bearer(token))
    asked = {"query": "What is the dog called?", "k": 9}
    everything = client.post("/v1/memories/recall", json=asked, headers=bearer(good)).json()
    assert {m["trust"] for m in everything["memories"]} == {"trusted", "untrusted"}
    for only in ({"trust": "trusted"}, {"writer": "good"}):
        found = client.post("/v1/memories/recall", json={**asked, **only}, headers=bearer(bad))
        assert [m["writer"] for m in found.json()["memories"]] == ["good"]


def test_it_listens_elsewhere_only_with_keys(ring: KeyRing):
    check_reach(ServerConfig(), ring)
    check_reach(ServerConfig(host="::1"), ring)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.com"):
        with pytest.raises(ConfigError, match="titans keys make"):
            check_reach(ServerConfig(host=host), ring)
    ring.make("laptop", ["ann"])
    check_reach(ServerConfig(host="0.0.0.0"), ring)


def test_without_keys_other_names_and_other_pages_are_refused(client: TestClient):
    """A page of another site must reach it neither by its own name nor from the browser."""
    assert client.get("/v1/memories", headers={"Host": "evil.example"}).status_code == 403
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        refused = client.post("/v1/memories", json={"text": "x"}, headers={"Origin": origin})
        assert refused.status_code == 403 and "--cors" in refused.json()["error"]["message"]
    assert client.get("/v1/memories", headers={"Origin": "http://localhost"}).is_success
    assert "access-control-allow-origin" not in client.get("/v1/memories").headers


def test_pages_that_are_allowed_may_call(make_app: Serve):
    origin = "https://chat.example.com"
    with local_client(make_app(cors=(origin,))) as client:
        answer = client.get("/v1/memories", headers={"Origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        assert client.options("/v1/memories", headers=asked).is_success
        assert client.get("/v1/memories", headers={"Origin": "https://x.y"}).status_code == 403
    with pytest.raises(ConfigError, match="without a path"):
        ServerConfig(cors=("https://chat.example.com/",))


def test_a_large_body_is_refused_whether_it_says_so_or_not(make_app: Serve):
    with local_client(make_app(body_limit=1000, import_limit=2000)) as client:
        large = json.dumps({"text": "x" * 1000}).encode()
        json_type = {"Content-Type": "application/json"}
        for body in (large, iter([large[:600], large[600:]])):
            refused = client.post("/v1/memories", content=body, headers=json_type)
            assert refused.status_code == 413 and "1000 bytes" in refused.text
        ndjson = {"Content-Type": "application/x-ndjson"}
        assert client.post("/v1/memories/import", content=large, headers=ndjson).is_success
        assert (
            client.post("/v1/memories/import", content=large * 2, headers=ndjson).status_code == 413
        )


def test_who_asks_too_often_is_told_when_to_come_back(make_app: Serve, ring: KeyRing):
    tokens = [ring.make(name, ["ann"])[1] for name in ("one", "other")]
    with local_client(make_app(rate=0.01)) as client:
        assert client.get("/v1/memories", headers=bearer(tokens[0])).is_success
        refused = client.get("/v1/memories", headers=bearer(tokens[0]))
        assert refused.status_code == 429 and 90 < int(refused.headers["Retry-After"]) <= 101
    with local_client(make_app(rate=1.0)) as client:
        codes = [client.get("/v1/memories", headers=bearer(tokens[0])) for _ in range(20)]
        refused = [c for c in codes if c.status_code == 429]
        assert refused and refused[0].headers["Retry-After"] == "1"
        assert client.get("/v1/memories", headers=bearer(tokens[1])).is_success
        assert client.get("/health").is_success


def test_the_log_has_nothing_of_a_text_a_scope_or_a_key(
    client: TestClient, ring: KeyRing, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    key, token = ring.make("laptop", ["secretscope"])
    headers = bearer(token)
    client.post("/v1/memories", json={"text": "zebra", "id": "zebraid"}, headers=headers)
    client.post("/v1/memories/recall", json={"query": "zebra"}, headers=headers)
    client.get("/v1/memories/id/zebraid", headers=headers)
    client.get("/v1/memories/why/zebraid?query=zebra", headers=headers)
    client.get("/zebra", headers=headers)
    client.post("/v1/memories", json={"text": "zebra", "time": "zebra"}, headers=headers)
    client.get("/v1/memories?zebra=1", headers=bearer("titans_zebra"))
    ours = [r.getMessage() for r in caplog.records if r.name.startswith(("titans", "uvicorn"))]
    assert len(ours) >= 7 and any(key.id in line for line in ours)
    for word in ("zebra", "secretscope", token, token.split("_", 2)[2]):
        assert not any(word in line for line in ours), word


def test_metrics_count_routes_not_paths(client: TestClient):
    client.post("/v1/memories", json={"text": "zebra", "id": "zebra"})
    client.get("/v1/memories/id/zebra")
    client.get("/zebra")
    found = client.get("/metrics").text
    assert "zebra" not in found
    counted = 'titans_requests_total{method="GET",route="/v1/memories/id/{id:path}",status="200"} 1'
    assert counted in found and 'route="other",status="404"' in found


def test_the_loop_goes_on_while_a_memory_works(make_app: Serve, monkeypatch: pytest.MonkeyPatch):
    started, may_end = threading.Event(), threading.Event()
    recall = TextMemory.recall

    def slow(self: TextMemory, *args: object, **kwargs: object):
        started.set()
        assert may_end.wait(60)
        return recall(self, *args, **kwargs)

    monkeypatch.setattr(TextMemory, "recall", slow)
    with local_client(make_app(queue=1)) as client:
        asked = {"query": "dog"}
        answers: list[int] = []
        thread = threading.Thread(
            target=lambda: answers.append(
                client.post("/v1/memories/recall", json=asked).status_code
            )
        )
        thread.start()
        assert started.wait(60)
        assert client.get("/health").is_success
        assert client.get("/v1/memories", params={"scope": "other"}).is_success
        full = client.post("/v1/memories/recall", json=asked)
        assert full.status_code == 503 and full.headers["Retry-After"] == "1"
        assert full.json()["error"]["code"] == "scope_busy"
        may_end.set()
        thread.join()
        assert answers == [200]


def test_the_scope_that_was_not_used_longest_is_closed(make_app: Serve):
    with local_client(make_app(open_scopes=2)) as client:
        for scope in "abcab":
            client.post("/v1/memories", json={"text": f"in {scope}"}, params={"scope": scope})
        assert "titans_scopes_open 2.0" in client.get("/metrics").text
        counts = [client.get(f"/v1/memories/stats?scope={s}").json()["records"] for s in "abc"]
        assert counts == [2, 2, 1]


def test_what_nobody_waits_for_is_finished_and_long_work_lets_others_in(tmp_path: Path):
    async def scenario() -> list[str]:
        seen: list[str] = []
        hub = Hub(tmp_path / "m.db", None, load_encoder("hashing:64"), queue=9, open_scopes=2)

        def steps(memory: TextMemory):
            for i in range(1000):
                threading.Event().wait(0.01)
                seen.append(f"step {i}")
                yield
            return 1000

        long = asyncio.ensure_future(hub.run_in_slices("a", steps))
        await hub.run("a", lambda memory: seen.append("other"))
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        await hub.close()
        return seen

    seen = asyncio.run(scenario())
    assert "other" in seen and len(seen) < 900


def test_keys_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "keys"
    words = ["--keys", str(folder), "--json"]
    make = ["keys", "make", "laptop", "--scope", "ann", "--right", "read", "--untrusted"]
    assert main([*make, *words]) == 0
    made = json.loads(capsys.readouterr().out)
    found = KeyRing(folder).find(made["key"])
    assert found is not None and found.rights == ("read",) and not found.is_trusted
    assert main(["keys", "list", *words]) == 0
    listed = capsys.readouterr().out
    assert json.loads(listed)[0]["name"] == "laptop" and made["key"] not in listed
    assert main([*make, *words]) == 2 and "already" in capsys.readouterr().err
    assert main(["keys", "revoke", "nobody", *words]) == 2
    assert "there is: laptop" in capsys.readouterr().err
    assert main(["keys", "revoke", "laptop", *words]) == 0 and not KeyRing(folder)
    capsys.readouterr()
    assert main(["serve", "--host", "0.0.0.0", "--keys", str(folder)]) == 2
    assert "there are no keys" in capsys.readouterr().err


def test_a_refusal_is_an_error_of_openai():
    assert Refusal(503, "busy", "wait").body()["error"]["type"] == "server_busy_error"
    assert Refusal(418, "x", "y").body()["error"]["type"] == "invalid_request_error"


def test_reading_does_not_wait_for_a_long_write_and_sees_what_was_acknowledged(tmp_path: Path):
    async def scenario() -> None:
        hub = Hub(tmp_path / "m.db", HASHING, load_encoder("hashing:64"), queue=9, open_scopes=2)
        may_end = threading.Event()

        def remember(memory: TextMemory, text: str) -> None:
            memory.remember(text)

        def slow(memory: TextMemory) -> None:
            assert may_end.wait(60)
            memory.remember("slow")

        def texts(memory: TextMemory) -> list[str]:
            return [record.text for record in memory.records()]

        await hub.run("a", remember, "first")
        long = asyncio.ensure_future(hub.run("a", slow))
        await asyncio.sleep(0)
        for _ in range(3):
            assert await asyncio.wait_for(hub.read("a", texts), 60) == ["first"]
        may_end.set()
        await long
        both = [hub.read("a", texts), hub.read("a", texts), hub.read("a", texts)]
        assert await asyncio.gather(*both) == [["first", "slow"]] * 3
        assert hub.pending == 0 and hub.num_open == 1
        await hub.close()

    asyncio.run(scenario())
