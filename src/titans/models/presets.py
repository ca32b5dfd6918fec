"""Model sizes by name. Every variant of a size has the same number of parameters, within 3 %.

Width, depth and heads are fixed per size; the feed-forward width takes up what the variants' token
mixers differ by, so that comparisons at one size are fair. `count_parameters` builds on the meta
device: nothing is allocated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from titans.errors import ConfigError
from titans.models.config import TitansConfig
from titans.models.lm import TitansForCausalLM

FEED_FORWARD_STEP = 8
"""Feed-forward widths are multiples of this."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a size fixes."""

    parameters: int
    """Parameters in all, embedding and head included."""
    settings: dict[str, Any]


def _small(parameters: int, width: int, layers: int, heads: int, window: int) -> Size:
    """Sizes that train on a CPU in minutes; bytes as tokens (256 and three special ones)."""
    return Size(
        parameters=parameters,
        settings={
            "vocab_size": 259,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "window": window,
            "segment_len": window,
            "memory": {"chunk_size": 16},
        },
    )


def _large(parameters: int, width: int, layers: int, heads: int) -> Size:
    """The paper's sizes: a vocabulary of 32,000, trained at 4,096 tokens."""
    return Size(
        parameters=parameters,
        settings={
            "vocab_size": 32_000,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "window": 512,
            "segment_len": 512,
            "memory": {"chunk_size": 64},
            "num_persistent": 16,
            "tie_word_embeddings": True,
        },
    )


SIZES: dict[str, Size] = {
    "nano": _small(200_000, 64, 2, 2, 32),
    "micro": _small(800_000, 128, 2, 4, 64),
    "tiny": _small(2_500_000, 192, 3, 6, 64),
    "small": _small(8_000_000, 256, 6, 4, 128),
    "170m": _large(170_000_000, 768, 12, 12),
    "340m": _large(340_000_000, 1_024, 18, 16),
    "400m": _large(400_000_000, 1_024, 21, 16),
    "760m": _large(760_000_000, 1_280, 26, 20),
}
"""Size name -> what it fixes. The Titans paper has 170M, 340M, 400M and 760M."""


def preset(size: str, variant: str = "mac", **changes: Any) -> TitansConfig:
    """The configuration of a size, e.g. `preset("tiny", "mag", window=128)`,
    or `preset("tiny", memory={"depth": 1})`.

    Changes that alter the token mixer change the parameter count; the feed-forward width then
    makes up for it, unless `intermediate_size` is given.
    """
    if size.lower() not in SIZES:
        raise ConfigError(f"no size {size!r}; there are {', '.join(SIZES)}")
    chosen = SIZES[size.lower()]
    settings = {**chosen.settings, "variant": variant, **changes}
    if isinstance(changes.get("memory"), Mapping):
        settings["memory"] = {**chosen.settings["memory"], **changes["memory"]}
    if "intermediate_size" in settings:
        return TitansConfig(**settings)
    base = TitansConfig(**{**settings, "intermediate_size": FEED_FORWARD_STEP})
    per_step = 3 * base.hidden_size * base.num_hidden_layers * FEED_FORWARD_STEP
    steps = 1 + round((chosen.parameters - count_parameters(base)) / per_step)
    if steps < 1:
        raise ConfigError(
            f"the {size} size has no room for a feed-forward network beside the rest of {variant} "
            f"({count_parameters(base):,} parameters); give intermediate_size"
        )
    return TitansConfig(**{**settings, "intermediate_size": steps * FEED_FORWARD_STEP})


def count_parameters(config: TitansConfig) -> int:
    """Parameters of a model, tied ones once."""
    with torch.device("meta"):
        model = TitansForCausalLM(config)
    return sum(parameter.numel() for parameter in model.parameters())
