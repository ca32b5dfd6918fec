"""`--help` says what it said; a new command or flag is recorded with its change (record.py)."""

from golden.files import DATA
from golden.helps import helps


def test_help() -> None:
    found = {f"{command.replace(' ', '-')}.txt": text for command, text in helps().items()}
    recorded = {p.name: p.read_text(encoding="utf-8") for p in (DATA / "help").glob("*.txt")}
    assert found.keys() == recorded.keys()
    for name, text in found.items():
        assert text == recorded[name], f"{name} changed: golden/record.py"
