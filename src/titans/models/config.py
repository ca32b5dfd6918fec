"""TitansConfig: everything that defines a model, in one Hugging Face configuration.

Field names are Hugging Face's where they have one. What belongs to the memory is in `memory`, under
the names of the layer.
Sizes that fit a purpose: `titans.models.presets`.
"""

import difflib
from dataclasses import asdict, fields
from typing import Any, Literal, cast

from transformers import PreTrainedConfig

from titans.errors import CheckpointError, ConfigError
from titans.layers.memory_config import MemoryConfig
from titans.models.upgrade import is_flat, refuse_flat, upgrade_config
from titans.settings import build, convert

Variant = Literal["lmm", "mac", "mag", "mal", "transformer", "swa"]
VARIANTS: tuple[str, ...] = ("lmm", "mac", "mag", "mal", "transformer", "swa")
MEMORY_VARIANTS: tuple[str, ...] = ("lmm", "mac", "mag", "mal")
"""The variants that have a neural memory; the others are baselines."""
CHECKPOINT_VERSION = 2
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
    mixer_conv_size: int | None = None
    """Width of a causal convolution over what each mixer reads, 0 is none; None: 4 for mac, mag and
    mal, whose attention could not tell neighbours otherwise, and 0 for the rest."""
    mac_gate: str = "convex"
    """MAC output: convex, `g a + (1 - g) m` with the attention a = y - S; normalised,
    `norm(y) * sigmoid(norm(m))`; or product, `y * m`. Measured: docs/log/models.md."""
    mag_gate: str = "convex"
    """MAG output: convex, `g a + (1 - g) m`, or paper, `norm(a) * sigmoid(norm(m))`."""
    mal_residual: bool = True
    """MAL: residuals around the memory and the attention, `m + attention(norm(x + m))`; False:
    `attention(norm(m))`, as in the paper's formula. Measured: docs/log/memory.md."""

    memory_layers: list[int] | None = None
    """Layers that have a memory, counted from 0; None: all of them."""
    memory: MemoryConfig = MemoryConfig()
    """Settings of each memory, also as a section: `{"depth": 1}`. Sizes that it leaves open follow
    `hidden_size` and `num_attention_heads`."""
    predictor_threshold: float | None = None
    """Predictive write gate: a token is written only if its embedding differs from what a predictor
    expected by more than this (squared); None: off."""
    predictor_loss_weight: float = 0.01
    """Weight of the predictive gate's auxiliary loss."""
    checkpoint_version: int = CHECKPOINT_VERSION
    """Layout of the checkpoint; one that is newer than the package is refused."""

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in derived sizes and refuse what cannot be meant."""
        _refuse_typos(self, kwargs)
        cast(Any, super()).__post_init__(**kwargs)
        if self.intermediate_size is None:
            self.intermediate_size = -(-self.hidden_size * 8 // 3 // 32) * 32
        if self.embedding_init_std is None:
            self.embedding_init_std = self.initializer_range if self.tie_word_embeddings else 0.1
        if self.mixer_conv_size is None:
            self.mixer_conv_size = 4 if self.variant in ("mac", "mag", "mal") else 0
        _check(self)
        self.memory = _memory(self.memory, self)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Hugging Face's, also from the content of a `config.json` of layout 1."""
        if is_flat(config_dict):
            version = max(config_dict.get("checkpoint_version", 1), CHECKPOINT_VERSION)
            config_dict = {**upgrade_config(config_dict), "checkpoint_version": version}
        return cast(object, cast(Any, super()).from_dict(config_dict, **kwargs))

    def to_dict(self) -> dict[str, Any]:
        """Hugging Face's, the memory's settings as a section."""
        return {**super().to_dict(), "memory": asdict(self.memory)}

    @classmethod
    def register_for_auto_class(cls, auto_class: object = "AutoConfig") -> None:
        """Nothing to do: saving a model writes the file that Auto classes need."""

    @property
    def has_predictor(self) -> bool:
        """Whether writes are gated by a predictor."""
        return self.predictor_threshold is not None

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
}
_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "window",
    "segment_len",
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
    for name in ("num_persistent", "mixer_conv_size"):
        if getattr(config, name) < 0:
            raise ConfigError(f"{name} must be 0 or more, got {getattr(config, name)}")
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


def _memory(given: object, config: TitansConfig) -> MemoryConfig:
    try:
        if not isinstance(given, MemoryConfig):
            given = build(MemoryConfig, convert(given or {}, dict[str, object], "settings"))
        return given.resolve(config.hidden_size, config.num_attention_heads)
    except ConfigError as error:
        raise ConfigError(f"memory: {error}") from error


def _refuse_typos(config: TitansConfig, kwargs: dict[str, Any]) -> None:
    """Hugging Face keeps unknown keys; one that nearly is a field of ours is a mistake."""
    names = [field.name for field in fields(config)]
    refuse_flat(kwargs)
    for key in kwargs:
        close = difflib.get_close_matches(key, names, n=1, cutoff=0.8)
        if close and not hasattr(PreTrainedConfig, key):
            raise ConfigError(f"unknown setting {key!r}; did you mean {close[0]!r}?")
