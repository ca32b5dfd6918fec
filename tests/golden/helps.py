"""`--help` of `titans` and of every command and sub-command, as 80 columns show it."""

import argparse
import os
from unittest import mock

from titans.cli.main import COMMANDS, build_parser, overview


def helps() -> dict[str, str]:
    """Command -> its help."""
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        found = {"titans": overview().format_help()}
        for command in COMMANDS:
            found |= _with_actions(build_parser(command))
    return found


def _with_actions(parser: argparse.ArgumentParser) -> dict[str, str]:
    found = {parser.prog: parser.format_help()}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                found |= _with_actions(inner)
    return found
