"""`titans tune`: search hyper-parameters of a configuration."""

import argparse
import json
from pathlib import Path

from titans.cli.values import number, whole

EXAMPLES = """examples:
  titans tune configs/mqar-lmm.yaml --space configs/spaces/mqar.yaml --trials 20
  titans tune configs/mac.yaml --space space.yaml --set data.path=corpus.txt --timeout 3600
  titans tune configs/mac.yaml --space space.yaml --out runs/tune-mac --report --json

The study is kept in OUT/study.db: the same command goes on where it stopped."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `titans tune`."""
    parser.epilog = EXAMPLES
    parser.add_argument("config", help="the run to vary (YAML)")
    parser.add_argument("--space", required=True, help="what to vary (YAML)")
    parser.add_argument("--trials", type=whole(), default=20, help="in all (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=number(above=True), default=None, help="seconds for this call"
    )
    parser.add_argument("--out", default=None, help="folder (default: the run's, plus -tune)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--report", action="store_true", help="only report on the study")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Search, then report."""
    from titans.training.config import load_config
    from titans.training.tuning import Tuner, load_space, report

    config = load_config(args.config, args.set)
    out = Path(args.out or f"{config.out}-tune")
    tuner = Tuner(config=config, space=load_space(args.space), out=out, name=Path(args.config).stem)
    study = tuner.search(0 if args.report else args.trials, args.timeout)
    result = report(study, out)
    if args.json:
        print(json.dumps(result))
    else:
        print((out / "report.md").read_text(), end="")
        print(f"\nfigure: {out / 'report.png'}")
    return 0
