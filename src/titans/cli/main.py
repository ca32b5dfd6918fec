"""`titans COMMAND`: one file per command in this folder; this one only chooses among them.

Nothing heavy is imported before a command is chosen, so `titans --help` answers at once.
A command file has `configure(parser)` and `run(args) -> int` (0 done, 1 failed, 2 wrong use).
"""

import argparse
import importlib
import keyword
import os
import sys
import traceback
from collections.abc import Sequence

from titans.cli.failures import DONE, STOPPED, Parser, exit_code, explain

COMMANDS: dict[str, str] = {
    "demo": "watch two small models read a book with secrets in it; under a minute",
    "generate": "continue a text with a trained model, streaming",
    "train": "train a model from a configuration: `titans train mac --data book.txt`",
    "config": "list and show the configurations that ship with the package",
    "tokenizer": "learn a byte-level BPE vocabulary",
    "plot": "draw the curves of one or several runs",
    "tune": "search hyper-parameters with Optuna",
    "eval": "run a benchmark on a checkpoint and write a record",
    "analyze": "look into a memory: what surprised it, what it kept, what it is worth",
    "sweep": "train and evaluate a declared table of runs, resumable, under a time budget",
    "remember": "store a text in the text memory",
    "recall": "ask the text memory",
    "list": "the records of the text memory, newest first",
    "show": "all that is known about one record",
    "mark": "change how long a record is kept and how much it weighs",
    "forget": "remove records permanently: text, index, traces in files and in the neural memory",
    "export": "write the records of a scope as JSON lines",
    "import": "remember a file: an export of this or another program, CSV, a text",
    "chat": "a terminal chat that remembers between runs",
    "serve": "the text memory as a server: REST, an OpenAI-compatible chat, MCP, a page",
    "mcp": "the text memory as tools for an agent, over standard input and output",
    "keys": "make, list and revoke the keys of a server",
    "memory": "upkeep of the text memory: stats, summary, expire, check, repair, train",
}
"""Command name (and file name in this folder) -> one line of help."""

EXAMPLES = """examples:
  titans demo
  titans remember "My dog is called Rex." && titans recall "What is the dog called?"
  titans train mac --data sample
  titans generate runs/mac --prompt "Once upon a time"
"""


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command, from its own file."""
    file = f"{command}_" if keyword.iskeyword(command) else command
    module = importlib.import_module(f"titans.cli.{file}")
    parser = Parser(
        prog=f"titans {command}",
        description=COMMANDS[command],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    parser.set_defaults(run=module.run)
    return parser


def overview() -> argparse.ArgumentParser:
    """The parser of `titans` itself: it knows the commands' names and nothing else."""
    width = max(len(name) for name in COMMANDS)
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    parser = Parser(
        prog="titans",
        description=f"Neural long-term memory that learns while it reads.\n\ncommands:\n{lines}",
        epilog=EXAMPLES + "\n`titans COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    parser.add_argument("--debug", action="store_true", help="show where an error arose")
    parser.add_argument("--version", action="version", version=_version())
    return parser


def _version() -> str:
    import titans

    return f"titans {titans.__version__}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. An error is one line on stderr; after `--debug`, also where it arose."""
    words = list(sys.argv[1:] if argv is None else argv)
    end = 2 if words[:1] == ["--debug"] else 1
    start = overview().parse_args(words[:end])
    rest = words[end:]
    if start.command == "memory" and rest[:1] in (["forget"], ["export"], ["import"]):
        # Where these commands were until version 0.1.
        start.command = rest.pop(0)
    try:
        args = build_parser(start.command).parse_args(rest)
        code = int(args.run(args) or DONE)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has gone (`titans ... | head`): not an error of ours.
        _drop_output()
        return DONE
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return STOPPED
    except Exception as error:
        if start.debug:
            traceback.print_exc()
        print(f"titans {start.command}: {explain(error, start.command)}", file=sys.stderr)
        _drop_output()
        return exit_code(error)


def _drop_output() -> None:
    """What could not be printed is not tried again when the process ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def train() -> int:
    """`titans-train` is `titans train`."""
    return main(["train", *sys.argv[1:]])


def generate() -> int:
    """`titans-infer` is `titans generate`."""
    return main(["generate", *sys.argv[1:]])


def analyze() -> int:
    """`titans-analyze` is `titans analyze`."""
    return main(["analyze", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
