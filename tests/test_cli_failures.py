"""A command that fails says so in one line; nothing else reaches the user unasked."""

import subprocess
import sys
from pathlib import Path

import pytest

from titans.cli import main as cli
from titans.cli import plot
from titans.cli.values import number, whole
from titans.errors import ConfigError, DataError


def fail_with(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words
) -> tuple[int, list[str]]:
    def run(_: object) -> int:
        raise error

    monkeypatch.setattr(plot, "run", run)
    code = cli.main([*words, "plot", "x"])
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("a: b\n  c\x1b[0m"), 2, "titans plot: a: b c\\x1b[0m"),
        (DataError("line 3 is not JSON"), 1, "titans plot: line 3 is not JSON"),
        (OSError(28, "No space left on device"), 1, "the disk is full"),
        (OSError(30, "Read-only file system", "/x"), 1, "/x: Read-only file system; check"),
        (MemoryError(), 1, "not enough memory"),
        (KeyError("x"), 1, "unexpected KeyError: 'x'; `titans --debug plot ...` shows where"),
    ],
)
def test_every_failure_is_one_line(
    error: Exception,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, lines = fail_with(error, monkeypatch, capsys)
    assert found == code and len(lines) == 1 and message in lines[0]
    found, lines = fail_with(error, monkeypatch, capsys, "--debug")
    assert found == code and lines[0].startswith("Traceback") and message in lines[-1]


def test_a_wrong_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["plto"], ["plot"], ["plot", "x", "--no\nsuch"], ["memory", "stats", "x"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main(words)
        (line,) = capsys.readouterr().err.splitlines()
        assert "--help" in line
    with pytest.raises(SystemExit, match="2"):
        cli.main(["chat", "--window", "-5"])
    assert "give a whole number of at least 1; got '-5'" in capsys.readouterr().err
    for device in ("cuda:99", "meta", "toaster"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["generate", "x", "--device", device])
        assert f"{device!r}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "-1", "", "x", "9" * 5000, "1.5"])
def test_numbers_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(cli.argparse.ArgumentTypeError):
        whole()(text)
    with pytest.raises(cli.argparse.ArgumentTypeError):
        number(0, 1)(text)


@pytest.mark.parametrize(
    "words",
    [
        ["remember", "-", "--encoder", "hashing:16"],
        ["import", "-"],
        ["chat", "--llm", "echo", "--encoder", "hashing:16"],
        ["generate", "model", "--prompt-file", "-"],
        ["plot", "input"],
    ],
)
def test_input_that_is_not_utf8_is_one_line(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("input").write_bytes(b"Gr\xfc\xdfe\n")
    with open("input", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert cli.main(words) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"titans {words[0]}: " in line and "not UTF-8 text at byte 2 (0xfc)" in line


def test_a_full_output_is_one_line() -> None:
    command = [sys.executable, "-m", "titans.cli.main", "train", "configs/mac.yaml"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "--print-config"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1 and "the disk is full" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_model_that_cannot_be_loaded_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message of `transformers` has five."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    words = ["chat", "--llm", f"hf:{tmp_path}", "--store", str(tmp_path / "m.db")]
    assert cli.main([*words, "--encoder", "hashing:16"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "titans chat:" in line]) == 1
    assert lines[-1].startswith(f"titans chat: {tmp_path} cannot be loaded")
