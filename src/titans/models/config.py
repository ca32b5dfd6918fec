"""TitansConfig: everything that defines a model, in one Hugging Face configuration.

Field names are Hugging Face's where they have one; the rest are ours and the same as in the layers.
Sizes that fit a purpose: `titans.models.presets`.
"""

import difflib
from dataclasses import fields
from typing import Any, Literal

from transformers import PreTrainedConfig

from titans.errors import CheckpointError, ConfigError
from titans.layers.memory_init import MEMORY_INITS, default_init, passes_no_error
from titans.ops.options import WRITTEN_LAYERS

Variant = Literal["lmm", "mac", "mag", "mal", "transformer", "swa"]
VARIANTS: tuple[str, ...] = ("lmm", "mac", "mag", "mal", "transformer", "swa")
MEMORY_VARIANTS: tuple[str, ...] = ("lmm", "mac", "mag", "mal")
"""The variants that have a neural memory; the others are baselines."""
CHECKPOINT_VERSION = 1
"""Layout of the checkpoints that this version of the package writes, and the highest it reads."""


class TitansConfig(PreTrainedConfig):
    """Configuration of `TitansForCausalLM`. Every field has a default that works."""

    model_type = "titans"
    keys_to_ignore_at_inference = [  # noqa: RUF012
        "past_key_values",
        "memory_loss",
        "mean_step",
        "memory_stats",
        "predictor_loss",
    ]

    variant: str = "mac"
    """lmm | mac | mag | mal, or a baseline: transformer (full attention) | swa (sliding window)."""
    vocab_size: int = 32_000
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int | None = None
    """Width of the SwiGLU network; None: 8/3 of `hidden_size`, rounded up to a multiple of 32."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    """Measured: untied with a wide embedding learns recall several times sooner (docs/log)."""
    initializer_range: float = 0.02
    """Standard deviation of projections at the start."""
    embedding_init_std: float | None = None
    """Standard deviation of embeddings at the start; None: 0.1, or `initializer_range` if tied."""
    max_position_embeddings: int = 1_048_576
    """What tools may take for the longest input. Nothing in the model depends on it."""
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    window: int = 64
    """Sliding-window attention: a token sees itself and the `window - 1` tokens before it."""
    segment_len: int = 64
    """MAC: tokens per segment (C in the paper)."""
    num_persistent: int = 4
    """Persistent vectors per layer (N_p); mac, mag and mal."""
    mixer_conv_kernel: int | None = None
    """Width of a causal convolution over what each mixer reads, 0 is none; None: 4 for mac, mag and
    mal, whose attention could not tell neighbours otherwise, and 0 for the rest."""
    mac_gate: str = "convex"
    """MAC output: convex, `g a + (1 - g) m` with the attention a = y - S; normalised,
    `norm(y) * sigmoid(norm(m))`; or product, `y * m`. Measured: docs/log/models.md."""
    mag_gate: str = "convex"
    """MAG output: convex, `g a + (1 - g) m`, or paper, `norm(a) * sigmoid(norm(m))`."""

    memory_layers: list[int] | None = None
    """Layers that have a memory, counted from 0; None: all of them."""
    chunk_size: int = 16
    """Tokens whose gradients are taken at the same weights; 1 is the exact online rule."""
    memory_num_heads: int | None = None
    """Memories per layer; None: `num_attention_heads`."""
    memory_head_dim: int | None = None
    """Width of each memory's keys and values; None: `hidden_size / memory_num_heads`."""
    memory_value_dim: int | None = None
    """Width of each memory's values, if other than its keys'; None: `memory_head_dim`."""
    memory_depth: int = 2
    """Layers of each memory network; 1 is a matrix."""
    memory_expansion: float = 2.0
    """Hidden width of a memory network, in multiples of `memory_head_dim`."""
    memory_rule: str = "titans"
    """titans, or a published special case: ttt | delta | gated_delta."""
    memory_conv_kernel: int = 4
    """Width of the causal convolution on queries, keys and values; 0 switches it off."""
    memory_key_lag: int | None = None
    """Token before whose features keys start as (1: each token is bound to its predecessor); None:
    their own, with noise of the tokens before."""
    memory_value_norm: float | None = 4.0
    """Length of every value that is written, halved for each memory layer beyond two; None: as
    projected (the paper)."""
    memory_momentum: bool = True
    """Past surprise carries on (eta in eq. 14); False: eta = 0."""
    memory_forgetting: bool = True
    """Forgetting (alpha in eq. 13); False: alpha = 0."""
    memory_gates: str = "token"
    """Gates from each token, from a chunk's first token (chunk), or constant."""
    memory_gate_kernel: int = 0
    """Width of the causal convolution through which gates see the tokens before; 0: none."""
    memory_step_init: float = 0.1
    """Step size at the start of training: theta / (1 - eta)."""
    memory_step_max: float = 1.0
    """Largest step size."""
    memory_forget_init: float = 5e-4
    """Forgetting (alpha) at the start; keep its inverse above the lengths trained on."""
    memory_momentum_init: float = 0.5
    """Momentum (eta) at the start."""
    memory_init: str | None = None
    """The memory's first weights: learned, random (fixed), zero_first (fixed, first layer 0) or
    zero_last (learned, last layer 0); None: learned up to two layers, random beyond."""
    memory_written: str = "all"
    """Which of a memory's layers are written: all (the paper), or the first or last alone; the
    others stay as they start, or as they are learned (`memory_init`)."""
    forget_towards: str = "initial"
    """What forgetting returns to: initial (the learned start) or zero (the paper)."""
    step_limit: float | None = 1.0
    """Stabiliser: the largest share of its own error that a write may undo; None: off."""
    memory_gradient: str = "full"
    """Outer gradient through the recurrence: full (second order) or truncated."""

    write_gate: str = "none"
    """Surprise-gated writing: none, associative or predictive."""
    surprise_threshold: float | None = None
    """tau: with a `write_gate`, tokens that surprise no more than this are not written."""
    surprise_measure: str = "loss"
    """Associative gate: loss or grad_norm."""
    write_threshold: float | None = None
    """Outside training, a token whose step size (theta) is below this is not written at all."""
    train_with_threshold: bool = False
    """The write threshold holds in training, too: for gates that are trained already."""
    predictor_loss_weight: float = 0.01
    """Weight of the predictive gate's auxiliary loss."""
    checkpoint_version: int = CHECKPOINT_VERSION
    """Layout of the checkpoint; one that is newer than the package is refused."""

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in derived sizes and refuse what cannot be meant."""
        _refuse_typos(self, kwargs)
        super().__post_init__(**kwargs)
        if self.intermediate_size is None:
            self.intermediate_size = -(-self.hidden_size * 8 // 3 // 32) * 32
        if self.embedding_init_std is None:
            self.embedding_init_std = self.initializer_range if self.tie_word_embeddings else 0.1
        if self.mixer_conv_kernel is None:
            self.mixer_conv_kernel = 4 if self.variant in ("mac", "mag", "mal") else 0
        if self.memory_num_heads is None:
            self.memory_num_heads = self.num_attention_heads
        if self.memory_head_dim is None:
            self.memory_head_dim = self.hidden_size // max(self.memory_num_heads, 1)
        if self.memory_init is None:
            self.memory_init = default_init(self.memory_depth)
        _check(self)

    @classmethod
    def register_for_auto_class(cls, auto_class: object = "AutoConfig") -> None:
        """Nothing to do: saving a model writes the file that Auto classes need."""

    @property
    def has_memory(self) -> bool:
        """Whether any layer has a neural memory."""
        return any(self.layer_has_memory(i) for i in range(self.num_hidden_layers))

    def layer_has_memory(self, layer: int) -> bool:
        """Whether this layer has a neural memory."""
        if self.variant not in MEMORY_VARIANTS:
            return False
        return self.memory_layers is None or layer in self.memory_layers


_CHOICES: dict[str, tuple[str, ...]] = {
    "variant": VARIANTS,
    "mac_gate": ("convex", "normalised", "product"),
    "mag_gate": ("paper", "convex"),
    "memory_rule": ("titans", "ttt", "delta", "gated_delta"),
    "memory_gates": ("token", "chunk", "constant"),
    "memory_init": MEMORY_INITS,
    "memory_written": WRITTEN_LAYERS,
    "forget_towards": ("initial", "zero"),
    "memory_gradient": ("full", "truncated"),
    "write_gate": ("none", "associative", "predictive"),
    "surprise_measure": ("loss", "grad_norm"),
}
_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "window",
    "segment_len",
    "chunk_size",
    "memory_num_heads",
    "memory_head_dim",
    "memory_depth",
)


def _check(config: TitansConfig) -> None:
    # First of all: a newer layout may hold settings that would be misread below.
    if config.checkpoint_version > CHECKPOINT_VERSION:
        raise CheckpointError(
            f"the checkpoint was written by a newer version of titans-neural-memory (layout "
            f"{config.checkpoint_version}; this version reads up to {CHECKPOINT_VERSION}): "
            "upgrade the package"
        )
    for name, allowed in _CHOICES.items():
        if getattr(config, name) not in allowed:
            raise ConfigError(
                f"{name} must be one of {', '.join(allowed)}; got {getattr(config, name)!r}"
            )
    for name in _POSITIVE:
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(config, name)}")
    for name in ("num_persistent", "mixer_conv_kernel", "memory_conv_kernel", "memory_gate_kernel"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{name} must be 0 or more, got {getattr(config, name)}")
    lag, reach = config.memory_key_lag, config.memory_conv_kernel
    if lag is not None and not 0 <= lag < reach:
        raise ConfigError(
            f"memory_key_lag must be below memory_conv_kernel ({reach}), which is how far keys can "
            f"look back; got {lag}"
        )
    if config.memory_value_dim is not None and config.memory_value_dim < 1:
        raise ConfigError(f"memory_value_dim must be at least 1, got {config.memory_value_dim}")
    if not 0 <= config.memory_step_init <= config.memory_step_max:
        raise ConfigError(
            f"memory_step_init must lie in [0, memory_step_max = {config.memory_step_max}], got "
            f"{config.memory_step_init}"
        )
    if config.memory_init == "zero_first" and config.memory_depth < 2:
        raise ConfigError("memory_init='zero_first' needs a memory_depth of 2 or more, got 1")
    if config.memory_written != "all" and config.memory_rule != "titans":
        raise ConfigError(
            f"memory_written={config.memory_written!r} has no effect with "
            f"memory_rule={config.memory_rule!r}; use all"
        )
    if passes_no_error(config.memory_written, config.memory_init, config.memory_depth):
        raise ConfigError(
            f"memory_written={config.memory_written!r} and memory_init={config.memory_init!r}: no "
            "error reaches the layer that is written; choose another memory_init"
        )
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"hidden_size ({config.hidden_size}) must be a multiple of num_attention_heads "
            f"({config.num_attention_heads})"
        )
    outside = [i for i in config.memory_layers or [] if not 0 <= i < config.num_hidden_layers]
    if outside:
        raise ConfigError(
            f"memory_layers names layers {outside}; this model has layers 0 to "
            f"{config.num_hidden_layers - 1}"
        )
    if config.memory_gate_kernel and config.memory_gates == "constant":
        raise ConfigError(
            f"memory_gate_kernel={config.memory_gate_kernel} has no effect with "
            "memory_gates='constant'; choose token or chunk"
        )
    if config.write_gate != "none" and config.surprise_threshold is None:
        raise ConfigError(
            f"write_gate={config.write_gate!r} needs a surprise_threshold (0 writes everything "
            "that surprises at all)"
        )
    if config.write_gate == "none" and config.surprise_threshold is not None:
        raise ConfigError(
            f"surprise_threshold={config.surprise_threshold} has no effect with "
            "write_gate='none'; choose associative or predictive"
        )


def _refuse_typos(config: TitansConfig, kwargs: dict[str, Any]) -> None:
    """Hugging Face keeps unknown keys; one that nearly is a field of ours is a mistake."""
    names = [field.name for field in fields(config)]
    for key in kwargs:
        close = difflib.get_close_matches(key, names, n=1, cutoff=0.8)
        if close and not hasattr(PreTrainedConfig, key):
            raise ConfigError(f"unknown setting {key!r}; did you mean {close[0]!r}?")
