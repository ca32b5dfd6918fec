"""Shared by all tests: one thread, a fixed seed, no network."""

import os
import socket
import sys
from collections.abc import Iterator

import pytest
import torch

from support.chromium import find_chromium

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)
if os.environ.get("JAXTYPING_DISABLE"):
    # Even if not executed, annotations leave wrappers that a compiler cannot look through.
    sys.meta_path[:] = [f for f in sys.meta_path if "jaxtyping" not in type(f).__module__]
LEFT_OUT = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Browser tests need a Chromium; without one they are left out, and that is said."""
    if find_chromium():
        return
    left_out = [item for item in items if item.get_closest_marker("browser")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
        config.stash[LEFT_OUT] = len(left_out)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    count = config.stash.get(LEFT_OUT, 0)
    if count:
        terminalreporter.write_line(
            f"no Chromium found: {count} browser tests left out (apt install chromium)"
        )


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


@pytest.fixture
def browser() -> Iterator[object]:
    """A Chromium for one test: as long as it is open, this thread can run no event loop."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield chromium
        chromium.close()
