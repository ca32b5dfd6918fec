"""`titans memory ACTION`: upkeep of the text memory, from stats to repair."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from titans.cli.store_options import (
    add_json_option,
    add_store_options,
    add_trust_option,
    forgotten,
    memory_options,
    open_memory,
    print_record,
    show,
    store_place,
)
from titans.cli.values import LARGEST_SEED, number, whole

EXAMPLES = """examples:
  titans memory stats --json
  titans memory summary -n 3
  titans memory expire --before 2024-01-01
  titans memory check && titans memory repair
  titans memory train --texts texts.txt --out m.safetensors --second-order --full-turn \\
      --ask-texts --learning-rate 1e-3
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    stats = _action(actions, "stats", "what a scope holds")
    stats.add_argument("--scopes", action="store_true", help="list the names of all scopes")
    summary = _action(actions, "summary", "the most surprising, recalled and updated records")
    summary.add_argument("-n", type=whole(1), default=5, help="how many of each (5)")
    expire = _action(actions, "expire", "remove permanently what has expired; not what is pinned")
    expire.add_argument("--before", metavar="TIME", help="also what was said before this time")
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
    add_json_option(parser)
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
    actions: dict[str, Callable[[argparse.Namespace], dict[str, object]]] = {
        "stats": _stats,
        "expire": _expire,
        "check": _check,
        "repair": _repair,
        "train": _train,
    }
    if args.action == "summary":
        return _summary(args)
    result = actions[args.action](args)
    show(result, args)
    return int(bool(result.get("damage")))


def _stats(args: argparse.Namespace) -> dict[str, object]:
    with open_memory(args, must_exist=True) as memory:
        found: dict[str, object] = dict(memory.stats())
        if args.scopes:
            with memory.store.reading():
                found["scope_names"] = memory.store.scopes()
    return found


def _summary(args: argparse.Namespace) -> int:
    with open_memory(args, must_exist=True) as memory:
        found = memory.summary(args.n)
    if args.json:
        show(found.as_dict(), args)
        return 0
    print(f"{found.records} records")
    for title, records in (
        ("most surprising", found.surprising),
        ("most recalled", found.recalled),
        ("most updated", found.updated),
    ):
        if records:
            print(f"{title}:")
        for record in records:
            print_record(record)
    return 0


def _expire(args: argparse.Namespace) -> dict[str, object]:
    from titans.cli.progress import Bar

    with open_memory(args, must_exist=True) as memory, Bar("replaying") as bar:
        return forgotten(memory.expire(args.before, bar.reach))


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
    from titans.cli.progress import Bar
    from titans.errors import StoreError
    from titans.recall.store import shown
    from titans.recall.upkeep import repair

    path = store_place(args, must_exist=True)
    if not isinstance(path, Path):
        raise StoreError(f"{shown(path)} is on a server, and repair mends files: restore a backup")
    config, encoder = memory_options(args)
    with Bar("records") as bar:
        done = repair(path, config, encoder=encoder, progress=bar.reach)
    return {
        "kept": done.records,
        "made_again": done.remade,
        "lost": done.lost,
        "damaged_file": str(done.damaged),
    }


def _train(args: argparse.Namespace) -> dict[str, object]:
    import torch

    from titans.cli.progress import Bar
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
    with Bar("training") as bar:

        def progress(done: int, total: int, loss: float) -> None:
            bar.reach(done, total, f"loss {loss:.4f}")

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
