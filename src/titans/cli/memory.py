"""`titans memory ACTION`: upkeep of the text memory, from stats to repair."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from titans.cli.store_options import (
    add_store_options,
    add_trust_option,
    as_json,
    memory_options,
    open_memory,
    store_path,
)
from titans.cli.values import LARGEST_SEED, number, whole

EXAMPLES = """examples:
  titans memory stats --json
  titans memory export backup.jsonl --scope work
  titans memory forget --id 3f2a... && titans memory forget --before 2023-01-01
  titans memory train --texts texts.txt --out m.safetensors --second-order --full-turn \\
      --ask-texts --learning-rate 1e-3
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    stats = _action(actions, "stats", "what a scope holds")
    stats.add_argument("--scopes", action="store_true", help="list the names of all scopes")
    export = _action(actions, "export", "write a scope as JSON lines")
    export.add_argument("file", type=Path, help="- is standard output")
    load = _action(actions, "import", "remember every line of a JSON lines file")
    load.add_argument("file", type=Path, help="- is standard input")
    forget = _action(actions, "forget", "remove records for good")
    what = forget.add_mutually_exclusive_group(required=True)
    what.add_argument("--id", help="one record")
    what.add_argument("--before", help="all from before this time (ISO 8601)")
    what.add_argument("--all", action="store_true", help="the whole scope")
    _action(actions, "check", "look for damage in all scopes; exit code 1 if there is any")
    _action(actions, "repair", "put a new store with all that is sound in a damaged one's place")
    _configure_train(_action(actions, "train", "meta-train projections on texts", store=False))


def _action(actions, name: str, text: str, store: bool = True) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name,
        help=text,
        description=text,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if store:
        add_store_options(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _configure_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--texts", type=Path, required=True, help="a text per line, or JSON lines with `text`"
    )
    parser.add_argument("--questions", type=Path, help='JSON lines {"question": .., "text": ..}')
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint (.safetensors)")
    parser.add_argument("--preset", choices=["classic"], default="classic")
    parser.add_argument("--encoder", default="minilm")
    add_trust_option(parser)
    parser.add_argument("--epochs", type=whole(), default=10)
    parser.add_argument("--learning-rate", type=number(above=True), default=1e-4)
    parser.add_argument("--second-order", action="store_true", help="differentiate through writes")
    parser.add_argument("--full-turn", action="store_true", help="train the attention too")
    parser.add_argument(
        "--ask-texts", action="store_true", help="without questions: texts ask for themselves"
    )
    parser.add_argument(
        "--contrast", type=number(), default=1.0, help="weight of the contrastive term"
    )
    parser.add_argument("--seed", type=whole(0, LARGEST_SEED), default=0)


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    from titans.terminal import printable

    actions: dict[str, Callable[[argparse.Namespace], dict[str, object]]] = {
        "stats": _stats,
        "export": _export,
        "import": _import,
        "forget": _forget,
        "check": _check,
        "repair": _repair,
        "train": _train,
    }
    result = actions[args.action](args)
    if args.json:
        print(as_json(result))
    else:
        for name, value in result.items():
            shown = f"{value:.4g}" if isinstance(value, float) else value
            print(printable(f"{name.replace('_', ' '):<20} {shown}"))
    return int(bool(result.get("damage")))


def _stats(args: argparse.Namespace) -> dict[str, object]:
    with open_memory(args, must_exist=True) as memory:
        found: dict[str, object] = dict(memory.stats())
        if args.scopes:
            found["scope_names"] = memory.store.scopes()
    return found


def _export(args: argparse.Namespace) -> dict[str, object]:
    from titans.files import writing
    from titans.recall import export_records

    with open_memory(args, must_exist=True) as memory:
        if str(args.file) == "-":
            export_records(memory, sys.stdout)
            return {}
        with writing(args.file, inputs=memory.store.files) as file:
            count = export_records(memory, file)
    return {"exported": count, "file": str(args.file)}


def _import(args: argparse.Namespace) -> dict[str, object]:
    from titans.files import read_text
    from titans.recall import import_records

    content = sys.stdin.read() if str(args.file) == "-" else read_text(args.file)
    # By line feed alone: texts may hold other characters that count as line ends.
    lines = content.split("\n")
    with open_memory(args) as memory, _Bar("importing", len(lines)) as bar:
        new = import_records(memory, lines, progress=bar.update)
    return {"imported": new}


def _forget(args: argparse.Namespace) -> dict[str, object]:
    with open_memory(args, must_exist=True) as memory, _Bar("replaying", None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done)

        if args.all:
            done = memory.forget(scope=args.scope)
        else:
            done = memory.forget(args.id, before=args.before, progress=progress)
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


def _check(args: argparse.Namespace) -> dict[str, object]:
    from titans.recall.upkeep import find_damage
    from titans.terminal import printable

    with open_memory(args, must_exist=True) as memory:
        found = list(find_damage(memory, _say))
    if not args.json:
        for line in found:
            print(printable(line))
    return {"damage": found if args.json else len(found)}


def _repair(args: argparse.Namespace) -> dict[str, object]:
    from titans.recall.upkeep import repair

    path = store_path(args, must_exist=True)
    config, encoder = memory_options(args)
    with _Bar("records", None) as bar:
        done = repair(path, config, encoder=encoder, progress=bar.update)
    return {
        "kept": done.records,
        "made_again": done.remade,
        "lost": done.lost,
        "damaged_file": str(done.damaged),
    }


def _train(args: argparse.Namespace) -> dict[str, object]:
    import torch

    from titans.recall.config import classic
    from titans.recall.encoder import load_encoder
    from titans.recall.neural.meta import MetaConfig, load_questions, load_texts, train_checkpoint

    torch.set_num_threads(1)
    settings = MetaConfig(
        epochs=args.epochs,
        learning_rate=args.learning_rate,
        second_order=args.second_order,
        full_turn=args.full_turn,
        ask_texts=args.ask_texts,
        contrast=args.contrast,
        seed=args.seed,
    )
    texts = load_texts(args.texts)
    questions = load_questions(args.questions) if args.questions else []
    with _Bar("training", None) as bar:

        def progress(done: int, total: int, loss: float) -> None:
            bar.total = total
            bar.update(done, f"loss {loss:.4f}")

        report = train_checkpoint(
            args.out,
            load_encoder(args.encoder, trust_remote_code=args.trust_remote_code),
            classic(args.encoder).neural,
            texts,
            questions,
            settings,
            progress,
        )
    return report


def _say(step: str) -> None:
    print(f"looking at the {step}", file=sys.stderr)


class _Bar:
    """A progress bar on stderr, if that is a terminal; else a line at the end."""

    def __init__(self, label: str, total: int | None) -> None:
        self.label, self.total = label, total
        self._shown = False

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print(file=sys.stderr)

    def update(self, done: int, note: str = "") -> None:
        """Show how far it is."""
        total = max(self.total or done, 1)
        if done % max(total // 100, 1) and done != total:
            return
        filled = 30 * done // total
        bar = "#" * filled + "." * (30 - filled)
        print(f"\r{self.label} [{bar}] {done}/{total} {note}", end="", file=sys.stderr, flush=True)
        self._shown = True
