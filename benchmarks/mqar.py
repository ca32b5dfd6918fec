"""MQAR, setting B (Zoology): our memory, deep and linear, beside delta rule, gated delta rule, TTT.

    python benchmarks/mqar.py --rule titans --dim 64 --minutes 60 --json results/mqar/titans-64.json

The model is the published one: tied embedding of 8,192 tokens, layer 0 a BaseConv, layer 1 the
mixer, pre-LayerNorm residuals, no feed-forward network, no positions. All rules have the same
state: 4,096 numbers at width 64, 16,384 at width 128 (momentum would count; the tails of
convolutions do not). Training draws the five published segments in their published shares, short
ones first; time is CPU time of one thread, the same for all; the learning rate falls with it. Then
the seven test segments, in a record.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from tqdm import tqdm

from titans.data.tasks.mqar import SETTING_B_TRAIN, SETTING_B_TRAIN_EXAMPLES
from titans.data.tasks.records import IntArray
from titans.evaluation.mqar import Mqar
from titans.evaluation.records import ModelCard
from titans.evaluation.runner import run_task
from titans.evaluation.subject import Reading, weights_digest
from titans.models import TitansConfig
from titans.models.rules import build_memory

VOCABULARY = 8_192
TOKENS_PER_STEP = 4_096
LEARNING_RATE = 3e-3
LOOK_BACK = 8
SHAPES: dict[str, dict[str, object]] = {
    # One head as wide as the model, h: a matrix of h^2 numbers, or two layers of h x h/2. Momentum
    # would double the state, and narrower values cost more than it brings (docs/log/evaluation.md).
    "titans": {
        "memory_expansion": 0.5,
        "memory_momentum": False,
        "memory_forgetting": False,
        "memory_init": "zero_last",
        "memory_value_norm": 1.0,
        "memory_gate_kernel": LOOK_BACK,
        "chunk_size": 32,
    },
    # One layer, chunks of one token, neither momentum nor forgetting: then our rule is the delta
    # rule. What differs is what its gates see.
    "titans_linear": {"memory_rule": "delta", "memory_gate_kernel": LOOK_BACK},
    "ttt": {"memory_expansion": 0.5},
    "delta": {},
    "gated_delta": {},
}


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
        self.conv, self.memory = BaseConv(dim), build_memory(config)

    def forward(self, ids: Tensor) -> Tensor:
        """Normalised hidden states; logits are their products with the embeddings."""
        x = self.dropout(self.embedding(ids))
        x = x + self.conv(self.conv_norm(x))
        x = x + self.memory(self.memory_norm(x))[0]
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embedding.weight.mT

    def state_numbers(self) -> int:
        """What the mixer keeps of a text: weights, and momentum where the rule has it."""
        weights = sum(w.numel() for w in self.memory.initial_memory)
        return weights * (2 if self.memory.gates.settings.use_momentum else 1)


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


def config_for(rule: str, dim: int, settings: dict[str, object]) -> TitansConfig:
    fixed = {"variant": "lmm", "memory_num_heads": 1, "hidden_size": dim, "memory_rule": rule}
    return TitansConfig(**{**fixed, **SHAPES[rule], **settings})


def train(model: Zoo, minutes: float, seed: int, learning_rate: float) -> dict[str, object]:
    """Train for so many minutes of CPU time; returns what it came to."""
    rng = np.random.default_rng(seed)
    groups = parameter_groups(model)
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98))
    begin, steps, tokens, recent = time.process_time(), 0, 0, 0.0
    bar = tqdm(total=100, unit="%", file=sys.stderr, disable=None)
    while (done := (time.process_time() - begin) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = (
                learning_rate * min(1, (steps + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * done))
            )
        task = SETTING_B_TRAIN[choose(rng, done)]
        drawn = task.batch(rng, TOKENS_PER_STEP // task.length)
        labels = torch.from_numpy(drawn.labels)
        asked = labels != -100
        logits = model.logits(model(torch.from_numpy(drawn.tokens))[asked])
        loss = nn.functional.cross_entropy(logits, labels[asked])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps, tokens = steps + 1, tokens + drawn.tokens.size
        if steps % 20 == 0:
            right = float((logits.argmax(-1) == labels[asked]).float().mean())
            recent = 0.8 * recent + 0.2 * right
            bar.update(int(100 * done) - bar.n)
            bar.set_postfix(step=steps, loss=f"{loss.item():.2f}", accuracy=f"{recent:.2f}")
    bar.close()
    return {"steps": steps, "tokens": tokens, "minutes": minutes, "learning_rate": learning_rate}


def choose(rng: np.random.Generator, done: float) -> int:
    """A segment: one more of them after each tenth of the time, then their published shares."""
    known = min(len(SETTING_B_TRAIN), 1 + int(10 * done))
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
            "memory_rule": config.memory_rule,
            "hidden_size": config.hidden_size,
            "chunk_size": config.chunk_size,
            "memory_gate_kernel": config.memory_gate_kernel,
            "state_numbers": model.state_numbers(),
            **training,
        },
    )


def main(arguments: Sequence[str] | None = None) -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rule", required=True, choices=sorted(SHAPES))
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=60.0, help="CPU time of the training")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--samples", type=int, default=500, help="per test segment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--json", type=Path, help="write the record here")
    args = parser.parse_args(arguments)
    settings = {k: yaml.safe_load(v) for k, v in (s.split("=", 1) for s in args.set)}
    torch.manual_seed(args.seed)
    config = config_for(args.rule, args.dim, settings)
    model = Zoo(config).train()
    training = train(model, args.minutes, args.seed, args.learning_rate)
    name = f"{args.rule.replace('titans_', 'titans ')} {args.dim}"
    record = run_task(
        Mqar(setting="b", samples=args.samples),
        ZooSubject(model, name),  # type: ignore[arg-type]
        card(model, name, config, training),
        path=args.json,
        command=f"python benchmarks/mqar.py {' '.join(sys.argv[1:])}",
    )
    print(training, model.state_numbers())
    for score in record.scores:
        print(score.length, score.detail, f"{score.value:.3f}")
    print("mean", f"{sum(s.value for s in record.scores) / len(record.scores):.3f}")


if __name__ == "__main__":
    main()
