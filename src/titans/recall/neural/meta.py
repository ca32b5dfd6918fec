"""The outer loop: episodes that teach projections, attention and persistent vectors to remember.

An episode writes six texts into a fresh memory and then reads it: with two texts that were not
written (generalisation), or with questions about written ones (recall). Loss: the write losses
plus || M(W_Q x) - sg(W_V x) ||^2 of the reads. First order by default: the memory's updates are
constants, so W_K and W_V learn from the writes and W_Q from the reads; `second_order`
differentiates through the writes. W_V = 0 would minimise both losses, so a contrastive term keeps
values apart and their variance up.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from titans import ops
from titans.errors import DataError
from titans.files import parse_json, read_text, write_tensors, write_text
from titans.layers.memory_networks import mlp_parameters
from titans.ops import MemoryState
from titans.recall.config import NeuralConfig, neural_to_json
from titans.recall.encoder import Encoder
from titans.recall.neural.turn import TurnNetwork
from titans.recall.neural.turn_memory import CHECKPOINT_FORMAT, CHECKPOINT_VERSION

Progress = Callable[[int, int, float], None]
TEMPERATURE = 0.1
VARIANCE_WEIGHT = 10.0
"""Of a fall of the values' variance below where it began, inside the contrastive term."""


@dataclass(frozen=True, kw_only=True)
class MetaConfig:
    """How to meta-train."""

    episode_size: int = 8
    """N: texts per episode."""
    eval_share: float = 0.25
    """The share of an episode that is read and not written."""
    epochs: int = 10
    """Each epoch has floor(texts / N) episodes, reshuffled."""
    learning_rate: float = 1e-4
    """Of AdamW, without weight decay."""
    max_grad_norm: float = 1.0
    """Clip the gradient to this norm; 0 is off."""
    second_order: bool = False
    """Differentiate through the memory's updates, and learn its initial weights."""
    full_turn: bool = False
    """Run the whole turn, so that attention and persistent vectors learn too."""
    ask_texts: bool = False
    """Without questions: in every second episode written texts ask for themselves (recall)."""
    contrast: float = 1.0
    """Weight of the contrastive term; 0 is the bare losses (values may collapse)."""
    held_out: float = 0.2
    """The share of the texts that only measures."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.episode_size < 2 or not 0 < self.eval_share < 1:
            raise ValueError(
                f"an episode needs at least 2 texts and an eval_share in (0, 1), got "
                f"{self.episode_size} and {self.eval_share}"
            )
        if self.epochs < 0:
            raise ValueError(f"epochs must not be negative, got {self.epochs}")

    @property
    def num_eval(self) -> int:
        """N_e: texts that are read."""
        return max(1, round(self.episode_size * self.eval_share))


@dataclass(frozen=True)
class EpisodeLoss:
    """The three parts of an episode's loss."""

    write: Float[Tensor, ""]
    read: Float[Tensor, ""]
    contrast: Float[Tensor, ""]

    def total(self, weight: float) -> Float[Tensor, ""]:
        """What the optimizer minimises."""
        return self.write + self.read + weight * self.contrast


def run_episode(
    turn: TurnNetwork,
    written: Float[Tensor, "texts encoder_dim"],
    queries: Float[Tensor, "queries encoder_dim"],
    targets: Float[Tensor, "queries encoder_dim"],
    state: MemoryState,
    config: MetaConfig,
    variance_floor: float = 0.0,
) -> EpisodeLoss:
    """Write texts one by one, then read with queries; targets are the texts that they mean.

    Args:
        variance_floor: the variance of values below which the contrastive term pushes back.
    """
    write_losses: list[Tensor] = []
    values: list[Tensor] = []
    for pooled in written:
        x = _turn_input(turn, pooled[None], state, config)
        key, value = turn.pairs(x)
        values.append(value[0])
        loss, state = _write(turn, key, value, state, config)
        write_losses.append(loss)
    x = torch.cat([_turn_input(turn, q[None], state, config) for q in queries])
    reads = ops.read_memory(turn.query(x)[None, :, None], state)[0, :, 0]
    wanted = turn.value(torch.cat([_turn_input(turn, t[None], state, config) for t in targets]))
    read_loss = (reads - wanted.detach()).square().sum(-1).sum()
    contrast = _contrast(reads, wanted, torch.stack(values))
    if variance_floor:
        spread = torch.cat([wanted, torch.stack(values)]).var(0, correction=0).sum()
        contrast = contrast + VARIANCE_WEIGHT * F.relu(1 - spread / variance_floor)
    return EpisodeLoss(torch.stack(write_losses).sum(), read_loss, contrast)


def _turn_input(
    turn: TurnNetwork, pooled: Tensor, state: MemoryState, config: MetaConfig
) -> Tensor:
    """What is written or asked: s, or with the full turn y."""
    s = turn.embed(pooled)
    if not config.full_turn:
        return s
    return turn.attend(s, turn.read(s, state)[:, -1])


def _write(
    turn: TurnNetwork, key: Tensor, value: Tensor, state: MemoryState, config: MetaConfig
) -> tuple[Tensor, MemoryState]:
    """The write loss at the present memory, and the memory after the write."""
    gates = ops.Gates(*(g[:, None] for g in turn.gates(1)))
    keys, values = key[:, None, None], value[:, None, None]
    if config.second_order:
        _, state, trace = ops.scan_memory(keys, keys, values, gates, state, chunk_size=1)
        return trace.surprise.loss.sum(), state
    predicted = ops.read_memory(keys, state)[0, 0, 0]
    loss = (predicted - value[0]).square().sum()
    keys, values = keys.detach(), values.detach()
    state = ops.scan_memory(keys, keys, values, gates, state, chunk_size=1)[1]
    return loss, state.detach()


def _contrast(reads: Tensor, wanted: Tensor, others: Tensor) -> Tensor:
    """Each read must be nearer to its own value than to the other values of the episode."""
    pool = F.normalize(torch.cat([wanted, others]), dim=-1)
    logits = F.normalize(reads, dim=-1) @ pool.T / TEMPERATURE
    # A question about a written text meets the same value twice: not an opponent.
    same = (pool[None] - pool[: len(wanted), None]).square().sum(-1) < 1e-10
    same &= ~torch.eye(len(wanted), len(pool), dtype=torch.bool)
    return F.cross_entropy(logits.masked_fill(same, -torch.inf), torch.arange(len(wanted)))


def start_state(turn: TurnNetwork, config: MetaConfig, generator: torch.Generator) -> MemoryState:
    """M_0: the learned weights with second order, else random for each episode."""
    if config.second_order:
        return turn.initial_state()
    widths = [turn.dim] * (turn.config.depth + 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        fresh = mlp_parameters(turn.config.num_heads, widths, turn.config.bias)
    return MemoryState.from_parameters(fresh, 1)


@dataclass(frozen=True)
class Pair:
    """A question (as an encoder vector) and the number of the text that answers it."""

    question: Tensor
    text: int


def train_turn(
    turn: TurnNetwork,
    texts: Float[Tensor, "texts encoder_dim"],
    pairs: Sequence[Pair],
    config: MetaConfig,
    progress: Progress | None = None,
) -> list[dict[str, float]]:
    """Meta-train in place; returns one row of mean losses per epoch."""
    if len(texts) < config.episode_size:
        raise DataError(
            f"an episode takes {config.episode_size} texts, there are {len(texts)}: add texts"
        )
    turn.train().requires_grad_(True)
    learned = [p for p in turn.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=config.learning_rate, weight_decay=0.0)
    rng = random.Random(config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    per_epoch = len(texts) // config.episode_size
    curve: list[dict[str, float]] = []
    floor = value_variance(turn, texts)
    for epoch in range(config.epochs):
        order = rng.sample(range(len(texts)), len(texts))
        totals = dict.fromkeys(("write", "read", "contrast"), 0.0)
        for number in range(per_epoch):
            chosen = order[number * config.episode_size : (number + 1) * config.episode_size]
            written, queries, targets = _episode(texts, pairs, chosen, config, rng)
            state = start_state(turn, config, generator)
            parts = run_episode(turn, written, queries, targets, state, config, floor)
            loss = parts.total(config.contrast)
            optimizer.zero_grad()
            loss.backward()
            if config.max_grad_norm:
                nn.utils.clip_grad_norm_(learned, config.max_grad_norm)
            optimizer.step()
            for name in totals:
                totals[name] += float(getattr(parts, name).detach()) / per_epoch
            if progress is not None:
                progress(
                    epoch * per_epoch + number + 1, config.epochs * per_epoch, float(loss.detach())
                )
        curve.append({"epoch": epoch + 1, **totals, "value_variance": value_variance(turn, texts)})
    turn.eval().requires_grad_(False)
    return curve


def _episode(
    texts: Tensor, pairs: Sequence[Pair], chosen: list[int], config: MetaConfig, rng: random.Random
) -> tuple[Tensor, Tensor, Tensor]:
    """Texts to write, queries, and the texts they mean. Every second episode asks questions."""
    written = chosen[: config.episode_size - config.num_eval]
    known = [p for p in pairs if p.text in written]
    if known and rng.random() < 0.5:
        asked = rng.sample(known, min(len(known), config.num_eval))
        queries = torch.stack([p.question for p in asked])
        return texts[written], queries, texts[[p.text for p in asked]]
    unseen = chosen[len(written) :]
    return texts[written], texts[unseen], texts[unseen]


@torch.no_grad()
def value_variance(turn: TurnNetwork, texts: Tensor) -> float:
    """The variance of the values over texts: zero when W_V has collapsed."""
    values = turn.value(turn.embed(texts))
    return float(values.var(0, correction=0).sum())


@torch.no_grad()
def measure_retrieval(turn: TurnNetwork, texts: Tensor, pairs: Sequence[Pair]) -> dict[str, float]:
    """Write all texts, ask for each: how often is the right one first?

    `read` ranks by the cosine of M(W_Q q) and W_V x, `search` by that of o = y * M(y) and s,
    `encoder` by that of the encoder's own vectors. Without pairs a text asks for itself.
    """
    turn.eval()
    asked = pairs or [Pair(text, number) for number, text in enumerate(texts)]
    # As in use: the whole turn, from the turn's own initial memory.
    config = MetaConfig(full_turn=True)
    state = turn.initial_state()
    for pooled in texts:
        y = _turn_input(turn, pooled[None], state, config)
        key, value = turn.pairs(y)
        _, state = _write(turn, key, value, state, config)
    stored = turn.embed(texts)
    values = turn.value(stored)
    found: dict[str, float] = dict.fromkeys(("read", "search", "encoder"), 0.0)
    for pair in asked:
        y = _turn_input(turn, pair.question[None], state, config)
        m = turn.read(y, state)[:, 0]
        ranked = {
            "read": F.cosine_similarity(m, values, dim=-1),
            "search": F.cosine_similarity(turn.output(y, m), stored, dim=-1),
            "encoder": F.cosine_similarity(pair.question[None], texts, dim=-1),
        }
        for name, scores in ranked.items():
            found[name] += float(scores.argmax() == pair.text) / len(asked)
    return {f"{name}_top1": round(share, 4) for name, share in found.items()}


def train_checkpoint(
    path: Path,
    encoder: Encoder,
    neural: NeuralConfig,
    texts: Sequence[str],
    questions: Sequence[tuple[str, str]],
    config: MetaConfig,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Encode, train, measure on held-out texts before and after, save; returns a report.

    Args:
        questions: (question, text that answers it); the texts join `texts`.
    """
    distinct = list(dict.fromkeys([*texts, *(text for _, text in questions)]))
    vectors = embed_texts(encoder, distinct)
    where = {text: number for number, text in enumerate(distinct)}
    asked = embed_texts(encoder, [question for question, _ in questions])
    pairs = [Pair(v, where[text]) for v, (_, text) in zip(asked, questions, strict=True)]
    first_held = round(len(distinct) * (1 - config.held_out))
    train_pairs = [p for p in pairs if p.text < first_held]
    if config.ask_texts and not train_pairs:
        train_pairs = [Pair(vector, number) for number, vector in enumerate(vectors[:first_held])]
    held_pairs = [Pair(p.question, p.text - first_held) for p in pairs if p.text >= first_held]
    held = vectors[first_held:]
    turn = TurnNetwork(encoder.dim, neural)
    before = measure_retrieval(turn, held, held_pairs) if len(held) else {}
    curve = train_turn(turn, vectors[:first_held], train_pairs, config, progress)
    after = measure_retrieval(turn, held, held_pairs) if len(held) else {}
    write_tensors(
        path,
        turn.state_dict(),
        CHECKPOINT_FORMAT,
        CHECKPOINT_VERSION,
        {"neural": neural_to_json(neural), "encoder": encoder.name},
    )
    report: dict[str, Any] = {
        "texts": first_held,
        "held_out_texts": len(held),
        "questions": len(questions),
        "before": before,
        "after": after,
        "checkpoint": path.name,
    }
    notes = {**report, "config": asdict(config), "curve": curve}
    write_text(path.with_suffix(".json"), json.dumps(notes, indent=1) + "\n")
    return report


def embed_texts(encoder: Encoder, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
    """The encoder's mean-pooled vectors."""
    found = [
        torch.from_numpy(tokens.pool("mean"))
        for begin in range(0, len(texts), 16)
        for tokens in encoder.encode(texts[begin : begin + 16])
    ]
    return torch.stack(found) if found else torch.empty(0, encoder.dim)


def load_texts(path: Path) -> list[str]:
    """A text per line, or JSON lines with a field `text`."""
    return [_field(line, "text") for line in _lines(path)]


def load_questions(path: Path) -> list[tuple[str, str]]:
    """JSON lines with the fields `question` and `text`."""
    return [(_field(line, "question"), _field(line, "text")) for line in _lines(path)]


def _lines(path: Path) -> list[str]:
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty")
    return lines


def _field(line: str, name: str) -> str:
    if not line.lstrip().startswith("{"):
        if name != "text":
            raise DataError(
                f'expected JSON lines like {{"question": .., "text": ..}}: {line[:60]!r}'
            )
        return line.strip()
    values = parse_json(line, "a line")
    if name not in values:
        raise DataError(f"no field {name!r} in {line[:60]!r}")
    return str(values[name])
