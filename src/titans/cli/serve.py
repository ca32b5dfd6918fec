"""`titans serve`: the text memory as a server."""

import argparse
import importlib.util
import logging
import socket
import sys
from typing import TYPE_CHECKING

from titans.cli.keys import add_keys_option, open_ring
from titans.cli.store_options import add_store_options, memory_options, store_place
from titans.cli.values import number, whole
from titans.errors import ConfigError

if TYPE_CHECKING:
    from titans.analysis.subject import Subject
    from titans.recall import TextGenerator

EXAMPLES = """examples:
  titans serve
  titans serve --port 9000 --store work.db --llm openai:qwen3 --url http://localhost:8000/v1
  titans serve --playground checkpoints/bytes-mac
  titans keys make phone --scope ann && titans serve --host 0.0.0.0

On 127.0.0.1 no key is needed as long as none was made. Elsewhere every call needs one.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=whole(0, 65535), default=8765, help="0 takes a free one")
    add_store_options(parser, with_scope=False)
    add_keys_option(parser)
    parser.add_argument(
        "--llm",
        help="the model of the chat: smollm (if installed), gguf:FILE, hf:NAME, openai:MODEL",
    )
    parser.add_argument("--url", help="of an OpenAI-compatible server that has the model")
    parser.add_argument("--window", type=whole(), help="tokens that the model can see at once")
    parser.add_argument(
        "--remember-answers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="remember what the model says, too (yes)",
    )
    parser.add_argument(
        "--upstream-timeout",
        type=number(above=True),
        default=120.0,
        help="seconds until a model that says nothing is given up (120)",
    )
    parser.add_argument(
        "--answers", type=whole(), default=4, help="answers of the model at once (4)"
    )
    parser.add_argument(
        "--playground", metavar="CHECKPOINT", help="a Titans model that reads texts on the page"
    )
    parser.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin call the server (none)",
    )
    parser.add_argument(
        "--body-limit", type=whole(), default=2**20, help="bytes of a request (1048576)"
    )
    parser.add_argument(
        "--import-limit", type=whole(), default=2**26, help="bytes of an imported file (67108864)"
    )
    parser.add_argument(
        "--rate", type=number(above=True), default=100.0, help="requests per second and key (100)"
    )
    parser.add_argument(
        "--concurrency", type=whole(), default=256, help="requests under way at once (256)"
    )
    parser.add_argument(
        "--queue", type=whole(), default=64, help="calls that may wait for one scope (64)"
    )
    parser.add_argument(
        "--telemetry", action="store_true", help="OpenTelemetry spans, without texts; see the docs"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until it is stopped."""
    from titans.recall.store import shown

    try:
        import uvicorn

        from titans.server import ServerConfig, create_app
        from titans.server.config import check_reach
    except ImportError as error:
        raise ConfigError(
            f"the server needs {error.name}: pip install 'titans-neural-memory[serve]'"
        ) from error

    if args.telemetry:
        _trace()
    config = ServerConfig(
        host=args.host,
        port=args.port,
        cors=tuple(args.cors),
        body_limit=args.body_limit,
        import_limit=args.import_limit,
        rate=args.rate,
        concurrency=args.concurrency,
        queue=args.queue,
        answers=args.answers,
        upstream_timeout=args.upstream_timeout,
    )
    ring = open_ring(args)
    check_reach(config, ring)
    with _listen(config.host, config.port) as listener:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("titans.server").setLevel(logging.INFO)
        place = store_place(args, must_exist=False)
        settings, encoder = memory_options(args)
        app = create_app(
            place,
            ring,
            config,
            settings,
            encoder=encoder,
            llm=_model(args),
            remember_answers=args.remember_answers,
            playground=_reader(args.playground),
        )
        host, port = listener.getsockname()[:2]
        who = "every call needs a key" if ring else "no key needed on this machine"
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"http://{address} (store {shown(place)}; {who})", file=sys.stderr, flush=True)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=10,
            )
        )
        server.run(sockets=[listener])
    return 0


def _trace() -> None:
    try:
        from titans.integrations.telemetry import instrument
    except ImportError as error:
        raise ConfigError(
            f"--telemetry needs {error.name}: pip install 'titans-neural-memory[telemetry]'"
        ) from error
    instrument()


def _model(args: argparse.Namespace) -> "TextGenerator | None":
    """The model that the options name; none if none is named and the offline one is not there."""
    from titans.recall import load_generator
    from titans.recall.generator import SMOLLM_PACKAGE

    if args.llm is None and importlib.util.find_spec(SMOLLM_PACKAGE) is None:
        print("no model for the chat: see --llm", file=sys.stderr)
        return None
    return load_generator(
        args.llm or "smollm",
        url=args.url,
        window=args.window,
        timeout=args.upstream_timeout,
        trust_remote_code=args.trust_remote_code,
    )


def _reader(folder: str | None) -> "Subject | None":
    from titans.analysis.subject import Subject

    return None if folder is None else Subject.load(folder)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or why there cannot be one."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port} ({error.strerror or error}): choose another "
            "with --host or --port"
        ) from error
