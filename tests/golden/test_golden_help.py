"""`--help` says what docs/cli.md says; a changed flag changes the page in the same commit."""

from tools import cli_page


def test_help() -> None:
    page = cli_page.PAGE.read_text(encoding="utf-8")
    assert page == cli_page.page(), "help changed: run `python tools/cli_page.py`"
