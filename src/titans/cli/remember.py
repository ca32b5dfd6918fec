"""`titans remember TEXT`: store a text in the text memory."""

import argparse

from titans.cli.store_options import add_store_options, as_json, open_memory
from titans.cli.values import json_object, number

EXAMPLES = """examples:
  titans remember "My dog is called Rex."
  titans remember "We meet on Friday." --speaker Ann --time 2024-05-31T14:30 --scope work
  titans remember "The door code is 7719." --expires 2027-01-01 --importance 0.5
  echo "a text from a pipe" | titans remember - --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("text", metavar="TEXT", help="what to remember; - reads standard input")
    parser.add_argument("--speaker", help="who said it")
    parser.add_argument("--time", help="when, in ISO 8601; without a zone it is UTC (now)")
    parser.add_argument("--id", help="an id of your own; the same again changes nothing")
    parser.add_argument("--metadata", type=json_object, help="a JSON object", metavar="JSON")
    parser.add_argument("--expires", metavar="TIME", help="from when on it is not recalled")
    parser.add_argument(
        "--importance", type=number(0, 1), default=0.0, help="weight in scores, in [0, 1] (0)"
    )
    parser.add_argument("--pin", action="store_true", help="it never expires")
    add_store_options(parser)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")


def run(args: argparse.Namespace) -> int:
    """Store the text, say how surprising it was."""
    from titans.cli.progress import Bar
    from titans.files import read_stdin
    from titans.terminal import printable

    text = read_stdin() if args.text == "-" else args.text
    with open_memory(args) as memory, Bar("encoding") as bar:
        record = memory.remember(
            text,
            speaker=args.speaker,
            time=args.time,
            id=args.id,
            metadata=args.metadata,
            expires=args.expires,
            importance=args.importance,
            pinned=args.pin,
            progress=bar.reach,
        )
    if args.json:
        print(as_json(record.as_dict()))
        return 0
    known = "" if record.is_new else " (was there already)"
    print(f"remembered {printable(record.id)}{known}")
    action = (
        "written to the neural memory" if record.written else "not written to the neural memory"
    )
    print(f"  {action}: {record.reason}")
    if record.duplicate_of:
        print(f"  says the same as {printable(record.duplicate_of)}")
    if record.successor_of:
        print(f"  updates {printable(record.successor_of)}")
    return 0
