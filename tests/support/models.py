"""Tiny models of every variant, whose borders (chunk, segment, window) all fall inside a test."""

from typing import Any

import torch
from torch import Tensor

from titans.models import TitansConfig, TitansForCausalLM

VOCAB = 50
ONLINE: dict[str, Any] = {"rule": "online", "depth": 1}
"""The default of new models; the other cases keep the rule whose borders fall inside a test."""
CASES: dict[str, dict[str, Any]] = {
    "lmm": {"variant": "lmm"},
    "lmm-online": {"variant": "lmm", "memory": ONLINE},
    "mac-online": {"variant": "mac", "memory": ONLINE},
    "mag-online": {"variant": "mag", "memory": ONLINE | {"features": 6}},
    "mal-online": {"variant": "mal", "memory": ONLINE | {"depth": 2}},
    "mac": {"variant": "mac"},
    "mac-product": {"variant": "mac", "mac_gate": "product"},
    "mac-normalised": {"variant": "mac", "mac_gate": "normalised"},
    "mac-one-layer": {"variant": "mac", "memory_layers": [1]},
    "mac-uneven": {"variant": "mac", "memory": {"chunk_size": 3}, "segment_len": 7},
    "mag": {"variant": "mag"},
    "mag-paper": {"variant": "mag", "mag_gate": "paper"},
    "mag-one-layer": {"variant": "mag", "memory_layers": [0], "mixer_conv_size": 0},
    "mag-chunk-gates": {"variant": "mag", "memory": {"gates": "chunk"}},
    "mag-look-back": {"variant": "mag", "memory": {"gate_conv_size": 3}},
    "mal": {"variant": "mal"},
    "mal-paper": {"variant": "mal", "mal_residual": False},
    "mal-one-layer": {"variant": "mal", "memory_layers": [1]},
    "lmm-narrow-values": {"variant": "lmm", "memory": {"value_dim": 3, "init": "zero_first"}},
    "lmm-first-layer": {"variant": "lmm", "memory": {"written": "first"}},
    "mal-bare": {
        "variant": "mal",
        "num_persistent": 0,
        "memory": {"conv_size": 0},
        "mixer_conv_size": 0,
    },
    "lmm-associative": {"variant": "lmm", "memory": {"surprise_threshold": 1.0}},
    "mac-predictive": {"variant": "mac", "predictor_threshold": 0.3},
    "mag-predictive": {"variant": "mag", "predictor_threshold": 0.3},
    "lmm-threshold": {"variant": "lmm", "memory": {"write_threshold": 0.1}},
    "transformer": {"variant": "transformer"},
    "swa": {"variant": "swa"},
}
"""Every variant, with both gates, both placements and each kind of gated writing."""

VARIANTS = ("lmm", "mac", "mag", "mal", "transformer", "swa")


def tiny_config(case: str, **changes: Any) -> TitansConfig:
    """A tiny model of a case; of its memory, only what `memory` names is changed."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "window": 6,
        "segment_len": 8,
        "num_persistent": 3,
        # Far from the usual small scale, so that every path matters in comparisons.
        "initializer_range": 0.3,
    }
    memory = {
        "rule": "chunk",
        "depth": 2,
        "chunk_size": 4,
        **CASES[case].get("memory", {}),
        **changes.get("memory", {}),
    }
    return TitansConfig(**{**settings, **CASES[case], **changes, "memory": memory})


def tiny_model(
    case: str, *, dtype: torch.dtype = torch.float64, **changes: Any
) -> TitansForCausalLM:
    torch.manual_seed(0)
    return TitansForCausalLM(tiny_config(case, **changes)).to(dtype).eval()


def tiny_tokens(batch: int = 2, time: int = 29, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    # Token 0 is left for padding.
    return torch.randint(1, VOCAB, (batch, time), generator=generator)
