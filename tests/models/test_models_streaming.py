"""Any split of the input, any padding and any interruption gives the same logits as one pass."""

import copy
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from support.models import CASES, VARIANTS, tiny_config, tiny_model, tiny_tokens
from titans.errors import StateError
from titans.models import TitansCache, TitansForCausalLM

SPLITS = ([1] * 29, [8, 8, 13], [5, 1, 1, 22], [28, 1])


def in_pieces(
    model: TitansForCausalLM, ids: Tensor, sizes: list[int], mask: Tensor | None = None
) -> tuple[Tensor, TitansCache]:
    cache, begin, logits = model.new_cache(ids.shape[0]), 0, []
    with torch.no_grad():
        for size in sizes:
            end = begin + size
            seen = None if mask is None else mask[:, :end]
            out = model(ids[:, begin:end], attention_mask=seen, past_key_values=cache)
            logits.append(out.logits)
            begin = end
    return torch.cat(logits, dim=1), cache


@pytest.mark.parametrize("case", CASES)
def test_any_split_equals_one_pass(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens()
    with torch.no_grad():
        whole = model(ids).logits
    for sizes in SPLITS:
        got, _ = in_pieces(model, ids, sizes)
        torch.testing.assert_close(got, whole, atol=1e-9, rtol=0)


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal", "transformer", "swa"])
def test_any_split_equals_one_pass_in_float32(case: str) -> None:
    model, ids = tiny_model(case, dtype=torch.float32), tiny_tokens(time=200)
    with torch.no_grad():
        whole = model(ids).logits
    for sizes in ([1] * 200, [64, 64, 72], [3, 190, 7]):
        got, _ = in_pieces(model, ids, sizes)
        torch.testing.assert_close(got, whole, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_padding_never_writes_and_never_shifts(case: str) -> None:
    """Rows with left, right and scattered padding equal the rows alone; pads hold any token."""
    model, ids = tiny_model(case), tiny_tokens(batch=3)
    mask = torch.ones_like(ids)
    mask[0, :11] = 0
    mask[1, 20:] = 0
    mask[2, 3:29:4] = 0
    with torch.no_grad():
        padded = model(ids, attention_mask=mask).logits
        for row in range(3):
            real = mask[row].bool()
            alone = model(ids[row : row + 1, real]).logits[0]
            torch.testing.assert_close(padded[row, real], alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_padded_rows_in_pieces(case: str) -> None:
    """Rows at different positions, over several calls: each keeps its own borders."""
    model, ids = tiny_model(case), tiny_tokens()
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    with torch.no_grad():
        alone = model(ids[1:, 9:]).logits[0]
        first = model(ids[:1]).logits[0]
    for sizes in ([12, 1, 1, 15], [3, 26], [9, 8, 12]):
        got, cache = in_pieces(model, ids, sizes, mask)
        torch.testing.assert_close(got[1, 9:], alone, atol=1e-9, rtol=0)
        torch.testing.assert_close(got[0], first, atol=1e-9, rtol=0)
        assert cache.position.tolist() == [29, 20]


CONTINUE = """
import sys, torch
from titans.models import TitansCache, TitansForCausalLM
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    model = TitansForCausalLM.from_pretrained(folder + "/model", dtype=torch.float64).eval()
    cache = TitansCache.load(folder + "/state.safetensors")
    with torch.no_grad():
        out = model(torch.load(folder + "/ids.pt"), past_key_values=cache)
    torch.save(out.logits, folder + "/logits.pt")
"""


def test_saved_cache_continues_identically_in_another_process(tmp_path: Path) -> None:
    wanted: dict[Path, Tensor] = {}
    for case in ("lmm", "mac", "mac-predictive", "mag", "mal", "swa", "transformer"):
        folder = tmp_path / case
        model, ids = tiny_model(case), tiny_tokens()
        _, cache = in_pieces(model, ids[:, :13], [13])
        cache.save(folder / "state.safetensors")
        model.save_pretrained(folder / "model")
        torch.save(ids[:, 13:], folder / "ids.pt")
        with torch.no_grad():
            wanted[folder] = model(ids[:, 13:], past_key_values=cache).logits
    subprocess.run([sys.executable, "-c", CONTINUE, *map(str, wanted)], check=True, timeout=300)
    for folder, logits in wanted.items():
        assert torch.equal(torch.load(folder / "logits.pt"), logits), folder.name


@pytest.mark.parametrize("case", ["lmm", "mac", "mag", "mal", "swa"])
def test_state_size_is_constant_to_the_byte(case: str) -> None:
    model = tiny_model(case, dtype=torch.float32)
    sizes = []
    cache = model.new_cache(1)
    with torch.no_grad():
        for time in (1, 7, 8, 300, 1_000):
            model(tiny_tokens(1, time), past_key_values=cache, logits_to_keep=1)
            sizes.append(cache.num_bytes)
    assert set(sizes) == {model.new_cache(1).num_bytes}


@pytest.mark.parametrize("case", ["mac", "mag", "transformer"])
def test_fork_is_independent(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens(batch=1)
    _, cache = in_pieces(model, ids, [29])
    two = cache.fork(2)
    questions = tiny_tokens(batch=2, time=5, seed=9)
    with torch.no_grad():
        forked = model(questions, past_key_values=two).logits
        for row in range(2):
            one = model(questions[row : row + 1], past_key_values=cache.fork()).logits
            torch.testing.assert_close(one[0], forked[row], atol=1e-9, rtol=0)
    assert cache.position.tolist() == [29]


@pytest.mark.parametrize("case", ["lmm", "mac", "mag-predictive", "mal", "transformer", "swa"])
def test_reset_starts_rows_anew_and_leaves_the_others(case: str) -> None:
    model, ids = tiny_model(case), tiny_tokens()
    again = tiny_tokens(seed=5, time=17)
    _, cache = in_pieces(model, ids, [29])
    with torch.no_grad():
        fresh = model(again[:1]).logits[0]
        going_on = model(again, past_key_values=cache.fork()).logits[1]
        cache.reset(torch.tensor([True, False]))
        got = model(again, past_key_values=cache).logits
        torch.testing.assert_close(got[0], fresh, atol=1e-9, rtol=0)
        torch.testing.assert_close(got[1], going_on, atol=1e-9, rtol=0)
        cache.reset()
        torch.testing.assert_close(
            model(again, past_key_values=cache).logits[0], fresh, atol=1e-9, rtol=0
        )
    assert cache.get_seq_length() == 17


def test_reorder_moves_rows() -> None:
    model, ids = tiny_model("mac"), tiny_tokens()
    _, cache = in_pieces(model, ids, [29])
    swapped = cache.fork()
    swapped.reorder(torch.tensor([1, 0]))
    next_ids = tiny_tokens(time=3, seed=2)
    with torch.no_grad():
        plain = model(next_ids, past_key_values=cache).logits
        got = model(next_ids.flip(0), past_key_values=swapped).logits
    torch.testing.assert_close(got.flip(0), plain, atol=1e-9, rtol=0)


def test_gradients_flow_through_the_cache_until_detached() -> None:
    model, ids = tiny_model("mag"), tiny_tokens()
    cache = model.new_cache(2)
    model(ids[:, :10], past_key_values=cache)
    model(ids[:, 10:], past_key_values=cache.detach(), labels=ids[:, 10:]).loss.backward()
    detached = model.model.layers[0].mixer.memory.memory_0.grad
    assert detached is None or detached.abs().max() == 0
    model.zero_grad()
    cache = model.new_cache(2)
    model(ids[:, :10], past_key_values=cache)
    model(ids[:, 10:], past_key_values=cache, labels=ids[:, 10:]).loss.backward()
    assert model.model.layers[0].mixer.memory.memory_0.grad.abs().max() > 0


def test_cache_of_another_model_is_refused(tmp_path: Path) -> None:
    model = tiny_model("mac")
    other = TitansForCausalLM(tiny_config("mac", segment_len=16)).double()
    with pytest.raises(StateError, match="segment_len=16, this model has 8"):
        model(tiny_tokens(), past_key_values=other.new_cache(2))
    with pytest.raises(StateError, match=r"holds 3 rows, the input has 2; cache.fork"):
        model(tiny_tokens(), past_key_values=model.new_cache(3))
    with pytest.raises(StateError, match="must be a TitansCache"):
        model(tiny_tokens(), past_key_values=object())


def test_cache_from_before_gates_could_look_back_fits(tmp_path: Path) -> None:
    path, model = tmp_path / "state.safetensors", tiny_model("mac")
    cache = model.new_cache(1)
    # As of before the memory's settings had a section, and before gates could look back.
    flat = {"write_gate": "none", "chunk_size": 4, "memory_num_heads": 2, "memory_head_dim": 8}
    kept = {name: value for name, value in cache.layout.items() if "." not in name}
    cache.layout = {**kept, **flat, "mixer_conv_kernel": kept.pop("mixer_conv_size")}
    cache.save(path)
    TitansCache.load(path).check_fits(model.config)
    with pytest.raises(StateError, match=r"memory\.gate_conv_size=0, this model has 3"):
        TitansCache.load(path).check_fits(tiny_model("mac", memory={"gate_conv_size": 3}).config)


def test_damaged_cache_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    tiny_model("mac").new_cache(1).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StateError, match="damaged"):
        TitansCache.load(path)
    with pytest.raises(StateError, match="no such file"):
        TitansCache.load(tmp_path / "nothing")


def test_a_state_of_other_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    model, ids = tiny_model("mac"), torch.arange(6)[None]
    model(ids, use_cache=True).past_key_values.save(path)
    again = copy.deepcopy(model)
    expected = again(ids, past_key_values=TitansCache.load(path)).logits
    assert torch.equal(model(ids, past_key_values=TitansCache.load(path)).logits, expected)
    with torch.no_grad():
        model.model.layers[0].feed_forward.parameters().__next__()[0, 0] += 1e-3
    with pytest.raises(StateError, match="written by a model with other weights"):
        model(ids, past_key_values=TitansCache.load(path))
    on_purpose = TitansCache.load(path)
    on_purpose.written_by = None
    # What goes on with other weights belongs to them from then on.
    moved = model(ids, past_key_values=on_purpose).past_key_values
    moved.save(path)
    model(ids, past_key_values=TitansCache.load(path))


def test_a_state_without_a_digest_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    model, ids = tiny_model("mac"), torch.arange(6)[None]
    cache = model(ids, use_cache=True).past_key_values
    notes = {"format": "titans.cache", "version": "1", "columns": "6"}
    tensors = {name: tensor.clone() for name, tensor in cache.named_tensors().items()}
    save_file(tensors, path, {**notes, "layout": json.dumps(cache.layout)})
    loaded = TitansCache.load(path)
    expected = model(ids, past_key_values=cache.fork()).logits
    assert torch.equal(model(ids, past_key_values=loaded).logits, expected)


@pytest.mark.parametrize("layers", [10**9, 3, 0, -1, 2.5, "2", None])
def test_a_state_that_claims_other_layers_is_refused_at_once(layers: object, tmp_path) -> None:
    path = tmp_path / "s.safetensors"
    cache = tiny_model("mac").new_cache(1)
    cache.layout = {**cache.layout, "num_hidden_layers": layers}
    cache.save(path)
    begun = time.monotonic()
    with pytest.raises(StateError, match="layers are claimed, 2 are there"):
        TitansCache.load(path)
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_input_without_rows_or_tokens_is_refused(variant: str) -> None:
    """No rows was a division by zero, or logits of nothing."""
    model = tiny_model(variant)
    for shape, missing in (((0, 5), "batch is 0"), ((1, 0), "time is 0")):
        with pytest.raises(ValueError, match=f"empty input: {missing}; give at least one"):
            model(input_ids=torch.zeros(shape, dtype=torch.long))
