"""`titans import FILE`: remember every line of a JSON lines file."""

import argparse
import sys
from pathlib import Path

from titans.cli.store_options import add_json_option, add_store_options, open_memory, show

EXAMPLES = """examples:
  titans import backup.jsonl
  titans import backup.jsonl --scope work --json
  cat notes.jsonl | titans import -

A line is an object with `text` and, if known, `speaker`, `time`, `id` and `metadata`: what
`titans export` writes. The same file again adds nothing.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("file", metavar="FILE", type=Path, help="- is standard input")
    add_store_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Store what is new."""
    from titans.cli.progress import Bar
    from titans.files import read_text
    from titans.recall import import_records

    content = sys.stdin.read() if str(args.file) == "-" else read_text(args.file)
    # Only by line feed: texts may hold other characters that count as line ends.
    lines = content.split("\n")
    with open_memory(args) as memory, Bar("importing", len(lines)) as bar:
        new = import_records(memory, lines, progress=bar.reach)
    show({"imported": new}, args)
    return 0
