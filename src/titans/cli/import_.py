"""`titans import FILE`: remember what a file of this or another program holds."""

import argparse
from pathlib import Path

from titans.cli.store_options import add_json_option, add_store_options, open_memory, show

EXAMPLES = """examples:
  titans import backup.jsonl
  titans import backup.jsonl --scope work --json
  titans import conversations.json --scope ann
  cat notes.jsonl | titans import -

Its content says what a file is: what `titans export` writes (lines with `text` and, if known,
`speaker`, `time`, `id`, `metadata`), OpenAI messages, exports of ChatGPT, Claude or mem0, the
memory.jsonl of MCP's reference server, CSV with a column `text`, or plain text and Markdown,
paragraph by paragraph. The same file again adds nothing.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("file", metavar="FILE", type=Path, help="- is standard input")
    add_store_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Store what is new."""
    from titans.cli.progress import Bar
    from titans.files import read_stdin, read_text
    from titans.recall import import_records
    from titans.recall.importers import as_lines

    content = read_stdin() if str(args.file) == "-" else read_text(args.file)
    lines = as_lines(content, str(args.file))
    with open_memory(args) as memory, Bar("importing", len(lines)) as bar:
        new = import_records(memory, lines, progress=bar.reach)
    show({"imported": new}, args)
    return 0
