"""`titans show ID`: a record of the text memory, and how what it states has changed."""

import argparse

from titans.cli.store_options import (
    add_json_option,
    add_store_options,
    open_memory,
    print_record,
    record_values,
    show,
)

EXAMPLES = """examples:
  titans show 3f2a9c
  titans show 3f2a9c --scope work --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("id", metavar="ID", help="what `titans list` and `titans recall` print")
    add_store_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the record and its chain of updates."""
    from titans.errors import DataError

    with open_memory(args, must_exist=True) as memory:
        record = memory.get(args.id)
        if record is None:
            raise DataError(
                f"no record {args.id!r} in scope {args.scope!r}; `titans list` shows ids"
            )
        history = memory.history(args.id)
    values = record_values(record)
    if args.json:
        values["history"] = [statement.as_dict() for statement in history]
    show(values, args)
    if len(history) > 1 and not args.json:
        print("history, oldest first:")
        for statement in history:
            print_record(statement)
    return 0
