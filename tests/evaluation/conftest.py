"""Records that were not given a place go to a folder of the test."""

from pathlib import Path

import pytest

from titans.cli import eval as command


@pytest.fixture(autouse=True)
def own_runs(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval") / "runs"
    monkeypatch.setattr(command, "RUNS", folder)
    return folder
