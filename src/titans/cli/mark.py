"""`titans mark ID`: change how long a record is kept and how much it weighs."""

import argparse

from titans.cli.store_options import (
    add_json_option,
    add_store_options,
    open_memory,
    record_values,
    show,
)
from titans.cli.values import number

EXAMPLES = """examples:
  titans mark 3f2a9c --pin
  titans mark 3f2a9c --expires 2027-01-01 --importance 0.5
  titans mark 3f2a9c --expires never --unpin

What has expired is not recalled; `titans memory expire` removes it permanently.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("id", metavar="ID", help="what `titans list` and `titans recall` print")
    parser.add_argument("--expires", metavar="TIME", help="from when on it is not recalled; never")
    parser.add_argument("--importance", type=number(0, 1), help="weight in scores, in [0, 1]")
    pinned = parser.add_mutually_exclusive_group()
    pinned.add_argument(
        "--pin", dest="pinned", action="store_true", default=None, help="it never expires"
    )
    pinned.add_argument(
        "--unpin", dest="pinned", action="store_false", default=None, help="it may expire"
    )
    add_store_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Mark the record, and print it."""
    with open_memory(args, must_exist=True) as memory:
        record = memory.mark(
            args.id, expires=args.expires, importance=args.importance, pinned=args.pinned
        )
    show(record_values(record), args)
    return 0
