"""`titans eval TASK --model PATH`: run a benchmark on a checkpoint, write a record.

Each task's flags are the fields of its dataclass: their types, ranges, docstrings and defaults.
"""

import argparse
import ast
import dataclasses
import inspect
import math
import shlex
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans.cli.failures import STOPPED, Parser
from titans.cli.values import LARGEST, number, whole

if TYPE_CHECKING:
    from titans.evaluation.record import Record
    from titans.settings import Range
    from titans.tasks.task import Task

EXAMPLES = """examples:
  titans eval needle --model checkpoints/needle-mac
  titans eval s-niah --model checkpoints/niah-mac --lengths 2k,16k --samples 5
  titans eval throughput --model checkpoints/bytes-mac --json bytes-mac.json

`titans eval TASK --help` has the options of a task. The defaults take about two minutes with a
small model; published benchmarks ask for more samples. A run that is stopped goes on when the same
command is started again.
"""
RUNS = Path("runs") / "eval"
"""Where records go that were not given a place."""


def configure(parser: argparse.ArgumentParser) -> None:
    """A sub-command for each task."""
    from titans.evaluation.registry import TASKS

    parser.epilog = EXAMPLES
    tasks = parser.add_subparsers(
        dest="task", metavar="TASK", required=True, title="tasks", parser_class=TaskParser
    )
    for name, (_, summary) in TASKS.items():
        tasks.add_parser(name, help=summary, task=name)


class TaskParser(Parser):
    """The options of one task; they are declared once they are wanted, since tasks take time to
    import."""

    def __init__(self, *, task: str, **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, formatter_class=formatter)
        self._task = task
        self._is_declared = False

    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Declare the options, then parse; what is left over is another task's."""
        self._declare()
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"{self._task} has no {' '.join(left)}")
        return parsed, left

    def format_help(self) -> str:
        """Declare the options, then format."""
        self._declare()
        return super().format_help()

    def _declare(self) -> None:
        if not self._is_declared:
            self._is_declared = True
            _declare_options(self, self._task)


def _declare_options(parser: argparse.ArgumentParser, name: str) -> None:
    from titans.evaluation.registry import load_task

    kind = load_task(name)
    parser.description = inspect.getdoc(kind)
    parser.epilog = f"example:\n  titans eval {name} {kind.example}"
    if kind.reads_with_model:
        parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    of_task = parser.add_argument_group("the task")
    documents = field_documents(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    for option in dataclasses.fields(kind):  # type: ignore[arg-type]
        _declare_option(of_task, option, hints[option.name], documents[option.name])
    run = parser.add_argument_group("the run")
    run.add_argument("--seed", type=whole(0), default=42, help="seed of the samples (42)")
    run.add_argument(
        "--json", type=Path, metavar="FILE", help="where the record goes; - prints it (runs/eval/)"
    )
    if any(option.name == "depths" for option in dataclasses.fields(kind)):  # type: ignore[arg-type]
        run.add_argument(
            "--figure",
            type=Path,
            metavar="FILE",
            help="draw accuracy by depth and length (.png, .pdf), with --depths",
        )
    if kind.reads_with_model:
        run.add_argument("--window", type=whole(), default=2_048, help="tokens read at once (2048)")
        run.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="FIELD=VALUE",
            help="change the model's configuration for inference, e.g. memory.write_threshold=0.05",
        )


def _declare_option(
    group: argparse._ArgumentGroup, option: "dataclasses.Field[Any]", hint: Any, document: str
) -> None:
    """One field as a flag. What is not given is left out, so that the field's default holds."""
    flag = f"--{option.name.replace('_', '-')}"
    default = None if option.default is dataclasses.MISSING else option.default
    usual = "" if default is None or default == () else f" ({_shown(default)})"
    if isinstance(default, bool):
        group.add_argument(
            f"--no-{option.name}" if default else flag,
            dest=option.name,
            action="store_false" if default else "store_true",
            default=argparse.SUPPRESS,
            help=f"do not {document}" if default else document,
        )
        return
    group.add_argument(
        flag,
        type=_reader(hint, option.name),
        required=option.default is dataclasses.MISSING,
        metavar=_metavar(hint, option.name),
        default=argparse.SUPPRESS,
        help=f"{document}{usual}".replace("%", "%%"),
    )


def _reader(hint: Any, name: str = "") -> Callable[[str], Any]:
    """How a flag's text becomes a value of a type."""
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case types.UnionType:
            return _reader(parts[0], name)
        case builtin if builtin is tuple:
            return _lengths if name == "lengths" else _list_of(_reader(parts[0]))
        case typing.Literal:
            return _one_of(parts)
        case typing.Annotated:
            limits: Range = hint.__metadata__[0]
            if parts[0] is float:
                return number(limits.low, limits.high)
            return whole(int(limits.low), LARGEST if math.isinf(limits.high) else int(limits.high))
        case _:
            return hint


def _list_of(reader: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(reader(part.strip()) for part in text.split(","))


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"one of {', '.join(allowed)}; got {text!r}")
        return text

    return convert


def _lengths(text: str) -> tuple[int, ...]:
    from titans.evaluation.lengths import parse_lengths

    try:
        return parse_lengths(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _metavar(hint: Any, name: str) -> str:
    """What stands for a flag's value in the help."""
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case types.UnionType:
            return _metavar(parts[0], name)
        case builtin if builtin is tuple:
            return "2k,16k,..." if name == "lengths" else f"{_metavar(parts[0], name)},..."
        case typing.Literal:
            return "|".join(parts)
        case typing.Annotated:
            return "N" if parts[0] is int else "X"
        case _:
            return "PATH" if hint is Path else name.upper().rstrip("S")


def _shown(value: object) -> str:
    from titans.evaluation.lengths import format_length

    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    is_round = isinstance(value, int) and value >= 1 << 10 and value % (1 << 10) == 0
    return format_length(value) if is_round else str(value)  # type: ignore[arg-type]


def field_documents(kind: type) -> dict[str, str]:
    """The docstrings below a dataclass's fields, without their last full stop, by field."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if dataclasses.is_dataclass(owner):
            body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
            for above, below in pairwise(body):
                if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr):
                    text = " ".join(ast.literal_eval(below.value).split()).removesuffix(".")
                    found[above.target.id] = text[:1].lower() + text[1:]  # type: ignore[attr-defined]
    return found


def run(args: argparse.Namespace) -> int:
    """Build the task, run it, print or write what came out."""
    from titans.evaluation.registry import build_task, load_task
    from titans.evaluation.runner import Stopped, run_task

    fields = [option.name for option in dataclasses.fields(load_task(args.task))]  # type: ignore[arg-type]
    task = build_task(args.task, {k: v for k, v in vars(args).items() if k in fields})
    prints_json = str(args.json) == "-"
    path = None if prints_json else args.json
    _check_outputs(args, task)
    task.check_data()
    subject = _subject(args, task)
    try:
        record = run_task(
            task,
            subject,
            subject.card(),
            seed=args.seed,
            path=path,
            folder=RUNS,
            command=_command(args, task),
            say=_say,
        )
    except Stopped as stop:
        _print_table(stop.record)
        _say(
            f"stopped; finished samples are kept in {stop.journal}: start the same command to go on"
        )
        return STOPPED
    if getattr(args, "figure", None):
        from titans.evaluation.heatmap import draw_heat_map

        draw_heat_map(record, args.figure)
        _say(f"wrote {args.figure}")
    if prints_json:
        print(record.to_json(), end="")
    else:
        _print_table(record)
    return 0


def _subject(args: argparse.Namespace, task: "Task") -> Any:
    """What is measured: a checkpoint, or what the task brings along."""
    from titans.settings import apply_settings

    if not task.reads_with_model:
        return task.own_subject()
    settings = apply_settings({}, args.set)

    from titans.evaluation.model import ModelSubject

    return ModelSubject.load(args.model, window=args.window, settings=settings)


def _check_outputs(args: argparse.Namespace, task: "Task") -> None:
    """Refuse a record or figure that could not be written, before hours are spent on it."""
    from titans.errors import ConfigError
    from titans.files import check_target

    check_target(RUNS / "record.json" if args.json is None else args.json)
    if getattr(args, "figure", None) is None:
        return
    from titans.evaluation.heatmap import SUFFIXES

    if not task.depths:  # type: ignore[attr-defined]
        raise ConfigError("--figure draws accuracy by depth and length: give --depths, e.g. 11")
    if args.figure.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--figure {args.figure}: its name must end in {' or '.join(SUFFIXES)}")
    check_target(args.figure)


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


def _command(args: argparse.Namespace, task: "Task") -> str:
    """The command line that makes this record: files by their last part, the model as given.

    A model's path that is absolute, or leads out of the working folder, belongs to this machine:
    only its name is stated. Numbers of samples and lengths are stated even if they are defaults,
    which may change.
    """
    words = ["titans", "eval", args.task]
    stated = {name: getattr(task, name, None) for name in ("lengths", "samples")}
    for name, value in {**vars(args), **stated}.items():
        if name in ("task", "run", "json", "figure") or value in (None, [], ()):
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


def _say(text: str) -> None:
    print(text, file=sys.stderr)
