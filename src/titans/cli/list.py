"""`titans list`: the records of the text memory, newest first."""

import argparse

from titans.cli.store_options import (
    add_filter_options,
    add_json_option,
    add_store_options,
    as_json,
    filter_of,
    open_memory,
    print_record,
)
from titans.cli.values import whole

EXAMPLES = """examples:
  titans list
  titans list -n 100 --speaker Ann --after 2024-05-01
  titans list --beyond 3f2a9c --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("-n", type=whole(), default=20, help="how many records (20)")
    parser.add_argument("--beyond", metavar="ID", help="go on after this record")
    add_filter_options(parser)
    add_store_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print a page of records."""
    with open_memory(args, must_exist=True) as memory:
        found = memory.records(
            **filter_of(args),
            newest_first=True,
            limit=args.n,
            beyond=args.beyond,
        )
    if args.json:
        print(as_json([record.as_dict() for record in found]))
        return 0
    for record in found:
        print_record(record)
    if not found:
        print("no records")
    elif len(found) == args.n:
        print(f"there may be more: titans list --beyond {found[-1].id}")
    return 0
