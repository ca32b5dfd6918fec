"""`titans plot`: curves of one or several runs."""

import argparse
import json
from pathlib import Path

EXAMPLES = """examples:
  titans plot runs/mac
  titans plot runs/mac runs/mag runs/swa --out curves.html
  titans plot runs/mac runs/swa --metrics bits_per_byte,tokens_per_second --json"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `titans plot`."""
    parser.epilog = EXAMPLES
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "--out", default="curves.png", help="picture or .html (default: curves.png)"
    )
    parser.add_argument("--metrics", default="", help="comma-separated; default: the usual ones")
    parser.add_argument("--json", action="store_true", help="print the last values as JSON")


def run(args: argparse.Namespace) -> int:
    """Draw and save."""
    from titans.training import plots

    curves = plots.load_curves(args.runs)
    wanted = [name for name in args.metrics.split(",") if name]
    metrics = plots.choose_metrics(curves, wanted)
    plots.save(plots.draw(curves, metrics), curves, Path(args.out))
    if args.json:
        print(json.dumps({"out": args.out, "metrics": metrics, "runs": plots.summary(curves)}))
    else:
        print(args.out)
    return 0
