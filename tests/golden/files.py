"""Where the golden files are, and how they are read and written."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def read(name: str) -> Any:
    """A golden JSON file."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def write(name: str, value: dict[str, Any]) -> None:
    """A golden JSON file with one line per entry, every float in full."""
    lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
    DATA.mkdir(exist_ok=True)
    (DATA / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
