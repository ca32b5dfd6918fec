"""Hugging Face's `generate`: greedy, sampling and beams, cached and not, padded and alone."""

import pytest
import torch

from support.models import VARIANTS, tiny_model, tiny_tokens
from titans.errors import TitansError
from titans.models.generation import Sampling, choose, continue_from, read

GREEDY = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}


@pytest.mark.parametrize("case", [*VARIANTS, "mag-paper", "mac-one-layer", "mac-predictive"])
def test_cached_generation_equals_uncached_with_left_padded_prompts(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens(batch=3, time=21)
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    mask[2, :17] = 0
    cached = model.generate(ids, attention_mask=mask, use_cache=True, **GREEDY)
    uncached = model.generate(ids, attention_mask=mask, use_cache=False, **GREEDY)
    assert torch.equal(cached, uncached)
    for row, start in enumerate((0, 6, 17)):
        alone = model.generate(ids[row : row + 1, start:], **GREEDY)
        assert torch.equal(cached[row, 21:], alone[0, 21 - start :])


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal"])
def test_beam_search_reorders_the_cache(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens(time=11)
    beams = {**GREEDY, "num_beams": 4}
    assert torch.equal(
        model.generate(ids, use_cache=True, **beams), model.generate(ids, use_cache=False, **beams)
    )


@pytest.mark.parametrize("case", ["mac", "transformer"])
def test_sampling_is_the_same_with_and_without_cache(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens(time=9)
    settings = {"do_sample": True, "max_new_tokens": 8, "pad_token_id": 0}
    torch.manual_seed(3)
    cached = model.generate(ids, use_cache=True, **settings)
    torch.manual_seed(3)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **settings))


@pytest.mark.parametrize("case", ["lmm", "mac", "transformer"])
def test_generate_goes_on_from_a_cache(case: str) -> None:
    """Given the whole text or only what follows the text that was read: the same result."""
    model, ids = tiny_model(case), tiny_tokens(time=24)
    want = model.generate(ids, **GREEDY)[:, 24:]
    cache = model.new_cache(2)
    with torch.no_grad():
        model(ids[:, :20], past_key_values=cache)
    whole = model.generate(ids, past_key_values=cache.fork(), **GREEDY)
    assert torch.equal(whole[:, 24:], want)
    tail = model.generate(ids[:, 20:], past_key_values=cache.fork(), **GREEDY)
    assert torch.equal(tail[:, 4:], want)
    # More new tokens than the cache has read: still not mistaken for the whole text.
    short = model.new_cache(2)
    with torch.no_grad():
        model(ids[:, :2], past_key_values=short)
    assert torch.equal(model.generate(ids[:, 2:], past_key_values=short, **GREEDY)[:, 22:], want)


def test_the_plain_loop_equals_generate() -> None:
    model, ids = tiny_model("mag"), tiny_tokens(batch=1, time=30)
    want = model.generate(ids, **GREEDY)[0, 30:].tolist()
    pieces: list[int] = []
    cache = model.new_cache(1)
    logits = read(model, ids, cache, piece=7, on_piece=pieces.append)
    got = continue_from(model, cache, logits, max_new_tokens=12, sampling=Sampling(temperature=0))
    assert list(got) == want
    assert pieces == [7, 7, 7, 7, 2]
    assert cache.position.tolist() == [42]


def test_top_k_and_top_p_cut_the_tail() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, -9.0]])
    generator = torch.Generator().manual_seed(0)

    def seen(**settings: float) -> set[int]:
        sampling = Sampling(temperature=2.0, **settings)  # type: ignore[arg-type]
        return {choose(logits, sampling, generator) for _ in range(200)}

    assert seen() >= {0, 1, 2}
    assert seen(top_k=2) == {0, 1}
    assert seen(top_p=0.3) == {0}
    with pytest.raises(ValueError, match="top_p must lie in"):
        Sampling(top_p=0)


def test_logits_that_are_nan_are_an_error() -> None:
    """And no token: the first of the vocabulary would be taken for an answer."""
    model = tiny_model("lmm")
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(TitansError, match="logits are NaN"):
        model.generate(tiny_tokens(), **GREEDY)
    with pytest.raises(TitansError, match="logits are NaN"):
        choose(model(tiny_tokens(batch=1)).logits[:, -1], Sampling(temperature=0))


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal", "transformer"])
def test_nan_behind_padding_changes_nothing(case: str) -> None:
    model, mask = tiny_model(case), torch.ones(2, 29, dtype=torch.long)
    mask[0, :4], mask[1, 25:] = 0, 0
    x, found = model.model.embed_tokens(tiny_tokens()).detach(), []
    for hidden in (0.0, float("nan")):
        model.zero_grad()
        given = x.masked_fill(mask[..., None] == 0, hidden).requires_grad_()
        logits = model(inputs_embeds=given, attention_mask=mask).logits[mask.bool()]
        logits.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([logits, given.grad, *(g.clone() for g in gradients)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # type: ignore[arg-type]
