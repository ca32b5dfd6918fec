"""Twenty seeded training steps of every kind of model, then its reading, in float64."""

import random
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from golden.names import make_config
from titans.models import TitansForCausalLM

STEPS = 20
BASE: dict[str, Any] = {
    "vocab_size": 23,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "window": 12,
    "segment_len": 12,
    "chunk_size": 5,
    "num_persistent": 2,
}
VARIANTS = ("lmm", "mac", "mag", "mal", "transformer", "swa")
OPTIONS: dict[str, dict[str, Any]] = {
    "lmm-ttt": {"variant": "lmm", "memory_rule": "ttt"},
    "lmm-delta": {"variant": "lmm", "memory_rule": "delta"},
    "lmm-gated-delta": {"variant": "lmm", "memory_rule": "gated_delta"},
    "mac-delta": {"variant": "mac", "memory_rule": "delta"},
    "lmm-depth-1": {"variant": "lmm", "memory_depth": 1},
    "lmm-depth-4": {"variant": "lmm", "memory_depth": 4},
    "lmm-written-first": {"variant": "lmm", "memory_written": "first"},
    "lmm-written-last": {"variant": "lmm", "memory_written": "last"},
    "mac-zero-first": {"variant": "mac", "memory_init": "zero_first", "memory_written": "first"},
    "lmm-zero-last": {"variant": "lmm", "memory_init": "zero_last"},
    "lmm-gates-of-chunks": {"variant": "lmm", "memory_gates": "chunk"},
    "mac-gates-of-chunks": {"variant": "mac", "memory_gates": "chunk"},
    "lmm-constant-gates": {"variant": "lmm", "memory_gates": "constant"},
    "lmm-gates-look-back": {"variant": "lmm", "memory_gate_kernel": 3},
    "lmm-truncated": {"variant": "lmm", "memory_gradient": "truncated"},
    "mag-truncated": {"variant": "mag", "memory_gradient": "truncated"},
    "lmm-paper": {
        "variant": "lmm",
        "forget_towards": "zero",
        "step_limit": None,
        "memory_value_norm": None,
        "chunk_size": 2,
    },
    "mac-product": {"variant": "mac", "mac_gate": "product"},
    "mac-normalised": {"variant": "mac", "mac_gate": "normalised"},
    "mag-paper": {"variant": "mag", "mag_gate": "paper"},
    "lmm-associative": {"variant": "lmm", "write_gate": "associative", "surprise_threshold": 9.0},
    "lmm-gradient-norm": {
        "variant": "lmm",
        "write_gate": "associative",
        "surprise_threshold": 7.0,
        "surprise_measure": "grad_norm",
    },
    "lmm-predictive": {"variant": "lmm", "write_gate": "predictive", "surprise_threshold": 0.2},
    "lmm-threshold": {"variant": "lmm", "write_threshold": 0.046, "train_with_threshold": True},
    "lmm-small-parts": {
        "variant": "lmm",
        "memory_momentum": False,
        "memory_forgetting": False,
        "memory_key_lag": 1,
        "memory_value_dim": 6,
    },
}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"variant": name} for name in VARIANTS},
    # One layer each, to be quick.
    **{name: {"num_hidden_layers": 1, **options} for name, options in OPTIONS.items()},
    "lmm-second-layer": {"variant": "lmm", "memory_layers": [1]},
}
"""Name -> settings that differ from `BASE`."""


def build(settings: dict[str, Any], seed: int) -> TitansForCausalLM:
    """A model in float64, its first weights too: in float32 they depend on the processor."""
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float64)
    try:
        return TitansForCausalLM(make_config(**{**BASE, **settings})).double()
    finally:
        torch.set_default_dtype(torch.float32)


def trace(settings: dict[str, Any]) -> dict[str, list[float]]:
    """Losses and gradients of twenty steps, then logits of a text read in pieces and by token."""
    model = build(settings, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95))
    draw = random.Random(2)
    model.train()
    kinds = ("loss", "memory_loss", "mean_step", "written", "gradient", "read")
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(STEPS):
        ids = _repeating(draw, rows=2, half=12)
        out = model(input_ids=ids)
        # Not `out.loss`, which Hugging Face computes in float32.
        loss = cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        found["loss"].append(loss.item())
        if out.predictor_loss is not None:
            loss = loss + 0.01 * out.predictor_loss
        if out.memory_loss is not None:
            loss = loss + 0.1 * out.memory_loss + 0.01 * out.mean_step
            found["memory_loss"].append(out.memory_loss.item())
            found["mean_step"].append(out.mean_step.item())
            found["written"].append(out.memory_stats["written_share"].double().mean().item())
        optimizer.zero_grad()
        loss.backward()
        found["gradient"].append(float(clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
    return {**found, "read": _read(model, draw)}


def _repeating(draw: random.Random, rows: int, half: int) -> torch.Tensor:
    """Random tokens, twice: the second half can be known from the first."""
    ids = [[draw.randrange(BASE["vocab_size"]) for _ in range(half)] for _ in range(rows)]
    return torch.tensor([row + row for row in ids])


@torch.no_grad()
def _read(model: TitansForCausalLM, draw: random.Random) -> list[float]:
    """Logits after a piece, after a piece with padding, and after each of a few tokens."""
    model.eval()
    ids = _repeating(draw, rows=2, half=20)
    cache = model.new_cache(2)
    seen = [model(input_ids=ids[:, :17], past_key_values=cache).logits[:, -1]]
    mask = torch.ones(2, 17, dtype=torch.long)
    mask[0, :4] = 0
    out = model(input_ids=ids[:, 17:34], attention_mask=mask, past_key_values=cache)
    seen.append(out.logits[:, -1])
    for t in range(34, 40):
        seen.append(model(input_ids=ids[:, t : t + 1], past_key_values=cache).logits[:, -1])
    # A few columns of each: enough to tell.
    return torch.stack(seen)[..., ::7].flatten().tolist()
