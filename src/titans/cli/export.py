"""`titans export FILE`: a scope of the text memory as JSON lines."""

import argparse
import sys
from pathlib import Path

from titans.cli.store_options import add_json_option, add_store_options, open_memory, show

EXAMPLES = """examples:
  titans export backup.jsonl
  titans export backup.jsonl --scope work
  titans export - | head -3
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("file", metavar="FILE", type=Path, help="- is standard output")
    add_store_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write every record on a line of its own."""
    from titans.files import writing
    from titans.recall import export_records

    with open_memory(args, must_exist=True) as memory:
        if str(args.file) == "-":
            export_records(memory, sys.stdout)
            return 0
        with writing(args.file, inputs=memory.store.files) as file:
            count = export_records(memory, file)
    show({"exported": count, "file": str(args.file)}, args)
    return 0
