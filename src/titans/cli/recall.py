"""`titans recall QUERY`: what the text memory knows about something."""

import argparse

from titans.cli.store_options import (
    add_filter_options,
    add_store_options,
    as_json,
    filter_of,
    open_memory,
)
from titans.cli.values import number, whole

EXAMPLES = """examples:
  titans recall "What is the dog called?"
  titans recall "When do we meet?" -k 5 --after 2024-05-01 --speaker Ann --scope work
  titans recall "Where do I live?" --at 2020-06
  titans recall "dog" --metadata '{"topic": "pets"}' --threshold 0.2 --explain --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("query", metavar="QUERY", help="a question or a few words")
    parser.add_argument("-k", type=whole(), default=3, help="how many records (3)")
    add_filter_options(parser)
    parser.add_argument("--at", metavar="TIME", help="as known then: 2020-06-01, 2020-06 or 2020")
    parser.add_argument(
        "--threshold", type=number(0, 1), help="only scores of at least this, in [0, 1]"
    )
    parser.add_argument("--explain", action="store_true", help="what every feature contributed")
    add_store_options(parser)
    parser.add_argument("--json", action="store_true", help="print the records as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the records, best first."""
    from titans.errors import ConfigError
    from titans.recall.prompt import quote_name
    from titans.recall.records import as_sum
    from titans.terminal import printable

    with open_memory(args, must_exist=True) as memory:
        try:
            found = memory.recall(
                args.query,
                args.k,
                **filter_of(args),
                at=args.at,
                threshold=args.threshold,
                explain=args.explain,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if args.json:
        print(as_json([r.as_dict() for r in found]))
        return 0
    if not found:
        print("nothing found")
    for r in found:
        who = f"{quote_name(r.speaker)}: " if r.speaker else ""
        print(f"{r.score:.2f}  [{r.time:%Y-%m-%d}] {who}{printable(r.passage or r.text)}")
        print(f"      {printable(r.why)}  id {printable(r.id)}")
        print(f"      {as_sum(r.parts)}")
        if r.succeeded_by:
            print(f"      updated by {printable(r.succeeded_by)}")
        for name, f in (r.explanation or {}).items():
            print(f"      {name:<16} {f['value']:7.3f} gives {f['contribution']:7.3f}")
    return 0
