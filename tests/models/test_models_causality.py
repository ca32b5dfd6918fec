"""No token sees a later one, no row sees another, and everything learns."""

import pytest
import torch

from support.models import CASES, VOCAB, tiny_model, tiny_tokens


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_changing_a_token_leaves_earlier_logits_bit_identical(
    case: str, dtype: torch.dtype
) -> None:
    """Tokens at, before and after segment, chunk and window borders; inside a segment, too."""
    model, ids = tiny_model(case, dtype=dtype), tiny_tokens()
    with torch.no_grad():
        before = model(ids).logits
        for t in (0, 1, 5, 7, 8, 9, 15, 16, 20, 23, 28):
            changed = ids.clone()
            changed[:, t] = (ids[:, t] + 7) % VOCAB
            after = model(changed).logits
            assert torch.equal(before[:, :t], after[:, :t]), f"token {t} leaks backwards"
            assert not torch.equal(before[:, t], after[:, t])


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
def test_the_far_past_reaches_the_end_through_the_memory_alone(case: str) -> None:
    """Windows and segments do not carry token 0 to token 60; the memory does, unless it is off."""
    model, ids = tiny_model(case), tiny_tokens(time=61)
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 7) % VOCAB
    with torch.no_grad():
        assert not torch.equal(model(ids).logits[:, -1], model(changed).logits[:, -1])
        for mode in ("frozen", "off"):
            model.set_memory_mode(mode)
            assert torch.equal(model(ids).logits[:, -1], model(changed).logits[:, -1])


@pytest.mark.parametrize("case", CASES)
def test_rows_are_independent(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens()
    other = torch.cat((ids[:1], tiny_tokens(1, seed=8)))
    with torch.no_grad():
        assert torch.equal(model(ids).logits[0], model(other).logits[0])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_gets_a_gradient(case: str, tied: bool) -> None:
    model, ids = tiny_model(case, tie_word_embeddings=tied), tiny_tokens()
    model.train()
    model(ids, labels=ids).loss.backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().max() > 0
    ]
    assert without == []


def test_window_baseline_sees_layers_times_window_and_no_further() -> None:
    """Two layers of window 6 reach back 2 * 5 tokens."""
    model, ids = tiny_model("swa"), tiny_tokens()
    changed = ids.clone()
    changed[:, 3] = (ids[:, 3] + 1) % VOCAB
    with torch.no_grad():
        before, after = model(ids).logits, model(changed).logits
    assert not torch.equal(before[:, 13], after[:, 13])
    assert torch.equal(before[:, 14:], after[:, 14:])
