"""`titans mcp`: the text memory as tools for an agent, over standard input and output."""

import argparse
import logging

from titans.cli.store_options import add_store_options, memory_options, store_place
from titans.errors import ConfigError

EXAMPLES = """examples:
  titans mcp
  titans mcp --scope ann --store memory.db

An agent starts this command by itself. For Claude Code: claude mcp add titans -- titans mcp
`titans serve` offers the same tools over HTTP at /mcp.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    add_store_options(parser)


def run(args: argparse.Namespace) -> int:
    """Answer on standard output until the input ends."""
    try:
        import anyio

        from titans.server.tools import make_tools
    except ImportError as error:
        raise ConfigError(
            f"the tools need {error.name}: pip install 'titans-neural-memory[mcp]'"
        ) from error
    from titans.recall import TextMemory
    from titans.server.hub import Hub
    from titans.server.verbs import Verbs

    logging.basicConfig(level=logging.WARNING)
    place = store_place(args, must_exist=False)
    settings, encoder = memory_options(args)
    with TextMemory(place, args.scope, settings, encoder=encoder) as memory:
        encoder = memory.encoder
    hub = Hub(place, settings, encoder, queue=64, open_scopes=1)

    async def serve() -> None:
        try:
            await make_tools(Verbs(hub), scope=args.scope).run_stdio_async()
        finally:
            await hub.close()

    anyio.run(serve)
    return 0
