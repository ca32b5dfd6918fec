"""What a training took, read from its log (`log.jsonl`)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

LOG_NAME = "log.jsonl"


class Trained(NamedTuple):
    """What a training came to."""

    steps: int
    tokens: int
    seconds: float


def read_training(log: Path) -> Trained | None:
    """Steps, tokens and seconds of a run; None without a log, or before its first line."""
    if not log.is_file():
        return None
    lines = [_line(text) for text in log.read_text(encoding="utf-8").splitlines()]
    train = [line for line in lines if line.get("kind") == "train"]
    if not train:
        return None
    last = train[-1]
    return Trained(last["step"], last["tokens"], sum(line["seconds"] for line in train))


def add_up(runs: Sequence[Trained]) -> Trained:
    """Runs one after the other as one training."""
    return Trained(
        sum(run.steps for run in runs),
        sum(run.tokens for run in runs),
        sum(run.seconds for run in runs),
    )


def _line(text: str) -> dict[str, Any]:
    """One line of the log; empty for half a line, which a killed process may leave."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {}
