"""What a text memory is made of. The neural part is kept in the store and belongs to it."""

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

from titans.errors import ConfigError
from titans.recall.encoder import DEFAULT_ENCODER, Pooling

Retrieval = Literal["fusion", "memory"]
Roles = Literal["associative", "self"]


@dataclass(frozen=True, kw_only=True)
class NeuralConfig:
    """The neural memory of a scope: what its weights are and how they learn."""

    roles: Roles = "associative"
    """What is written. `associative`: head 0 maps a text's vector to its words (its loss is the
    surprise), head 1 maps it to what stood around it. `self`: one head, W_K y -> W_V y."""
    dim: int | None = None
    """Width of the vector per text; None is the encoder's own, without a projection."""
    depth: int = 1
    """Layers of the memory network."""
    bias: bool = False
    """Biases in the projections and in the memory network."""
    num_attention_heads: int = 4
    """Heads of the attention over persistent vectors, memory and text."""
    num_persistent: int = 4
    """N_p: persistent vectors in front of every text."""
    dropout: float = 0.0
    """Dropout of that attention, in training."""
    step_size: tuple[float, ...] = (0.05, 0.15)
    """theta of each head."""
    momentum_decay: float = 0.0
    """eta: how much of the past surprise is kept."""
    forget_gate: float = 0.0
    """alpha: how much is forgotten at each write."""
    seed: int = 0
    """Of the untrained parameters."""

    def __post_init__(self) -> None:
        heads = 2 if self.roles == "associative" else 1
        if len(self.step_size) != heads:
            raise ConfigError(
                f"roles={self.roles!r} has {heads} heads, step_size {len(self.step_size)} values"
            )
        if self.dim is not None and self.dim % self.num_attention_heads:
            raise ConfigError(
                f"dim ({self.dim}) must be a multiple of num_attention_heads "
                f"({self.num_attention_heads})"
            )
        if self.depth < 1:
            raise ConfigError(f"depth must be at least 1, got {self.depth}")
        for name in ("momentum_decay", "forget_gate", "dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if any(step < 0 for step in self.step_size):
            raise ConfigError(f"step_size must not be negative, got {self.step_size}")

    @property
    def num_heads(self) -> int:
        """Heads of the memory."""
        return len(self.step_size)


@dataclass(frozen=True, kw_only=True)
class RecallConfig:
    """A text memory: encoder, neural memory, gate, retrieval, upkeep."""

    encoder: str = DEFAULT_ENCODER
    """`minilm`, `hashing`, or a Hugging Face model by name or path."""
    pooling: Pooling = "mean"
    """How token vectors become one vector."""
    neural: NeuralConfig = NeuralConfig()
    """The neural memory."""
    checkpoint: str | None = None
    """Projections, attention, persistent vectors and initial memory from `titans memory train`."""
    retrieval: Retrieval = "fusion"
    """`fusion` of what words, vectors, speakers and dates say; `memory`: cosine of o = y * M(y)."""
    top_k: int = 3
    """K: memories in an enriched prompt."""
    threshold: float = 0.05
    """tau: memories in an enriched prompt score above this."""
    gate_quantile: float = 0.25
    """The share of least surprising texts that is not written to the neural memory."""
    gate_window: int = 256
    """The gate is that quantile over this many latest texts."""
    duplicate_threshold: float = 0.8
    """Texts at least this similar that say nothing new are linked as one group."""
    session_gap_hours: float = 6.0
    """Neighbouring texts further apart in time do not count as context of each other."""
    snapshot_every: int = 1024
    """Neural writes between snapshots of the state."""
    keep_snapshots: int = 8
    """Snapshots kept per scope, spread over its history."""
    remember_answers: bool = True
    """Whether `turn` stores the model's answers too."""

    def __post_init__(self) -> None:
        for name in ("gate_quantile", "duplicate_threshold", "threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        for name in ("top_k", "gate_window", "snapshot_every", "keep_snapshots"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    def change(self, **changes: object) -> "RecallConfig":
        """A copy with some fields changed; unknown names are errors."""
        known = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ConfigError(f"unknown setting {', '.join(unknown)}; known: {sorted(known)}")
        return replace(self, **changes)  # type: ignore[arg-type]


def classic(encoder: str = DEFAULT_ENCODER) -> RecallConfig:
    """The preset of the original algorithm: d = 128, one head of depth 2, forgetting and momentum.

    Its memory forgets with a half-life of 34 writes, and without trained projections its search
    vector means nothing: for study, and for checkpoints of `titans memory train`.
    """
    neural = NeuralConfig(
        roles="self",
        dim=128,
        depth=2,
        bias=True,
        step_size=(0.01,),
        momentum_decay=0.9,
        forget_gate=0.02,
    )
    return RecallConfig(encoder=encoder, neural=neural, retrieval="memory", gate_quantile=0.0)


PRESETS = {"default": RecallConfig, "classic": classic}
"""Named configurations."""


def preset(name: str) -> RecallConfig:
    """A named configuration."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]()


def neural_to_json(config: NeuralConfig) -> str:
    """The neural part as text, for the store and checkpoints."""
    return json.dumps(asdict(config), sort_keys=True)


def neural_from_json(text: str) -> NeuralConfig:
    """The inverse."""
    values = json.loads(text)
    values["step_size"] = tuple(values["step_size"])
    return NeuralConfig(**values)
