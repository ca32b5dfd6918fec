"""`titans COMMAND`: one file per command in this folder; this one only chooses among them.

Nothing heavy is imported before a command is chosen, so `titans --help` answers at once.
A command file has `configure(parser)` and `run(args) -> int` (0 done, 1 failed, 2 wrong use).
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from titans.errors import TitansError

COMMANDS: dict[str, str] = {
    "generate": "continue a text with a trained model, streaming",
    "train": "train a model from a configuration: `titans train configs/mac.yaml`",
    "tokenizer": "learn a byte-level BPE vocabulary",
    "plot": "draw the curves of one or several runs",
    "tune": "search hyper-parameters with Optuna",
    "eval": "run a benchmark on a checkpoint and write a record",
    "analyze": "look into a memory: what surprised it, what it kept, what it is worth",
    "sweep": "train and evaluate a declared table of runs, resumable, under a time budget",
    "remember": "store a text in the text memory",
    "recall": "ask the text memory",
    "chat": "a terminal chat that remembers between runs",
    "memory": "upkeep of the text memory: stats, export, import, forget, train",
}
"""Command name (and file name in this folder) -> one line of help."""

EXAMPLES = """examples:
  titans generate CHECKPOINT --prompt "Once upon a time"
"""


def build_parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command, from its own file."""
    module = importlib.import_module(f"titans.cli.{command}")
    parser = argparse.ArgumentParser(
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
    parser = argparse.ArgumentParser(
        prog="titans",
        description=f"Neural long-term memory that learns while it reads.\n\ncommands:\n{lines}",
        epilog=EXAMPLES + "\n`titans COMMAND --help` tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    parser.add_argument("--version", action="version", version=_version())
    return parser


def _version() -> str:
    from importlib.metadata import version

    return f"titans {version('titans-neural-memory')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Errors that we raise on purpose are one line on stderr, not a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = overview().parse_args(words[:1]).command
    args = build_parser(chosen).parse_args(words[1:])
    try:
        return int(args.run(args) or 0)
    except (TitansError, FileNotFoundError, PermissionError, IsADirectoryError) as error:
        print(f"titans {chosen}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone (`titans ... | head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


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
