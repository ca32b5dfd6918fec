"""`titans eval TASK --model PATH`: run a benchmark on a checkpoint, write a record."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from titans.evaluation.records import Record

EXAMPLES = """examples:
  titans eval s-niah --model checkpoints/niah-lmm --kinds pk --lengths 2k,16k,128k --samples 100
  titans eval mqar --model runs/mqar/checkpoints/last --setting b --json results/mqar.json
  titans eval lm --model runs/enwik8/checkpoints/best --text enwik8.gz --tail-bytes 5000000

An interrupted run goes on where it stopped when it is started again with the same --json FILE.
Lengths count the model's own tokens: 2k is 2048.
"""

SHARED = ("task", "model", "seed", "json", "figure", "window", "set", "run")
"""Options that do not belong to the task itself."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options; each task takes those it knows and refuses the others."""
    from titans.evaluation.registry import TASKS

    lines = "\n".join(f"  {name:<13} {text}" for name, (_, text) in TASKS.items())
    parser.epilog = f"tasks:\n{lines}\n\n{EXAMPLES}"
    parser.add_argument("task", choices=list(TASKS), metavar="TASK", help="one of the tasks below")
    parser.add_argument("--model", type=Path, help="checkpoint folder")
    parser.add_argument("--seed", type=_count_from_0, default=42, help="seed of the samples (42)")
    parser.add_argument("--json", type=Path, help="write the record here; - prints it")
    parser.add_argument(
        "--figure", type=Path, help="draw a depth x length map (.png, .pdf), with --depths"
    )
    parser.add_argument("--window", type=_count, default=2_048, help="tokens read at a time (2048)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change the model's configuration for inference, e.g. write_threshold=0.05",
    )
    parser.add_argument("--lengths", type=_lengths, help="e.g. 2k,4k,16k,2M")
    parser.add_argument(
        "--samples", type=_count_from_0, help="samples per cell; of lm windows, 0: all of the text"
    )
    text = parser.add_argument_group("s-niah")
    text.add_argument("--kinds", type=_names, help="pk,n,w")
    text.add_argument("--haystack", type=Path, help="text of the essay haystack: file or folder")
    text.add_argument(
        "--each-file",
        action="store_const",
        const=True,
        help="every file of the haystack's folder is a haystack of its own; samples take turns",
    )
    text.add_argument("--words", type=Path, help="folder with adjectivelist.txt and nounlist.txt")
    text.add_argument("--answer-tokens", type=_count, help="tokens to generate (128)")
    text.add_argument("--depths", type=int, help="(also needle) depths of the map, e.g. 11")
    tokens = parser.add_argument_group("needle, mqar, permutations")
    tokens.add_argument("--num-needles", type=int)
    tokens.add_argument("--num-keys", type=int)
    tokens.add_argument("--num-values", type=int)
    tokens.add_argument("--num-noise", type=int)
    tokens.add_argument(
        "--no-distractors",
        dest="distractors",
        action="store_const",
        const=False,
        help="of needle: keys and values occur in needles only",
    )
    tokens.add_argument("--setting", choices=["a", "b", "forgetting"], help="of mqar")
    tokens.add_argument("--vocab-size", type=int, help="of mqar (8192)")
    tokens.add_argument("--degree", type=int, help="of permutations: 3 or 5")
    babi = parser.add_argument_group("babilong")
    babi.add_argument("--tasks", type=_names, help="qa1,qa2,...,qa10")
    babi.add_argument("--babi", type=Path, help="folder of bAbI's en-10k files")
    babi.add_argument("--background", type=Path, help="books: file or folder")
    lm = parser.add_argument_group("lm")
    lm.add_argument("--text", type=Path, help="text or JSONL, also .gz")
    lm.add_argument("--tail-bytes", type=int, help="only the last so many bytes of it")
    recall = parser.add_argument_group("locomo (a text memory; takes no --model)")
    recall.add_argument("--data", type=Path, help="LoCoMo's JSON file")
    recall.add_argument("--encoder", help="minilm, or what `titans remember` takes")
    recall.add_argument("--no-memory", dest="memory", action="store_const", const=False)
    recall.add_argument("--no-captions", dest="captions", action="store_const", const=False)
    recall.add_argument("--keep", type=float, help="share of the turns to keep, e.g. 0.5")
    recall.add_argument("--keep-by", choices=["surprise", "length", "random"])
    speed = parser.add_argument_group("throughput")
    speed.add_argument("--phases", type=_names, help="train,prefill,decode")
    speed.add_argument("--memory-depths", type=_numbers, help="e.g. 1,2,3,4")
    speed.add_argument("--rows", type=int, help="texts side by side (4)")


def run(args: argparse.Namespace) -> int:
    """Build the task, run it, print or write what came out."""
    from titans.errors import ConfigError
    from titans.evaluation.preflight import check_data
    from titans.evaluation.registry import build_task
    from titans.evaluation.runner import run_task
    from titans.evaluation.subject import ModelSubject
    from titans.settings import apply_settings

    options = {k: v for k, v in vars(args).items() if k not in SHARED and v is not None}
    task = build_task(args.task, options)
    if args.task != "locomo" and args.model is None:
        raise ConfigError(f"{args.task} measures a model: give --model PATH")
    _check_outputs(args)
    check_data(task)
    if args.task == "locomo":
        return _run_locomo(task, args)
    settings = apply_settings({}, args.set)
    subject = ModelSubject.load(args.model, window=args.window, settings=settings)
    path = None if args.json is None or str(args.json) == "-" else args.json
    record = run_task(
        task,  # type: ignore[arg-type]
        subject,
        subject.card(),
        seed=args.seed,
        path=path,
        command=_command(args),
    )
    if args.figure:
        from titans.evaluation.heatmap import draw_heat_map

        draw_heat_map(record, args.figure)
        print(f"wrote {args.figure}", file=sys.stderr)
    if args.json is not None and str(args.json) == "-":
        print(record.to_json(), end="")
    else:
        _print_table(record)
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse a record or figure that could not be written, before hours are spent on it."""
    from titans.errors import ConfigError
    from titans.evaluation.preflight import check_file

    if args.json is not None and str(args.json) != "-":
        check_file(args.json, "--json")
    if args.figure is None:
        return
    from titans.evaluation.heatmap import SUFFIXES

    if not args.depths:
        raise ConfigError("--figure draws accuracy by depth and length: give --depths, e.g. 11")
    if args.figure.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--figure {args.figure}: its name must end in {' or '.join(SUFFIXES)}")
    check_file(args.figure, "--figure")


def _run_locomo(task: object, args: argparse.Namespace) -> int:
    """A benchmark of the text memory: no language model, no lengths, a table of its own."""
    import json

    from tqdm import tqdm

    from titans.evaluation.locomo import Locomo
    from titans.evaluation.records import describe_path
    from titans.files import package_version, source_commit, write_text

    assert isinstance(task, Locomo), "built by the registry"
    with tqdm(total=1, unit="conversation", file=sys.stderr, desc="locomo") as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        rows = task.run(progress).rows()
    report = {
        "task": "locomo",
        "data": describe_path(task.data),
        "rows": rows,
        "command": _command(args),
        "commit": source_commit(),
        "version": package_version(),
    }
    text = json.dumps(report, indent=1)
    if args.json is not None and str(args.json) != "-":
        write_text(args.json, text + "\n")
    if str(args.json) == "-":
        print(text)
        return 0
    _print_locomo(rows)
    return 0


def _print_locomo(rows: list[dict[str, object]]) -> None:
    """Recall in % by category, each with its 95 % interval."""
    metrics = [name for name in rows[0] if name.startswith("recall@")]
    print(f"{'category':<15}{'n':>5}" + "".join(f"{name + ' [95 %]':>22}" for name in metrics))
    for row in rows:
        line = f"{row['category']:<15}{row['n']:>5}"
        for name in metrics:
            low, high = row[name.replace("recall", "interval")]  # type: ignore[misc]
            line += f"{f'{row[name]:.1f} [{low:.1f}, {high:.1f}]':>22}"
        print(line)


def _print_table(record: "Record") -> None:
    from titans.evaluation.lengths import format_length

    model = record.model
    print(f"{record.task}: {model.name} ({model.variant}, {model.num_parameters:,} parameters)")
    print(f"{'length':>8}  {'metric':<18}{'value':>12}  {'95 % interval':<23}{'n':>6}  detail")
    for score in record.scores:
        length = "" if score.length is None else format_length(score.length)
        between = f"{score.low:.4g} .. {score.high:.4g}"
        detail = " ".join(f"{name}={value}" for name, value in score.detail.items())
        print(
            f"{length:>8}  {score.metric:<18}{score.value:>12.5g}  {between:<23}"
            f"{score.samples:>6}  {detail}".rstrip()
        )


def _command(args: argparse.Namespace) -> str:
    """The command line that makes this record: files by their last part, the model as given.

    A model's path that is absolute, or leads out of the working folder, tells of the machine: of
    such a one the name is left, too.
    """
    words = ["titans", "eval", args.task]
    for name, value in vars(args).items():
        if name in ("task", "run", "json", "figure") or value is None or value == []:
            continue
        flag = f"--{name.replace('_', '-')}"
        if name == "set":
            words += [word for setting in value for word in (flag, setting)]
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{name}")
        elif isinstance(value, Path):
            is_own = name == "model" and not value.is_absolute() and ".." not in value.parts
            words += [flag, str(value) if is_own else value.name]
        else:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [flag, shown]
    return shlex.join(words)


def _lengths(text: str) -> tuple[int, ...]:
    from titans.evaluation.lengths import parse_lengths

    try:
        return parse_lengths(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"a whole number of at least {least}; got {text!r}")
    return int(text)


def _count_from_0(text: str) -> int:
    return _count(text, least=0)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_count(part.strip()) for part in text.split(","))
