"""The chunk-parallel scan, against the specification: values, state, surprise and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parity import OPTIONS, assert_parity, memory_inputs, random_mask
from titans.ops import Gates, MemoryState, ScanOptions, reference_options, scan_memory


@pytest.mark.parametrize("time", [1, 15, 16, 17, 63])
@pytest.mark.parametrize("chunk_size", [1, 16, 64])
def test_lengths_around_a_chunk(time: int, chunk_size: int) -> None:
    inputs = memory_inputs(time=time)
    assert_parity(scan_memory, reference_options.scan_memory, inputs, chunk_size=chunk_size)


@pytest.mark.parametrize("chunk_size", [1, 16, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_two_hundred_tokens(chunk_size: int, masked: bool) -> None:
    inputs = memory_inputs(time=200, batch=1, heads=1)
    if masked:
        inputs.mask = random_mask(1, 200)
    assert_parity(scan_memory, reference_options.scan_memory, inputs, chunk_size=chunk_size)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_depths(depth: int, bias: bool) -> None:
    inputs = memory_inputs(time=37, depth=depth, bias=bias)
    assert_parity(scan_memory, reference_options.scan_memory, inputs, chunk_size=16)


@pytest.mark.parametrize("masks", ["none", "mask", "both"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, masks: str) -> None:
    inputs = memory_inputs(time=21, bias=True, options=OPTIONS[name])
    if masks != "none":
        inputs.mask = random_mask(2, 21)
    if masks == "both":
        inputs.write_mask = random_mask(2, 21, seed=2)
    assert_parity(scan_memory, reference_options.scan_memory, inputs, chunk_size=8)


@pytest.mark.parametrize("name", ["l2", "huber", "towards_initial"])
@pytest.mark.parametrize("depth", [1, 3])
def test_residual_memory(name: str, depth: int) -> None:
    loss = "huber" if name == "huber" else "l2"
    towards = "initial" if name == "towards_initial" else "zero"
    options = ScanOptions(residual=True, loss=loss, forget_towards=towards)
    inputs = memory_inputs(time=21, key_dim=5, value_dim=5, depth=depth, options=options)
    assert_parity(scan_memory, reference_options.scan_memory, inputs, chunk_size=8)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_setting(data: st.DataObject) -> None:
    """Hypothesis draws what the other tests leave open."""
    draw = data.draw
    time, batch = draw(st.integers(1, 24)), draw(st.integers(1, 3))
    # No round numbers: a clipped Huber gradient can be as long as 4, but for rounding.
    threshold = draw(st.sampled_from([None, 1.1, 4.1]))
    options = ScanOptions(
        loss=draw(st.sampled_from(["l2", "huber", "lp"])),
        momentum=draw(st.booleans()),
        written=draw(st.sampled_from(["all", "first", "last"])),
        forget_towards=draw(st.sampled_from(["zero", "initial"])),
        max_grad_norm=draw(st.sampled_from([None, 0.7])),
        surprise_threshold=threshold,
        surprise_measure=draw(st.sampled_from(["loss", "grad_norm"])),
        skip_unsurprising=threshold is not None and draw(st.booleans()),
        write_threshold=draw(st.sampled_from([None, 0.008])),
        step_limit=draw(st.sampled_from([None, 0.4])),
        read=draw(st.sampled_from(["after", "before"])),
        gradient=draw(st.sampled_from(["full", "truncated"])),
    )
    inputs = memory_inputs(
        batch=batch,
        time=time,
        heads=draw(st.integers(1, 2)),
        key_dim=draw(st.integers(1, 5)),
        hidden=draw(st.integers(1, 7)),
        value_dim=draw(st.integers(1, 5)),
        depth=draw(st.integers(1, 3)),
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 10_000)),
        options=options,
    )
    if draw(st.booleans()):
        inputs.mask = random_mask(batch, time, draw(st.integers(0, 99)), draw(st.floats(0, 1)))
    if draw(st.booleans()):
        inputs.write_mask = random_mask(batch, time, draw(st.integers(0, 99)))
    chunk_size = draw(st.integers(1, 20))
    assert_parity(scan_memory, reference_options.scan_memory, inputs, chunk_size=chunk_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_stays_near(dtype: torch.dtype) -> None:
    """float32 throughout; bfloat16 tokens with a float32 state."""
    inputs = memory_inputs(time=64, largest_step=0.01)
    layers = [w.float() for w in inputs.layers]  # type: ignore[union-attr]
    low = [t.to(dtype) for t in (inputs.queries, inputs.keys, inputs.values, *inputs.gates)]
    state = MemoryState.initial(layers, 2)
    fast, after, _ = scan_memory(*low[:3], Gates(*low[3:]), state, chunk_size=16)
    assert fast.dtype == dtype
    assert after.dtype == torch.float32
    exact = [t.double() for t in low]
    slow, _, _ = reference_options.scan_memory(
        *exact[:3], Gates(*exact[3:]), state.to(dtype=torch.float64), chunk_size=16
    )
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert (fast.double() - slow).abs().max() < tolerance * slow.abs().max()


def test_backward_memory_is_bounded_by_borders() -> None:
    """What a scan keeps for its backward is inputs and chunk borders, not per-token activations."""
    inputs = memory_inputs(time=512, batch=1, heads=1, hidden=64)
    leaves = [t.clone().requires_grad_() for t in (inputs.queries, inputs.keys, inputs.values)]
    output, _, _ = scan_memory(
        *leaves, Gates(*inputs.gates), MemoryState.initial(inputs.layers, 1), chunk_size=4
    )
    node = output.grad_fn
    while node is not None and not hasattr(node, "borders"):
        node = node.next_functions[0][0]
    assert node is not None, "the scan is not one autograd node any more"
    borders = len(node.borders)  # type: ignore[attr-defined]
    assert borders <= 512 // 16 + 2
