"""`titans train`: from a configuration to a checkpoint."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

EXAMPLES = """examples:
  titans train mac --data sample
  titans train mag --data sample --set train.learning_rate=3e-4 --print-config
  titans train runs/mac --resume
  torchrun --nproc_per_node=2 -m titans.cli.main train mac --data sample

Ctrl-C saves a checkpoint and says how to go on. Several processes: `torchrun` or
`accelerate launch`; weights split over them: --set train.sharding=full. Guide: docs/training.md."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `titans train`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "config", help="a YAML file, a name of `titans config list`, or a run to --resume"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="change one setting (repeatable): train.steps=500, out=runs/other",
    )
    parser.add_argument("--data", metavar="PATH", help="a text, a folder of texts, or `sample`")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved configuration and stop"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Train, or print the configuration."""
    from titans.settings import to_yaml
    from titans.training.config import load_config

    path = Path(args.config)
    if path.is_dir():
        path = path / "config.yaml"
    settings = [*([f"data.path={json.dumps(args.data)}"] if args.data else []), *args.set]
    config = load_config(path, settings)
    if args.print_config:
        from titans.training.build import check_model_section

        for stage in config.runs():
            check_model_section(stage.model)
        sys.stdout.write(to_yaml(config))
        return 0

    from titans.training.stages import train

    result = train(config, resume=args.resume)
    if result is None:
        return 0
    if args.json:
        print(json.dumps(asdict(result), default=str))
    else:
        print(result.checkpoint)
    return 130 if result.interrupted else 0
