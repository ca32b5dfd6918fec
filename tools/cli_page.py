"""docs/cli.md from `--help` of every command: `python tools/cli_page.py`."""

import argparse
import os
import re
from pathlib import Path
from unittest import mock

from titans.cli.main import COMMANDS, build_parser, overview

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
INTRODUCTION = """\
# Command line

Made from `--help` of every command by `python tools/cli_page.py`; do not edit. Files of
configurations, checkpoints and texts in the examples are those of the project's folder. `--help`
also prints each command's usage line.
"""
HELP_OPTION = re.compile(r"^  -h, --help +show this help message and exit\n", re.MULTILINE)


def sections(parser: argparse.ArgumentParser) -> list[str]:
    """The help of a command and of its actions, each under a heading."""
    with mock.patch.object(parser, "usage", argparse.SUPPRESS):
        text = HELP_OPTION.sub("", parser.format_help()).strip()
    text = re.sub(r"(^|\n\n)options:(\n\n|$)", r"\2", text).strip()
    found = [f"## {parser.prog}\n\n```text\n{text}\n```\n"]
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
