"""The server is killed while several clients write and forget through it."""

import http.client
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import uvicorn

from soak.driver import count, suite, wait
from soak.kills import CONFIG, assert_sound, fill, filled, new_store
from soak.victims import Acknowledge, kill_while
from soak.writers import in_child
from support import postgres
from titans.recall import Encoder, load_encoder
from titans.server import KeyRing, create_app

CLIENTS, REQUESTS = 3, 12
SECONDS = 1.5
"""How long all requests take, about."""
JSON = {"Content-Type": "application/json", "X-Titans-Scope": "ann"}
LINES = {**JSON, "Content-Type": "application/x-ndjson"}


@cache
def encoder() -> Encoder:
    """Loaded once for all trials, with the store that they begin with."""
    filled(5)
    return load_encoder(CONFIG.encoder)


class Server(uvicorn.Server):
    """Ends when all clients have."""

    def __init__(self, config: uvicorn.Config, ends: list[Path]) -> None:
        super().__init__(config)
        self.ends = ends

    async def on_tick(self, counter: int) -> bool:
        """Whether to end."""
        return await super().on_tick(counter) or all(end.exists() for end in self.ends)


def story(id: str) -> str:
    """The text of a record."""
    return f"ann tells story-{id}. of town{len(id) % 5}"


def requests(rng: random.Random, name: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Requests of a client: method and path, body, and which records they store or forget."""
    kept: list[list[str]] = []
    for number in range(REQUESTS):
        ids = [f"{name}-{number}-{part}" for part in range(rng.choice((1, 2, 3)))]
        new = [{"text": story(i), "id": i, "metadata": {"group": ids[0]}} for i in ids]
        kind = rng.choice(("one", "many", "file", "forget", "filter") if kept else ("one", "many"))
        if kind == "forget":
            group = rng.choice(kept)
            gone = group.pop()
            kept = [group for group in kept if group]
            yield "DELETE", f"/v1/memories/id/{gone}", "", [gone]
        elif kind == "filter":
            group = kept.pop(rng.randrange(len(kept)))
            asked: dict[str, Any] = {"metadata": {"group": group[0]}}
            yield "POST", "/v1/memories/forget", json.dumps(asked), list(group)
        else:
            if kind == "one":
                ids, place, body = ids[:1], "", json.dumps(new[0])
            elif kind == "many":
                place, body = "/batch", json.dumps({"memories": new})
            else:
                place, body = "/import", "".join(json.dumps(line) + "\n" for line in new)
            kept.append(ids)
            yield "POST", f"/v1/memories{place}", body, list(ids)


def write(port: int, journal: Path, end: Path, seed: str) -> None:
    """A client: what it asks for and what was acknowledged go into its journal."""
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for method, path, body, ids in requests(random.Random(seed), journal.stem):
            verb = "forget" if method == "DELETE" or path.endswith("forget") else "store"
            os.write(file, (json.dumps(["asked", verb, ids]) + "\n").encode())
            headers = LINES if path.endswith("import") else JSON
            link.request(method, path, body.encode(), headers)
            answer = link.getresponse()
            said = answer.read()
            if answer.status != 200:
                raise AssertionError(f"{answer.status} {said!r}")
            os.write(file, (json.dumps(["done", verb, ids]) + "\n").encode())
    except (OSError, http.client.HTTPException):
        pass  # the server was killed
    finally:
        end.touch()


def expected(journals: list[Path]) -> tuple[set[str], set[str], set[str]]:
    """Records that must be there, that must be gone, and of which either may be."""
    there: set[str] = set()
    gone: set[str] = set()
    open_ones: set[str] = set()
    for journal in journals:
        for line in journal.read_text().splitlines():
            state, verb, ids = json.loads(line)
            there -= set(ids)
            open_ones = open_ones | set(ids) if state == "asked" else open_ones - set(ids)
            if state == "done":
                (there if verb == "store" else gone).update(ids)
    return there, gone, open_ones


@suite("kill.serve", prepare=encoder)
def serve(work: Path, rng: random.Random) -> str:
    """The server is killed: nothing acknowledged is lost, nothing forgotten comes back."""
    said, gone = killed_over(new_store(work, 5), work, rng)
    files = b"".join(file.read_bytes() for file in work.glob("m.db*") if file.is_file())
    for id in gone:
        assert f"story-{id}.".encode() not in files, "a forgotten text is still in a file"
    return said


@suite("kill.pg-serve", prepare=lambda: (encoder(), postgres.server()))
def serve_postgres(work: Path, rng: random.Random) -> str:
    """The server is killed over PostgreSQL: nothing is lost, nothing forgotten comes back."""
    place = postgres.new_place()
    fill(place, 5)
    return killed_over(place, work, rng)[0]


def killed_over(place: str | Path, work: Path, rng: random.Random) -> tuple[str, set[str]]:
    """Kill a server of this store at a moment of chance and look at what it kept.

    Returns how far it came, and the records that are acknowledged as forgotten.
    """
    keys = KeyRing(work / "keys")
    journals = [work / f"c{number}.journal" for number in range(CLIENTS)]
    ends = [work / f"c{number}.end" for number in range(CLIENTS)]
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def client(journal: Path, end: Path, seed: str) -> None:
        listener.close()
        write(port, journal, end, seed)

    pids = [
        in_child(lambda j=journal, e=end: client(j, e, str(rng.random())))
        for journal, end in zip(journals, ends, strict=True)
    ]

    def work_on(_: Acknowledge) -> None:
        app = create_app(place, keys, None, CONFIG, encoder=encoder())
        options = uvicorn.Config(app, log_config=None, access_log=False)
        Server(options, ends).run(sockets=[listener])

    def first_answer() -> None:
        while not any(j.exists() and '"done"' in j.read_text() for j in journals):
            if all(end.exists() for end in ends):
                return
            time.sleep(0.01)

    kill_while(work_on, rng, seconds=SECONDS, calls=1500, begin=first_answer)
    listener.close()
    assert all(wait(pid, 90) == 0 for pid in pids), "a client was refused"
    found = assert_sound(place)
    there, gone, either = expected(journals)
    assert there <= set(found), f"acknowledged and lost: {sorted(there - set(found))}"
    assert not gone & set(found), f"forgotten and back: {sorted(gone & set(found))}"
    first = {str(number) for number in range(5)}
    assert set(found) <= there | either | first, "a record that nobody stored"
    assert all(text == story(id) for id, text in found.items() if id not in first)
    count("acknowledged", len(there) + len(gone))
    has_all = all(journal.read_text().count('"done"') == REQUESTS for journal in journals)
    cut = "cut off" if there or gone else "before the first answer"
    return "all answered" if has_all else cut, gone
