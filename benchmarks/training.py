"""What the trainer costs beyond the model: overhead, waiting for data, growth of memory.

    python benchmarks/training.py overhead --config configs/mac.yaml --data corpus.txt
    python benchmarks/training.py memory --config configs/swa.yaml --data corpus.txt --steps 2000

`overhead` alternates blocks of trainer steps (data, step, log line, TensorBoard) with blocks of a
bare forward + backward + AdamW loop on a copy of the same model and the same kind of batches, and
compares medians of CPU time. Single thread; prints JSON.
"""

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
from torch.nn import functional

from titans.data.batch import IGNORED, Batch
from titans.models import TitansForCausalLM
from titans.training.config import load_config
from titans.training.optim import build_optimizer, clip_gradients
from titans.training.trainer import Trainer


def open_trainer(args: argparse.Namespace, folder: str) -> Trainer:
    settings = [
        f"out={folder}/run",
        f"data.cache_dir={folder}/cache",
        "train.steps=1000000",
        "checkpoint.every=1000000",
        "log.held_out_every=0",
        "log.sample_every=0",
        *([f"data.path={args.data}"] if args.data else []),
        *args.set,
    ]
    trainer = Trainer(load_config(args.config, settings))
    trainer.console = Console(total=1, start=0, is_main=False)
    trainer.log = trainer._open_log()
    return trainer


class BareLoop:
    """The shortest loop that trains: what any trainer is measured against."""

    def __init__(self, trainer: Trainer) -> None:
        self.model: TitansForCausalLM = copy.deepcopy(trainer.run.core)
        self.optimizer = build_optimizer(self.model, trainer.config.train, set())
        self.max_norm = trainer.config.train.max_grad_norm

    def step(self, batch: Batch) -> None:
        logits = self.model(input_ids=batch.tokens, use_cache=False).logits
        loss = functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED
        )
        loss.backward()
        clip_gradients(self.model, self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def overhead(args: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = open_trainer(args, folder)
        bare, batches = BareLoop(trainer), trainer._timed_batches()
        kept = [next(batches) for _ in range(args.block)]
        times: dict[str, list[float]] = {"trainer": [], "bare": []}
        waits: list[float] = []
        for number in range(args.rounds + 1):
            began, wall, waited = time.process_time(), time.perf_counter(), 0.0
            for _ in range(args.block):
                asked = time.perf_counter()
                batch = next(batches)
                waited += time.perf_counter() - asked
                trainer._after_step(trainer._train_step(batch))
            spent, wall = time.process_time() - began, time.perf_counter() - wall
            began = time.process_time()
            for batch in kept:
                bare.step(batch)
            if number:  # the first round warms up
                times["trainer"].append(spent / args.block)
                waits.append(waited / wall)
                times["bare"].append((time.process_time() - began) / args.block)
                print(f"round {number}/{args.rounds}", end="\r", file=sys.stderr)
        ratios = [a / b for a, b in zip(times["trainer"], times["bare"], strict=True)]
        return {
            "config": args.config,
            "trainer_ms": 1e3 * statistics.median(times["trainer"]),
            "bare_ms": 1e3 * statistics.median(times["bare"]),
            "overhead": statistics.median(ratios) - 1,
            "overhead_quartiles": [q - 1 for q in statistics.quantiles(ratios, n=4)],
            "data_wait": statistics.median(waits),
            "steps_each": args.rounds * args.block,
        }


def memory(args: argparse.Namespace) -> dict[str, object]:
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        trainer = open_trainer(args, folder)
        sizes = []
        for number, batch in enumerate(trainer._timed_batches(), start=1):
            trainer._after_step(trainer._train_step(batch))
            if number % (args.steps // 20) == 0:
                sizes.append(process.memory_info().rss / 1e6)
                print(f"step {number}/{args.steps}", end="\r", file=sys.stderr)
            if number == args.steps:
                break
    return {
        "config": args.config,
        "steps": args.steps,
        "rss_mb": [round(size, 1) for size in sizes],
        "growth_second_half_mb": round(sizes[-1] - sizes[len(sizes) // 2 - 1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["overhead", "memory"])
    parser.add_argument("--config", default=str(Path("configs") / "mac.yaml"))
    parser.add_argument("--data", default=None)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--block", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"overhead": overhead, "memory": memory}[args.what](args), indent=1))


if __name__ == "__main__":
    main()
