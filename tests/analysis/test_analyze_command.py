"""`titans analyze`: files, comparison, and clear words where something is odd."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.conftest import TEXT, save_checkpoint
from titans.cli.main import build_parser, main

FIGURES = ("surprise", "gates", "life", "forgetting", "worth")


def analyze(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict:
    assert main(["analyze", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_writes_page_numbers_and_figures(
    mag_checkpoint: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out"
    told = analyze(capsys, mag_checkpoint, "--text", text_file, "--out", out)
    names = {f"{name}.png" for name in (*FIGURES, "text")} | {"report.html", "trace.json"}
    assert {path.name for path in out.iterdir()} == names == {Path(f).name for f in told["files"]}
    numbers = json.loads((out / "trace.json").read_text())
    (trace,) = numbers["traces"]
    assert numbers["format_version"] == 1
    assert trace["num_tokens"] == len(TEXT.encode()) == told["traces"][0]["tokens"]
    assert "".join(trace["texts"]) == TEXT
    assert [layer["layer"] for layer in trace["layers"]] == [0, 1]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "http://" not in page and "https://" not in page, "the page needs no network"
    assert "<of the court>" not in page, "text of the file is no markup"
    for figure in FIGURES:
        assert (out / f"{figure}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_prints_the_main_figures(
    mag_checkpoint: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["analyze", str(mag_checkpoint), "--text", str(text_file), "--out", str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "small-mag reads times.txt" in out
    assert "strongest writes:" in out and "half-life" in out
    assert "Loss per token with the live memory" in out


@pytest.mark.slow
def test_two_texts_and_two_checkpoints(
    mag_checkpoint: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other_text = tmp_path / "other.txt"
    other_text.write_text("A wholly different text, and much shorter.")
    words = [mag_checkpoint, "--text", text_file, "--out", tmp_path / "texts"]
    told = analyze(capsys, *words, "--compare", other_text)
    names = [trace["name"] for trace in told["traces"]]
    assert names == ["small-mag reads times.txt", "small-mag reads other.txt"]
    assert (tmp_path / "texts" / "text-b.png").is_file()
    other_model = save_checkpoint(tmp_path / "small-lmm", "lmm")
    words = [mag_checkpoint, "--text", text_file, "--out", tmp_path / "models"]
    told = analyze(capsys, *words, "--compare", other_model)
    assert [trace["variant"] for trace in told["traces"]] == ["mag", "lmm"]
    assert [trace["tokens"] for trace in told["traces"]] == [len(TEXT.encode())] * 2


@pytest.mark.slow
def test_only_the_first_tokens_are_kept_one_by_one(
    mag_checkpoint: Path, text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [mag_checkpoint, "--text", text_file, "--out", tmp_path, "--tokens", "50"]
    told = analyze(capsys, *words)
    assert "the first 50 are shown" in told["traces"][0]["notes"][0]
    (trace,) = json.loads((tmp_path / "trace.json").read_text())["traces"]
    assert len(trace["ids"]) == 50 and trace["num_tokens"] == len(TEXT.encode())


def test_a_text_shorter_than_a_chunk_is_read_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = save_checkpoint(tmp_path / "model", "lmm", memory={"chunk_size": 64})
    short = tmp_path / "short.txt"
    short.write_text("Hi there")
    assert main(["analyze", str(checkpoint), "--text", str(short), "--out", str(tmp_path)]) == 0
    assert "8 tokens, fewer than one chunk of 64" in capsys.readouterr().err
    assert "fewer than one chunk" in (tmp_path / "report.html").read_text()


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(["analyze", *map(str, words)]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("titans analyze: ") and "Traceback" not in error
    return error


def test_odd_texts_are_refused(
    mag_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "odd"
    for content, message in (
        (b"", "is empty: there is nothing to analyse"),
        (b"\x7fELF\x02\x01\x00\x00", "not a text: byte 6 is zero"),
        (b"\xff\xd8\xff\xe0", "not UTF-8 text at byte 0 (0xff)"),
        (b"x", "the text has 1 token, and at least 2 are needed"),
    ):
        odd.write_bytes(content)
        assert message in refused(capsys, mag_checkpoint, "--text", odd, "--out", tmp_path / "o")
    gone = tmp_path / "gone.txt"
    assert "no such file" in refused(capsys, mag_checkpoint, "--text", gone)
    assert not (tmp_path / "o").exists(), "nothing is written when nothing was read"


def test_odd_checkpoints_are_refused(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--text", text_file, "--out", tmp_path / "o")
    baseline = save_checkpoint(tmp_path / "swa", "swa")
    assert "a 'swa' model, a baseline without a neural memory" in refused(capsys, baseline, *words)
    assert "no checkpoint: it has no config.json" in refused(capsys, tmp_path, *words)
    newer = save_checkpoint(tmp_path / "newer", "lmm")
    config = json.loads((newer / "config.json").read_text())
    config["checkpoint_version"] += 1
    (newer / "config.json").write_text(json.dumps(config))
    message = refused(capsys, newer, *words)
    assert "newer version of titans-neural-memory (layout 3" in message and "upgrade" in message
    bare = save_checkpoint(tmp_path / "bare", "lmm")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    assert "no tokenizer beside the model" in refused(capsys, bare, *words)


def test_wrong_use_is_told(
    mag_checkpoint: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["analyze", str(mag_checkpoint), "--text", str(text_file), "--tokens", "1"])
    assert "--tokens: give a whole number of at least 2; got '1'" in capsys.readouterr().err


def test_help_has_examples_and_is_instant() -> None:
    assert build_parser("analyze").format_help().count("  titans analyze ") >= 3
    code = "from titans.cli.main import main; main(['analyze', '--help'])"
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True)
    assert done.returncode == 0
    assert time.perf_counter() - begin < 10
    assert b"torch" not in done.stderr


def test_the_example_in_the_docs_runs() -> None:
    doc = Path(__file__).parents[2] / "docs" / "analyze.md"
    (example,) = re.findall(r"```python\n(.*?)```", doc.read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(compile(example, str(doc), "exec"), names)
    assert names["record"].num_tokens == 512
    assert len(names["figure"].axes) == 4
    for link in re.findall(r"\]\(([^)#]+)\)", doc.read_text()):
        assert (doc.parent / link).exists(), link
    for path in re.findall(r"`((?:tests|docs|checkpoints)/[\w./-]+)`", doc.read_text()):
        assert (doc.parents[1] / path).exists(), path
