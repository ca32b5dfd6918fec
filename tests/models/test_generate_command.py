"""`titans generate` on a tiny checkpoint."""

import json
from pathlib import Path

import pytest
import torch

from support.models import tiny_config
from titans.cli.main import build_parser, main
from titans.data.tokenizer import byte_tokenizer
from titans.models import TitansCache, TitansForCausalLM
from titans.models.generation import TextStream


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    TitansForCausalLM(tiny_config("mac", vocab_size=len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def generate(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["generate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_same_seed_same_text(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [checkpoint, "--prompt", "Call me", "--max-new-tokens", "9", "--seed", "4"]
    first = generate(capsys, *words)
    assert generate(capsys, *words)["text"] == first["text"]
    assert main(["generate", *words]) == 0
    assert capsys.readouterr().out == first["text"] + "\n"
    assert first["new_tokens"] <= 9
    assert first["prompt_tokens"] == 7


def test_state_carries_a_text_into_another_call(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book, state = tmp_path / "book.txt", str(tmp_path / "book.state")
    book.write_text("In the beginning there was a very long text. " * 3)
    read = generate(
        capsys,
        checkpoint,
        "--prompt-file",
        str(book),
        "--max-new-tokens",
        "0",
        "--state-out",
        state,
    )
    assert (read["text"], read["position"]) == ("", read["prompt_tokens"])
    asked = ["--temperature", "0", "--max-new-tokens", "8"]
    later = generate(capsys, checkpoint, "--state-in", state, "--prompt", "So?", *asked)
    whole = book.read_text() + "So?"
    at_once = generate(capsys, checkpoint, "--prompt", whole, *asked)
    assert later["text"] == at_once["text"]
    assert later["position"] == at_once["position"]
    assert later["state_bytes"] == TitansCache.load(state).num_bytes


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere", "--prompt", "x"], 1, "is no checkpoint: it has no config.json"),
        (["{checkpoint}", "--prompt", ""], 1, "the prompt is empty"),
        (["{checkpoint}", "--prompt", "x", "--top-p", "2"], 2, "at most 1; got '2'"),
        (["{checkpoint}", "--prompt", "x", "--state-in", "gone"], 1, "gone: no such file"),
        (["{checkpoint}", "--prompt-file", "gone.txt"], 1, "gone.txt"),
    ],
)
def test_errors_are_one_line(
    checkpoint: str, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    filled = [word.replace("{checkpoint}", checkpoint) for word in words]
    try:
        found = main(["generate", *filled])
    except SystemExit as end:  # argparse ends the process
        found = end.code
    assert found == code
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "Traceback" not in error


def test_help_has_examples() -> None:
    assert build_parser("generate").format_help().count("titans generate runs") >= 3


def test_text_stream_holds_back_half_characters() -> None:
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer)
    text = "naïve €\n日本"
    pieces = [stream.push(byte) for byte in text.encode()]
    assert "".join(pieces) + stream.finish() == text
    assert "" in pieces
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
