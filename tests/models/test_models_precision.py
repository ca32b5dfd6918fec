"""Every variant in half precision: as a module of that type, and under autocast."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.models import tiny_model, tiny_tokens
from titans.models import TitansForCausalLM

HALF = [torch.bfloat16, torch.float16]
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
RULES = {
    "gated delta": {"memory": {"rule": "gated_delta"}},
    "kda": {"memory": {"rule": "kda"}},
    "least squares": {"memory": {"rule": "least_squares", "depth": 1}},
    "ttt": {"memory": {"rule": "ttt"}},
}


def distance(found: Tensor, wanted: Tensor) -> float:
    """Of all logits together: one alone may be at a place where rounding is amplified."""
    return ((found.float() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("way", ["module", "autocast"])
@pytest.mark.parametrize(
    "case", ["lmm", "mac", "mag", "mal", "mac-predictive", "transformer", "swa", *RULES]
)
def test_training_reading_and_generation(case: str, way: str, dtype: torch.dtype) -> None:
    ids = tiny_tokens()
    changes = RULES.get(case, {})
    model = tiny_model("lmm" if changes else case, dtype=torch.float32, **changes)
    wanted = model(ids).logits
    context = torch.autocast("cpu", dtype) if way == "autocast" else nullcontext()
    if way == "module":
        model.to(dtype)  # pyright: ignore[reportArgumentType]
    model.train()
    with context:
        output = model(ids, labels=ids)
    output.loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients)
    model.eval()
    with context, torch.no_grad():
        cache = model.new_cache(2)
        parts = [model(part, past_key_values=cache).logits for part in ids.split([11, 17, 1], 1)]
        texts = model.generate(  # type: ignore[operator]  # pyright: ignore[reportAttributeAccessIssue]
            ids, max_new_tokens=5, do_sample=False, eos_token_id=None
        )
    assert texts.shape == (2, 34)
    assert output.logits.dtype == dtype
    assert distance(torch.cat(parts, 1), wanted) < 16 * ROUNDING[dtype]
    for block in cache.blocks:
        if block.memory is not None:
            tensors = block.memory.named_tensors().values()
            assert {t.dtype for t in tensors} <= {torch.float32, torch.int64}


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_checkpoint_is_loaded_in_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model("mac", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = TitansForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert loaded.dtype == dtype
    ids = tiny_tokens()
    with torch.no_grad():
        wanted, found = model(ids).logits, loaded(ids).logits
    assert distance(found, wanted) < 16 * ROUNDING[dtype]
