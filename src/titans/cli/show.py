"""`titans show ID`: all that is known about one record of the text memory."""

import argparse

from titans.cli.store_options import add_json_option, add_store_options, open_memory, show

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
    """Print the record."""
    from titans.errors import DataError

    with open_memory(args, must_exist=True) as memory:
        record = memory.get(args.id)
    if record is None:
        raise DataError(f"no record {args.id!r} in scope {args.scope!r}; `titans list` shows ids")
    show({name: v for name, v in record.as_dict().items() if name != "is_new"}, args)
    return 0
