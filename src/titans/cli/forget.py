"""`titans forget`: remove records of the text memory permanently."""

import argparse

from titans.cli.store_options import (
    add_filter_options,
    add_json_option,
    add_store_options,
    filter_of,
    forgotten,
    open_memory,
    show,
)

EXAMPLES = """examples:
  titans forget 3f2a9c
  titans forget --before 2023-01-01 --scope work
  titans forget --speaker Ann --metadata '{"topic": "health"}'
  titans forget --all --scope work

`titans list` and `titans recall` print the ids. What is forgotten is gone from the file, from the
index and from the weights of the neural memory.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    what = parser.add_mutually_exclusive_group()
    what.add_argument("id", nargs="?", metavar="ID", help="one record")
    what.add_argument("--id", dest="named", metavar="ID", help=argparse.SUPPRESS)
    what.add_argument("--all", action="store_true", help="the whole scope")
    add_filter_options(parser)
    add_store_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Remove, and say how much."""
    from titans.cli.progress import Bar
    from titans.errors import ConfigError

    wanted, id = filter_of(args), args.id or args.named
    is_filter = any(value is not None for value in wanted.values())
    if (id is not None) + args.all + is_filter != 1:
        raise ConfigError(
            "name an ID, --all, or a filter (--before, --after, --speaker, --metadata), only one "
            "of the three"
        )
    with open_memory(args, must_exist=True) as memory, Bar("replaying") as bar:
        if args.all:
            done = memory.forget(scope=args.scope)
        else:
            done = memory.forget(id, **wanted, progress=bar.reach)
    show(forgotten(done), args)
    return 0
