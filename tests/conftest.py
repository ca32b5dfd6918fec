"""Shared by all tests: one thread, a fixed seed, no network."""

import os
import socket

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to anything but this machine fail at once."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        local = self.family == socket.AF_UNIX or (
            isinstance(address, tuple) and str(address[0]) in ("127.0.0.1", "localhost", "::1")
        )
        if not local:
            raise OSError(f"a test tried to reach {address}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)
