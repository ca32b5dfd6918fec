"""docs/cli.md from `--help` of every command: `python tools/cli_page.py`."""

import argparse
import os
from pathlib import Path
from unittest import mock

from titans.cli.main import COMMANDS, build_parser, overview

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
INTRODUCTION = """\
# Command line

Made from `--help` of every command by `python tools/cli_page.py`; do not edit. Files of
configurations, checkpoints and texts in the examples are those of the project's folder.
"""


def sections(parser: argparse.ArgumentParser) -> list[str]:
    """The help of a command and of its actions, each under a heading."""
    found = [f"## {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```\n"]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                found += sections(inner)
    return found


def page() -> str:
    """The whole page, as 80 columns show it."""
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        parsers = [overview(), *(build_parser(command) for command in COMMANDS)]
        return "\n".join([INTRODUCTION, *(part for parser in parsers for part in sections(parser))])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
