"""How soon each model learns associative recall (MQAR, vocabulary 256), on one core.

    python benchmarks/models_recall.py --variant mac --length 64 --pairs 4
    python benchmarks/models_recall.py --variant mac --length 128 --pairs 8 --easy-first
    python benchmarks/models_recall.py --variant lmm --tie --json runs/tied.json

Stops at the accuracy asked for (held-out examples), at the last step, or when the time is up. Time
is CPU time of one thread, so that other work on the machine does not count.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from titans.models import TitansConfig, TitansForCausalLM
from titans.tasks.mqar import MqarGenerator

EVALUATE_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class RecallRun:
    """One training run."""

    variant: str
    length: int = 64
    pairs: int = 4
    hidden_size: int = 64
    layers: int = 2
    window: int = 16
    learning_rate: float = 3e-3
    """After 50 steps of warm-up; a cosine takes it to a tenth at the last step."""
    steps: int = 1500
    batch: int = 32
    minutes: float = 10.0
    target: float = 0.95
    seed: int = 0
    random_filler: bool = True
    easy_first: bool = False
    """Start with half the length and half the pairs, until nine of ten are answered."""
    settings: dict[str, object] | None = None
    """Further fields of `TitansConfig`."""


@dataclass(frozen=True, kw_only=True)
class RecallResult:
    """What came of it."""

    accuracy: float
    seconds: float
    """CPU time, one thread."""
    steps: int
    parameters: int
    first_half: float | None
    """Seconds until half of the queries were answered."""
    reached: bool
    far: float
    """Accuracy on queries further from their value than layers x window tokens."""


def build(run: RecallRun) -> TitansForCausalLM:
    config = TitansConfig(
        **{
            "variant": run.variant,
            "vocab_size": 256,
            "hidden_size": run.hidden_size,
            "num_hidden_layers": run.layers,
            "num_attention_heads": 2,
            "intermediate_size": 2 * run.hidden_size,
            "window": run.window,
            "segment_len": run.window,
            "memory": {"chunk_size": 16},
            **(run.settings or {}),
        }
    )
    return TitansForCausalLM(config)


def accuracy(
    model: TitansForCausalLM, tokens: torch.Tensor, labels: torch.Tensor, beyond: int = 0
) -> float:
    """Share of queries answered, of those more than `beyond` tokens after their value."""
    model.eval()
    with torch.no_grad():
        best = model(tokens, use_cache=False).logits.argmax(-1)
    model.train()
    place = torch.arange(tokens.shape[1])
    value_at = torch.where(tokens[:, None] == labels[..., None], place, len(place)).amin(-1)
    asked = (labels != -100) & (place - value_at > beyond)
    return float((best == labels)[asked].float().mean())


def train(run: RecallRun) -> RecallResult:
    """Train until the target or the time limit. MQAR's labels stand at the query: no shift."""
    torch.manual_seed(run.seed)
    rng = np.random.default_rng(run.seed)
    wanted = task_of(run, run.length, run.pairs)
    task = task_of(run, run.length // 2, run.pairs // 2) if run.easy_first else wanted
    model = build(run).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.learning_rate, weight_decay=0.01)
    held_out = _tensors(wanted, np.random.default_rng(10_000 + run.seed), 256)
    begin, steps, got, half = time.process_time(), 0, 0.0, None
    bar = tqdm(total=run.steps, unit="step", file=sys.stderr, disable=None)
    while steps < run.steps and time.process_time() - begin < 60 * run.minutes:
        tokens, labels = _tensors(task, rng, run.batch)
        for group in optimizer.param_groups:
            group["lr"] = run.learning_rate * schedule(steps, run.steps)
        asked = labels != -100
        logits = model(tokens, use_cache=False).logits[asked]
        loss = torch.nn.functional.cross_entropy(logits, labels[asked])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        bar.update()
        if steps % EVALUATE_EVERY == 0:
            got = accuracy(model, *held_out)
            if task is not wanted and accuracy(model, tokens, labels) >= 0.9:
                task = wanted
            bar.set_postfix(loss=f"{loss.item():.3f}", accuracy=f"{got:.3f}")
            if got >= 0.5 and half is None:
                half = time.process_time() - begin
            if got >= run.target:
                break
    bar.close()
    return RecallResult(
        accuracy=got,
        seconds=time.process_time() - begin,
        steps=steps,
        parameters=sum(p.numel() for p in model.parameters()),
        first_half=half,
        reached=got >= run.target,
        far=accuracy(model, *held_out, beyond=run.layers * run.window),
    )


def task_of(run: RecallRun, length: int, pairs: int) -> MqarGenerator:
    return MqarGenerator(
        length=length, num_pairs=pairs, vocab_size=256, random_filler=run.random_filler
    )


def schedule(step: int, steps: int) -> float:
    """Factor on the learning rate."""
    cosine = 0.55 + 0.45 * math.cos(math.pi * step / steps)
    return min(1.0, (step + 1) / 50) * cosine


def _tensors(task: MqarGenerator, rng: np.random.Generator, size: int) -> tuple[torch.Tensor, ...]:
    drawn = task.batch(rng, size)
    return torch.from_numpy(drawn.tokens), torch.from_numpy(drawn.labels)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variant", required=True)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--easy-first", action="store_true", help="half the length at first")
    parser.add_argument("--tie", action="store_true", help="tied head, embeddings at 0.02")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=JSON")
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    settings = {name: json.loads(value) for name, value in (s.split("=", 1) for s in args.set)}
    if args.tie:
        settings |= {"tie_word_embeddings": True}
    run = RecallRun(
        variant=args.variant,
        length=args.length,
        pairs=args.pairs,
        hidden_size=args.hidden_size,
        window=args.window,
        learning_rate=args.learning_rate,
        steps=args.steps,
        batch=args.batch,
        minutes=args.minutes,
        target=args.target,
        seed=args.seed,
        easy_first=args.easy_first,
        settings=settings,
    )
    result = {"run": asdict(run), "result": asdict(train(run))}
    print(json.dumps(result))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
