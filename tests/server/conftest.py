"""Servers in this process: one to call directly, one on a port for real clients."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from titans.recall import RecallConfig, ScriptedGenerator
from titans.server import KeyRing, ServerConfig, create_app

HASHING = RecallConfig(encoder="hashing:64")
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys")


Serve = Callable[..., ASGIApp]


@pytest.fixture
def make_app(tmp_path: Path, ring: KeyRing) -> Serve:
    """An application on a store of this test; arguments are settings of the server."""

    def make(**settings: Any) -> ASGIApp:
        parts = {"llm": settings.pop("llm", ScriptedGenerator(lambda text: f"You said: {text}"))}
        parts["playground"] = settings.pop("playground", None)
        server = ServerConfig(**settings)
        return create_app(tmp_path / "memory.db", ring, server, HASHING, **parts)

    return make


@pytest.fixture
def client(make_app: Serve) -> Iterator[TestClient]:
    with local_client(make_app()) as opened:
        yield opened


def local_client(app: ASGIApp) -> TestClient:
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """The address of an application that listens on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def live(make_app: Serve) -> Callable[..., AbstractContextManager[str]]:
    return lambda **settings: listening(make_app(**settings))


def bearer(token: str, scope: str | None = None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {token}"}
    return headers if scope is None else {**headers, "X-Titans-Scope": scope}
