"""All of `titans train`: the runs of a configuration, one after the other.

Every stage is a run in a folder of its own (`out/stage-1`, ...) that begins with the last weights
of the stage before; `out/config.yaml` describes all of them. To resume is to go on with the newest
stage that has a checkpoint.
"""

import sys
from pathlib import Path

from titans.files import FolderLock, write_text
from titans.settings import to_yaml
from titans.training.checkpoint import CheckpointFolder
from titans.training.config import RunConfig
from titans.training.processes import Processes
from titans.training.trainer import RunResult, Trainer


def train(config: RunConfig, *, resume: bool = False) -> RunResult | None:
    """Train all stages to the end, or until interrupted.

    Returns:
        How the last run ended; None in processes that are not the main one.
    """
    runs = config.runs()
    processes = Processes()
    # Each run locks its own folder; this is the one around all stages.
    lock = FolderLock(Path(config.out)) if processes.is_main and config.stages else None
    try:
        result = _train(config, runs, resume=resume, is_main=processes.is_main)
    finally:
        if lock is not None:
            lock.release()
        processes.close()
    return result if processes.is_main else None


def _train(config: RunConfig, runs: list[RunConfig], *, resume: bool, is_main: bool) -> RunResult:
    begun = [number for number, run in enumerate(runs) if CheckpointFolder.of(run).all()]
    first = begun[-1] if begun else 0
    results: list[RunResult] = []
    for number, run in enumerate(runs[first:], start=first):
        trainer = Trainer(run, resume=resume and number == first)
        if is_main and config.stages:
            write_text(Path(config.out) / "config.yaml", to_yaml(config))
            print(f"stage {number + 1} of {len(runs)}", file=sys.stderr)
        results.append(trainer.fit())
        if results[-1].interrupted:
            if is_main:
                hint = f"titans train {config.out} --resume"
                print(f"go on from {results[-1].checkpoint}: {hint}", file=sys.stderr)
            break
    return results[-1]
