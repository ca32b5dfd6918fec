"""`titans sweep FILE`: train and evaluate a declared table of runs."""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from titans.cli.values import number

if TYPE_CHECKING:
    from titans.evaluation.record import Record
    from titans.evaluation.sweep import Entry, Evaluation, Job, Sweep
    from titans.models import TitansForCausalLM

EXAMPLES = """examples:
  titans sweep sweeps/recall.yaml --out runs/recall
  titans sweep sweeps/recall.yaml --out runs/recall --plan
  TRAIN=train.txt TEST=test.txt titans sweep sweeps/language.yaml --out runs/language \\
      --records results/language

Start it again to go on: finished rows are kept, a row that was stopped resumes from its checkpoint.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("file", type=Path, help="the sweep (YAML)")
    parser.add_argument("--out", type=Path, help="folder of the runs (runs/NAME)")
    parser.add_argument(
        "--rows",
        metavar="NAME,...",
        help="only these rows, sized by the file's first",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all")
    parser.add_argument("--budget-minutes", type=number(), help="instead of the file's")
    parser.add_argument("--records", type=Path, help="also put the finished records here")
    parser.add_argument("--plan", action="store_true", help="print the jobs and stop")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(args: argparse.Namespace) -> int:
    """Plan, run what is missing, print the table."""
    import dataclasses

    from titans.evaluation.sweep import (
        choose_rows,
        load_sweep,
        plan_jobs,
        publish,
        run_sweep,
        summarise,
    )
    from titans.files import check_target

    sweep = load_sweep(args.file)
    sweep = dataclasses.replace(sweep, set=(*sweep.set, *args.set))
    if args.budget_minutes is not None:
        sweep = dataclasses.replace(sweep, budget_minutes=args.budget_minutes)
    base = args.file.parent / sweep.base
    out = args.out or Path("runs") / sweep.name
    _check_evaluations(sweep)
    _check_rows(sweep, base)
    for folder in (out, args.records):
        if folder is not None:
            check_target(folder / "record.json")
    jobs = plan_jobs(sweep, _match_rows(sweep, base))
    if args.rows:
        jobs = choose_rows(jobs, args.rows.split(","))
    if args.plan:
        for job in jobs:
            print(job.name, *job.settings)
        return 0

    def train(job: "Job", folder: Path) -> None:
        _train(base, job, folder)

    finished = run_sweep(sweep, jobs, out, train=train, evaluate=_evaluate, report=_say)
    if args.records:
        chosen = ["--rows", args.rows] if args.rows else []
        settings = [word for setting in args.set for word in ("--set", setting)]
        command = shlex.join(["titans", "sweep", str(args.file), *chosen, *settings])
        for file in publish(sweep, jobs, out, args.records, command):
            _say(f"wrote {file}")
    entries = summarise(sweep, jobs, out)
    if args.json:
        print(json.dumps([asdict(entry) for entry in entries], indent=1))
    else:
        _print_table(entries)
    return 0 if finished else 1


def _train(base: Path, job: "Job", folder: Path) -> None:
    from titans.evaluation.sweep import JobFailedError
    from titans.training.config import load_config
    from titans.training.diagnosis import NonFiniteLoss
    from titans.training.trainer import Trainer

    config = load_config(base, [*job.settings, f"out={folder}"])
    begun = any((folder / "checkpoints").glob("step-*"))
    trainer = Trainer(config, resume=begun)
    try:
        result = trainer.fit()
    except NonFiniteLoss as error:
        raise JobFailedError(str(error).splitlines()[0]) from error
    finally:
        trainer.run.processes.close()
    if result.interrupted:
        raise KeyboardInterrupt


def _evaluate(job: "Job", evaluation: "Evaluation", folder: Path, file: Path) -> "Record":
    from titans.evaluation.model import ModelSubject
    from titans.evaluation.registry import build_task
    from titans.evaluation.runner import run_task

    task = build_task(evaluation.task, evaluation.options)
    subject = ModelSubject.load(folder / "checkpoints" / "last", settings=evaluation.settings)
    subject.name = job.name
    return run_task(
        task,
        subject,
        subject.card(),
        path=file,
        command=f"titans sweep, row {job.row.name!r}, seed {job.seed}",
    )


def _check_evaluations(sweep: "Sweep") -> None:
    """Build every benchmark and look for its data: they are needed only when a row has trained."""
    from titans.errors import ConfigError
    from titans.evaluation.registry import build_task, load_task

    for evaluation in sweep.evaluations:
        with _named(f"evaluation {evaluation.record_name!r}"):
            name = evaluation.task
            if not load_task(name).reads_with_model:
                raise ConfigError(f"{name} measures no model, so no row: use `titans eval {name}`")
            build_task(name, evaluation.options).check_data()


def _check_rows(sweep: "Sweep", base: Path) -> None:
    """Build every row's run as far as is possible without weights, before the first one trains."""
    from titans.evaluation.model import with_settings

    for row in sweep.rows:
        with _named(f"row {row.name!r}"):
            model = _build_model(base, [*sweep.set, *row.set])
            for evaluation in sweep.evaluations:
                with _named(f"settings of evaluation {evaluation.record_name!r}"):
                    with_settings(model.config, evaluation.settings)  # type: ignore[arg-type]


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Put what is wrong in front of what is wrong with it."""
    from titans.errors import ConfigError

    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error


def _match_rows(sweep: "Sweep", base: Path) -> dict[str, str]:
    """Per row, the setting that gives it as many parameters as the first row."""
    from titans.evaluation.sweep import match_size

    if not sweep.match_parameters:
        return {}
    target = _count(base, [*sweep.set, *sweep.rows[0].set])
    sized = {}
    for row in sweep.rows[1:]:

        def count(size: int, settings: tuple[str, ...] = row.set) -> int:
            return _count(base, [*sweep.set, *settings, f"{sweep.match_parameters}={size}"])

        with _named(f"row {row.name!r}"):
            size = match_size(count, target, sweep.tolerance)
        sized[row.name] = f"{sweep.match_parameters}={size}"
    return sized


def _count(base: Path, settings: list[str]) -> int:
    """Parameters of a run's model, without making it."""
    return sum(p.numel() for p in _build_model(base, settings).parameters())


def _build_model(base: Path, settings: list[str]) -> "TitansForCausalLM":
    """A run's model without its weights; a run that could not begin to train is refused."""
    import torch

    from titans.data.streams import load_data
    from titans.training.build import build_model, take_weights
    from titans.training.config import load_config
    from titans.training.phases import check_phases

    config = load_config(base, settings)
    data = load_data(config.data, batch_size=config.train.batch_size, seed=config.seed)
    if config.start_from is not None:
        take_weights(build_model(config, data), Path(config.start_from))
    with torch.device("meta"):
        model = build_model(config, data)
    check_phases(config.train, model)
    return model


def _print_table(entries: list["Entry"]) -> None:
    from titans.evaluation.lengths import format_length

    wide = 2 + max([len("row"), *(len(entry.row) for entry in entries)])
    print(
        f"{'row':<{wide}}{'evaluation':<14}{'length':>8}  {'metric':<16}{'mean':>9}  "
        f"{'spread':>8}  n"
    )
    for entry in entries:
        length = "" if entry.length is None else format_length(entry.length)
        detail = " ".join(f"{name}={value}" for name, value in entry.detail.items())
        print(
            f"{entry.row:<{wide}}{entry.evaluation:<14}{length:>8}  {entry.metric:<16}"
            f"{entry.mean:>9.4g}  {entry.spread:>8.3g}  {entry.seeds}  {detail}".rstrip()
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr)
