"""MQAR, setting B (Zoology): our memory, deep and linear, beside delta, gated delta, KDA, TTT.

    python benchmarks/mqar.py --rule titans --dim 64 --minutes 60 --learning-rate 6e-3 \
        --decorrelate 0.02 --resume runs/mqar/titans-64.pt --json results/mqar/titans-64.json
    python benchmarks/mqar.py --rule delta --dim 64 --minutes 60 --learning-rate 6e-3 \
        --json results/mqar/delta-64.json

The model is the published one: tied embedding of 8,192 tokens, layer 0 a BaseConv, layer 1 the
mixer, pre-LayerNorm residuals, no feed-forward network, no positions. All rules have the same
state: 4,096 numbers at width 64, 16,384 at width 128 (momentum would count; the tails of
convolutions and layers that are not written do not). Training draws the five published segments in
their published shares, short ones first; time is CPU time of one thread, the same for all; the
learning rate falls with it. Then the seven test segments, in a record.
"""

import argparse
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from titans import NeuralMemory
from titans.evaluation.model import Reading, model_settings, weights_digest
from titans.evaluation.record import ModelCard
from titans.evaluation.runner import run_task
from titans.models import TitansConfig
from titans.settings import apply_settings
from titans.tasks.mqar import SETTING_B_TRAIN, SETTING_B_TRAIN_EXAMPLES, Mqar
from titans.tasks.tokens import IntArray, TokenBatch

VOCABULARY = 8_192
TOKENS_PER_STEP = 4_096
LEARNING_RATE = 3e-3
LOOK_BACK = {"titans": 32, "titans_linear": 8, "titans_products": 32}
"""Tokens that the gates of our rules see."""
LARGEST_STEP = {64: 0.06, 128: 0.03}
"""Of ours, by width: smaller steps disturb older pairs less."""
OVERLAP_TOKENS, RAMP = 512, 0.2
"""Tokens whose keys and values are compared; share of the time in which the weight grows."""
MINUTES_PER_SEGMENT = 0.5
KEEP_SECONDS = 120
RULES = ("titans", "titans_linear", "titans_products", "ttt", "delta", "gated_delta", "kda")


def shape(rule: str, dim: int) -> dict[str, object]:
    """The memory's settings: `dim` times `dim` numbers as a matrix, two layers, or a first layer.

    Momentum would double the state. Of ours the first layer alone is written, the second stays as
    it starts, orthogonal; keys start as the token before; steps are small. What else was tried, and
    how it compares: docs/log/memory.md.
    """
    looks_back: dict[str, object] = {"gate_conv_size": LOOK_BACK.get(rule, 0)}
    if rule == "titans":
        step = LARGEST_STEP.get(dim, 0.06)
        return looks_back | {
            "rule": "chunk",
            "depth": 2,
            "head_dim": dim,
            "expansion": 1.0,
            "written": "first",
            "init": "zero_first",
            "key_lag": 1,
            "value_norm": 1.0,
            "step_init": 2 / 3 * step,
            "step_max": step,
            "momentum": False,
            "forgetting": False,
            "chunk_size": 32 if dim > 64 else 16,
        }
    if rule == "titans_linear":
        # One layer, chunks of one token, neither momentum nor forgetting: then our rule is the
        # delta rule. What differs is what its gates see.
        return looks_back | {"rule": "delta"}
    if rule == "titans_products":
        # The full online rule behind four products of the key per channel: four times the state.
        return looks_back | {
            "features": 4 * dim,
            "init": "zero_last",
            "key_lag": 1,
            "value_norm": 1.0,
            "step_init": 0.3,
            "step_max": 0.5,
            "momentum_init": 0.1,
            "forget_init": 1e-4,
        }
    return {"rule": rule, "depth": 2, "expansion": 0.5} if rule == "ttt" else {"rule": rule}


class BaseConv(nn.Module):
    """`conv(u) * linear(u) + u`, a causal convolution over three tokens per channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 3, groups=dim, padding=2)
        self.linear = nn.Linear(dim, dim)

    def forward(self, u: Tensor) -> Tensor:
        mixed = self.conv(u.mT)[..., : u.shape[1]].mT
        return mixed * self.linear(u) + u


class Zoo(nn.Module):
    """The two-layer model of setting B."""

    def __init__(self, config: TitansConfig) -> None:
        super().__init__()
        dim = config.hidden_size
        self.embedding = nn.Embedding(VOCABULARY, dim)
        nn.init.normal_(self.embedding.weight, std=config.initializer_range)
        self.dropout = nn.Dropout(0.1)
        self.conv_norm, self.memory_norm, self.norm = (nn.LayerNorm(dim) for _ in range(3))
        self.conv, self.memory = BaseConv(dim), NeuralMemory(dim, config.memory)

    def forward(self, ids: Tensor) -> Tensor:
        """Normalised hidden states; logits are their products with the embeddings."""
        return self.remember(self.mix(ids))

    def mix(self, ids: Tensor) -> Tensor:
        """Layer 0: embeddings and the convolution."""
        x = self.dropout(self.embedding(ids))
        return x + self.conv(self.conv_norm(x))

    def remember(self, x: Tensor) -> Tensor:
        """Layer 1: the memory."""
        return self.norm(x + self.memory(self.memory_norm(x))[0])

    def overlap(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """How much keys of different tokens resemble each other, and values: 2 is by chance."""
        past = max(self.memory.config.conv_size - 1, 0)
        length = min(past + max(1, OVERLAP_TOKENS // len(x)), x.shape[1])
        begin = int(rng.integers(x.shape[1] - length + 1))
        some = self.memory_norm(x[:, begin : begin + length])
        pair = self.memory.associations(some, self.memory.initial_state(len(x)))
        return sum(overlap(t[:, past:]) for t in pair)  # type: ignore[return-value]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embedding.weight.mT

    def state_numbers(self) -> int:
        """What the mixer keeps of a text: weights, and momentum where the rule has it."""
        return self.memory.written_numbers * (2 if self.memory.config.momentum else 1)


def overlap(vectors: Tensor) -> Tensor:
    """Mean squared cosine of any two of `[batch time heads dim]`, per head, times their width:
    1 for random directions."""
    tokens = nn.functional.normalize(vectors.flatten(0, 1).transpose(0, 1), dim=-1)
    count = tokens.shape[1]
    squared = (tokens @ tokens.mT).square().sum((-1, -2)) - count
    return (squared / (count * (count - 1))).mean() * tokens.shape[-1]


class ZooSubject:
    """The model as `titans.evaluation` asks it."""

    vocab_size = VOCABULARY

    def __init__(self, model: Zoo, name: str) -> None:
        self.model, self.name = model.eval(), name

    def check_length(self, length: int) -> None:
        """Any length will do."""

    @torch.inference_mode()
    def predict(self, tokens: IntArray) -> Reading:
        hidden = self.model(torch.from_numpy(tokens))
        best = [self.model.logits(part).argmax(-1) for part in hidden.split(256, dim=1)]
        return Reading(torch.cat(best, dim=1).numpy(), 4 * self.model.state_numbers())


def config_for(rule: str, dim: int, settings: dict[str, Any]) -> TitansConfig:
    fixed = {"variant": "lmm", "vocab_size": VOCABULARY, "hidden_size": dim}
    memory = {"num_heads": 1, **shape(rule, dim), **settings.get("memory", {})}
    return TitansConfig(**{**fixed, **settings, "memory": memory})


def train(
    model: Zoo,
    minutes: float,
    seed: int,
    learning_rate: float,
    decorrelate: float,
    kept: Path | None,
) -> dict[str, object]:
    """Train for so many minutes of CPU time, going on from `kept`; returns what it came to."""
    groups = parameter_groups(model)
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98))
    so_far = Progress() if kept is None else restore(kept, model, optimizer)
    begin, saved = time.process_time() - so_far.seconds, so_far.seconds
    bar = tqdm(total=100, unit="%", file=sys.stderr, disable=None)
    while so_far.seconds < 60 * minutes:
        done = so_far.seconds / (60 * minutes)
        decay = 0.55 + 0.45 * math.cos(math.pi * done)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1, (so_far.steps + 1) / 50) * decay
        # What a step draws depends on the seed and its number alone, also after a break.
        rng = np.random.default_rng((seed, so_far.steps))
        torch.manual_seed(int(rng.integers(2**31)))
        task = SETTING_B_TRAIN[choose(rng, so_far.seconds / 60)]
        drawn = task.batch(rng, TOKENS_PER_STEP // task.length)
        right = step(model, optimizer, drawn, decorrelate * min(1, done / RAMP), rng)
        so_far.add(right, done)
        so_far.seconds = time.process_time() - begin
        if so_far.steps % 20 == 0:
            bar.update(int(100 * done) - bar.n)
            bar.set_postfix(step=so_far.steps, accuracy=f"{so_far.accuracy[-1]:.2f}")
        if kept is not None and so_far.seconds - saved > KEEP_SECONDS:
            saved = so_far.seconds
            keep(kept, model, optimizer, so_far)
    bar.close()
    return {
        "steps": so_far.steps,
        "tokens": so_far.steps * TOKENS_PER_STEP,
        "minutes": minutes,
        "learning_rate": learning_rate,
        "decorrelate": decorrelate,
        "training_accuracy": [round(share, 4) for share in so_far.accuracy],
    }


@dataclass
class Progress:
    """How far a training has come."""

    steps: int = 0
    seconds: float = 0.0
    """CPU time."""
    accuracy: list[float] = field(default_factory=list)
    """On what was drawn for training, the mean of each tenth of the time."""
    counted: int = 0
    """Steps of the last tenth."""

    def add(self, right: float, done: float) -> None:
        """Count a step that got so many of its answers right."""
        self.steps += 1
        if int(10 * done) >= len(self.accuracy):
            self.accuracy.append(0.0)
            self.counted = 0
        self.counted += 1
        self.accuracy[-1] += (right - self.accuracy[-1]) / self.counted


def step(
    model: Zoo,
    optimizer: torch.optim.Optimizer,
    drawn: TokenBatch,
    decorrelate: float,
    rng: np.random.Generator,
) -> float:
    """One step; returns the share of right answers."""
    labels = torch.from_numpy(drawn.labels)
    asked = labels != -100
    x = model.mix(torch.from_numpy(drawn.tokens))
    logits = model.logits(model.remember(x)[asked])
    loss = nn.functional.cross_entropy(logits, labels[asked])
    if decorrelate:
        loss = loss + decorrelate * model.overlap(x, rng)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()}: try a lower --learning-rate")
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float((logits.argmax(-1) == labels[asked]).float().mean())


def keep(path: Path, model: Zoo, optimizer: torch.optim.Optimizer, so_far: Progress) -> None:
    """Write all that a training needs to go on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save([model.state_dict(), optimizer.state_dict(), asdict(so_far)], partial)
    partial.replace(path)


def restore(path: Path, model: Zoo, optimizer: torch.optim.Optimizer) -> Progress:
    """Go on from a file of `keep`, or from the beginning if there is none."""
    if not path.exists():
        return Progress()
    weights, moments, so_far = torch.load(path)
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    return Progress(**so_far)


def choose(rng: np.random.Generator, minutes: float) -> int:
    """A segment: one more of them after each half minute, then their published shares."""
    known = min(len(SETTING_B_TRAIN), 1 + int(minutes / MINUTES_PER_SEGMENT))
    shares = np.array(SETTING_B_TRAIN_EXAMPLES[:known]) * [
        s.length for s in SETTING_B_TRAIN[:known]
    ]
    return int(rng.choice(known, p=shares / shares.sum()))


def parameter_groups(model: Zoo) -> list[dict[str, object]]:
    """Weight decay on matrices alone."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embedding" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen and p.requires_grad]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


def card(model: Zoo, name: str, config: TitansConfig, training: dict[str, object]) -> ModelCard:
    return ModelCard(
        name=name,
        variant="lmm",
        num_parameters=sum(p.numel() for p in model.parameters()),
        vocab_size=VOCABULARY,
        digest=weights_digest(model),
        settings={
            **model_settings(config),
            "state_numbers": model.state_numbers(),
            **training,
        },
    )


def main(arguments: Sequence[str] | None = None) -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rule", required=True, choices=RULES)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=60.0, help="CPU time of the training")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument(
        "--decorrelate",
        type=float,
        default=0.0,
        help="weight of a loss that keeps keys, and values, of different tokens apart; any rule",
    )
    parser.add_argument("--label", default="", help="stands behind the model's name in the record")
    parser.add_argument("--samples", type=int, default=500, help="per test segment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--resume", type=Path, help="keep the training here, and go on from it")
    parser.add_argument("--json", type=Path, help="write the record here")
    args = parser.parse_args(arguments)
    settings = apply_settings({}, args.set)
    torch.manual_seed(args.seed)
    config = config_for(args.rule, args.dim, settings)
    model = Zoo(config).train()
    try:
        training = train(
            model, args.minutes, args.seed, args.learning_rate, args.decorrelate, args.resume
        )
    except FloatingPointError as error:
        parser.exit(1, f"{args.rule} {args.dim} at {args.learning_rate} diverged: {error}\n")
    name = f"{args.rule.replace('titans_', 'titans ')} {args.dim} {args.label}".strip()
    record = run_task(
        Mqar(setting="b", samples=args.samples),
        ZooSubject(model, name),  # type: ignore[arg-type]
        card(model, name, config, training),
        path=args.json,
        command=shlex.join(["python", "benchmarks/mqar.py", *sys.argv[1:]]),
    )
    print(training, model.state_numbers())
    for score in record.scores:
        print(score.length, score.detail, f"{score.value:.3f}")
    print("mean", f"{sum(s.value for s in record.scores) / len(record.scores):.3f}")


if __name__ == "__main__":
    main()
