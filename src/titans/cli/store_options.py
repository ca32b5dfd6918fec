"""Options that every command on a text memory shares: which store, which scope, which encoder."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans.cli.values import json_object

if TYPE_CHECKING:
    from titans.recall import Encoder, RecallConfig, Record, TextMemory
    from titans.recall.forgetting import Forgotten


def add_store_options(parser: argparse.ArgumentParser, *, with_scope: bool = True) -> None:
    """Declare which store, scope, preset, encoder and checkpoint."""
    # A second thread makes one short text slower, not faster. NumPy and PyTorch read it when they
    # are loaded, which is later.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser.add_argument(
        "--store",
        type=_place,
        help="a file, or postgresql://... (TITANS_STORE, else the user's data folder)",
    )
    if with_scope:
        parser.add_argument("--scope", default="default", help="whose memory (default)")
    parser.add_argument(
        "--preset", choices=["default", "classic"], help="settings of a new store (default)"
    )
    parser.add_argument(
        "--encoder", help="minilm, hashing, or a Hugging Face model by name or path (minilm)"
    )
    add_trust_option(parser)
    parser.add_argument("--checkpoint", help="what `titans memory train` wrote")


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Declare --trust-remote-code, without which no code of a Hugging Face model is run."""
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code that a Hugging Face model brings; read it first",
    )


def add_filter_options(parser: argparse.ArgumentParser) -> None:
    """Declare which records are meant."""
    parser.add_argument("--before", help="only from before this time (ISO 8601, exclusive)")
    parser.add_argument("--after", help="only from this time on (ISO 8601, inclusive)")
    parser.add_argument("--speaker", help="only what this speaker said")
    parser.add_argument(
        "--metadata",
        type=json_object,
        metavar="JSON",
        help="only with these fields and values: a JSON object",
    )


def filter_of(args: argparse.Namespace) -> dict[str, Any]:
    """The records that the options mean, as arguments of the text memory."""
    return {name: getattr(args, name) for name in ("before", "after", "speaker", "metadata")}


def _place(text: str) -> str | Path:
    """A store: the path of a file, or an address."""
    return text if "://" in text else Path(text)


def default_store() -> str | Path:
    """TITANS_STORE, or memory.db in the user's data folder."""
    chosen = os.environ.get("TITANS_STORE")
    return _place(chosen) if chosen else data_folder() / "memory.db"


def data_folder() -> Path:
    """Where this program keeps a user's data."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "titans"


def open_memory(args: argparse.Namespace, *, must_exist: bool = False) -> "TextMemory":
    """The text memory that the options name."""
    from titans.recall import TextMemory

    place = store_place(args, must_exist=must_exist)
    config, encoder = memory_options(args)
    return TextMemory(place, args.scope, config, encoder=encoder)


def store_place(args: argparse.Namespace, *, must_exist: bool) -> str | Path:
    """The store that the options name.

    Args:
        must_exist: refuse a file that is not there; a server says itself what is wrong.
    """
    from titans.errors import StoreError

    place = args.store or default_store()
    if must_exist and isinstance(place, Path) and not place.exists():
        raise StoreError(f"{place} does not exist: nothing was remembered yet (titans remember)")
    return place


def memory_options(args: argparse.Namespace) -> tuple["RecallConfig | None", "Encoder | None"]:
    """The settings and the encoder that the options ask for; None for those of the store."""
    from titans.recall import load_encoder, preset

    if args.preset is None and args.encoder is None and args.checkpoint is None:
        return None, None
    config = preset(args.preset or "default")
    if args.encoder:
        config = config.change(encoder=args.encoder)
    if args.checkpoint:
        config = config.change(checkpoint=args.checkpoint)
    encoder = None
    if args.trust_remote_code:
        encoder = load_encoder(config.encoder, trust_remote_code=True)
    return config, encoder


def as_json(value: object) -> str:
    """JSON for a terminal: what would act there is escaped, letters of all languages are not."""
    from titans.terminal import printable

    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if printable(c) == c else json.dumps(c)[1:-1] for c in text)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Declare --json."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def show(values: dict[str, object], args: argparse.Namespace) -> None:
    """Print a result: a line for each value that is known, or one JSON object."""
    from titans.terminal import printable

    if args.json:
        print(as_json(values))
        return
    for name, value in values.items():
        if value is not None:
            shown = f"{value:.4g}" if isinstance(value, float) else value
            print(printable(f"{name.replace('_', ' '):<20} {shown}"))


def forgotten(done: "Forgotten") -> dict[str, object]:
    """What was forgotten, for `show`; a warning if it is still in the store's files."""
    if not done.is_complete:
        print(
            "a process is reading the store: traces stay in its files until the next process opens "
            "it or writes to it, which removes them",
            file=sys.stderr,
        )
    return {
        "forgotten": done.records,
        "replayed": done.replayed,
        "seconds": round(done.seconds, 3),
        "complete": done.is_complete,
    }


def record_values(record: "Record") -> dict[str, object]:
    """All of a record that is worth a line."""
    return {name: value for name, value in record.as_dict().items() if name != "is_new"}


def print_record(record: "Record") -> None:
    """Print a record on one line: its id, when it was said, by whom, and what."""
    from titans.recall.prompt import quote_name
    from titans.terminal import printable

    who = f"{quote_name(record.speaker)}: " if record.speaker else ""
    text = printable(record.text)
    print(f"{printable(record.id)}  [{record.time:%Y-%m-%d}] {who}{text}")
