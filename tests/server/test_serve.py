"""`titans serve` as a process: what its page of the documents says, stops, kills, wrong use."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from support.postgres import PASSWORD, new_place
from titans.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
SERVE = [sys.executable, "-m", "titans.cli.main", "serve"]


@contextmanager
def serving(store: str | Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server's address and its process."""
    options = ["--store", str(store), "--encoder", "hashing:64", "--port", "0", "--llm", "echo"]
    env = {**os.environ, "OPENAI_API_KEY": "none"}
    with subprocess.Popen(
        [*SERVE, *options, *words], stderr=subprocess.PIPE, text=True, env=env
    ) as p:
        assert p.stderr is not None
        try:
            line = p.stderr.readline()
            found = re.match(r"(http://\S+) \(store .*; no key needed on this machine\)", line)
            assert found and "7719" not in line, line + p.stderr.read()
            yield found[1], p
        finally:
            p.kill()


def call(url: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def test_the_five_minutes_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (code,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    store = tmp_path / "memory.db"
    with serving(store) as (url, process):
        exec(code.replace("http://127.0.0.1:8765", url) + "\nclient.close()", {})
        said = capsys.readouterr().out.splitlines()
        assert len(said) > 3 and "My dog is called Rex." in said[-1]
        # A second process writes the same store, and the server sees it.
        words = ["--store", str(store), "--scope", "ann", "--encoder", "hashing:64"]
        assert main(["remember", "My cat is called Tom.", *words]) == 0
        found = call(f"{url}/v1/memories?scope=ann&newest_first=true")["memories"]
        assert found[0]["text"] == "My cat is called Tom." and found[0]["writer"] is None
        assert len(found) == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)


def test_what_was_acknowledged_survives_kills(tmp_path: Path):
    kept: list[str] = []
    for run in range(2):
        with serving(tmp_path / "memory.db") as (url, process):
            listed = call(f"{url}/v1/memories?limit=1000")["memories"]
            assert [m["id"] for m in listed][: len(kept)] == kept
            kept = [m["id"] for m in listed]
            for number in range(5):
                text = {"text": f"run {run} says number{number}", "id": f"{run}-{number}"}
                kept.append(call(f"{url}/v1/memories", text)["id"])
            process.kill()
    assert len(kept) == 10


def test_two_servers_share_a_postgresql_store_and_show_no_password(tmp_path: Path):
    password = quote(PASSWORD, safe="")
    place = new_place("secret").replace("secret@", f"secret:{password}@")
    with (
        serving(place, "--keys", str(tmp_path / "a")) as (one, first),
        serving(place, "--keys", str(tmp_path / "b")) as (other, _),
    ):
        for number, url in enumerate((one, other) * 3):
            call(f"{url}/v1/memories", {"text": f"server says number{number}", "id": str(number)})
        for url in (one, other):
            asked = {"query": "What is number4?", "k": 1}
            assert call(f"{url}/v1/memories/recall", asked)["memories"][0]["id"] == "4"
        first.kill()
        assert len(call(f"{other}/v1/memories")["memories"]) == 6
        assert first.stderr is not None
        log = first.stderr.read()
    assert "7719" not in log and "p4ss" not in log


def test_a_server_without_a_playground_starts_without_the_models():
    code = "import sys, titans.server.app; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        words = ["serve", "--store", str(tmp_path / "m.db"), "--port", port]
        assert main(words) == 2
    assert f"port {port}" in capsys.readouterr().err
    assert not (tmp_path / "m.db").exists()
