"""`titans config`: the configurations that ship with the package."""

import argparse
import sys

EXAMPLES = """examples:
  titans config list
  titans config show mac
  titans config show mac > my.yaml && titans train my.yaml --data book.txt
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="name every configuration and say what it trains")
    show = actions.add_parser("show", help="print a configuration")
    show.add_argument("name", metavar="NAME", help="mac, mag, ...")


def run(args: argparse.Namespace) -> int:
    """List them, or print one."""
    from titans import shipped
    from titans.errors import ConfigError
    from titans.files import read_text

    names = shipped.config_names()
    if args.action == "list":
        width = max(map(len, names))
        for name in names:
            print(f"{name:<{width}}  {_first_sentence(read_text(shipped.find_config(name)))}")
        return 0
    if args.name not in names:
        from titans.settings import nearest

        raise ConfigError(f"no configuration {args.name!r}{nearest(args.name, names)}")
    sys.stdout.write(read_text(shipped.find_config(args.name)))
    return 0


def _first_sentence(text: str) -> str:
    """What the comment at the top says first."""
    line = text.splitlines()[0].removeprefix("#").strip()
    return line.split(". ")[0].rstrip(".:")
