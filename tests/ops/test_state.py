"""Continuing, saving, selecting and resetting a state; what must not change, does not."""

import pytest
import torch
from torch import Tensor

from support.parity import Inputs, memory_inputs, random_mask
from titans.errors import StateError
from titans.ops import Gates, MemoryState, ScanOptions, scan_memory

STABLE = ScanOptions(step_limit=0.5, forget_towards="initial")


def scan(inputs: Inputs, state: MemoryState, begin: int, end: int | None, chunk_size: int = 8):
    part = slice(begin, end)
    return scan_memory(
        inputs.queries[:, part],
        inputs.keys[:, part],
        inputs.values[:, part],
        Gates(*(g[:, part] for g in inputs.gates)),
        state,
        chunk_size=chunk_size,
        mask=None if inputs.mask is None else inputs.mask[:, part],
        options=inputs.options,
    )[:2]


def assert_states_equal(a: MemoryState, b: MemoryState, tolerance: float = 1e-12) -> None:
    for name, tensor in a.named_tensors().items():
        torch.testing.assert_close(
            tensor, b.named_tensors()[name], rtol=tolerance, atol=tolerance, msg=name
        )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("cuts", [[1], [7], [8], [3, 4, 5], [8, 16], list(range(1, 30))])
def test_any_split_equals_the_whole(cuts: list[int], masked: bool) -> None:
    inputs = memory_inputs(time=30, bias=True, options=STABLE)
    if masked:
        inputs.mask = random_mask(2, 30)
    first = MemoryState.initial(inputs.layers, 2)
    whole, final = scan(inputs, first, 0, None)
    state, parts = first, []
    for begin, end in zip([0, *cuts], [*cuts, 30], strict=True):
        output, state = scan(inputs, state, begin, end)
        parts.append(output)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-12, atol=1e-12)
    assert_states_equal(state, final)


def test_gradients_cross_a_split() -> None:
    """Backpropagation through a state that was handed on equals that through the whole."""
    inputs = memory_inputs(time=20, options=STABLE)
    grads = []
    for cuts in ([], [5, 13]):
        leaves = [w.clone().requires_grad_() for w in inputs.layers]  # type: ignore[union-attr]
        state, total = MemoryState.initial(leaves, 2), torch.zeros((), dtype=torch.float64)
        for begin, end in zip([0, *cuts], [*cuts, 20], strict=True):
            output, state = scan(inputs, state, begin, end)
            total = total + output.square().sum()
        grads.append(torch.autograd.grad(total, leaves))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_save_load_continue(tmp_path) -> None:
    inputs = memory_inputs(time=30, bias=True, options=STABLE)
    first = MemoryState.initial(inputs.layers, 2)
    whole, final = scan(inputs, first, 0, None)
    _, middle = scan(inputs, first, 0, 13)
    middle.save(tmp_path / "state.safetensors")
    output, state = scan(inputs, MemoryState.load(tmp_path / "state.safetensors"), 13, None)
    torch.testing.assert_close(output, whole[:, 13:], rtol=1e-12, atol=1e-12)
    assert_states_equal(state, final)


def test_files_that_cannot_be_loaded(tmp_path) -> None:
    state = MemoryState.initial([torch.ones(1, 2, 2)], 1)
    path = tmp_path / "state.safetensors"
    state.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StateError, match="damaged"):
        MemoryState.load(path)
    path.write_bytes(whole.replace(b'"version":"1"', b'"version":"9"'))
    with pytest.raises(StateError, match="upgrade"):
        MemoryState.load(path)
    path.write_bytes(whole.replace(b"titans.memory_state", b"titans.other_things"))
    with pytest.raises(StateError, match="expected"):
        MemoryState.load(path)
    with pytest.raises(StateError, match="no such file"):
        MemoryState.load(tmp_path / "nowhere")


def test_size_is_constant() -> None:
    inputs = memory_inputs(time=30)
    state = MemoryState.initial(inputs.layers, 2)
    sizes = set()
    for begin in range(0, 30, 5):
        sizes.add(state.num_bytes)
        _, state = scan(inputs, state, begin, begin + 5)
    assert sizes == {state.num_bytes}


def test_rows_are_independent() -> None:
    inputs = memory_inputs(time=20)
    output, _ = scan(inputs, MemoryState.initial(inputs.layers, 2), 0, None)
    for tensor in (inputs.queries, inputs.keys, inputs.values, *inputs.gates):
        tensor[1] = torch.rand_like(tensor[1])
    other, _ = scan(inputs, MemoryState.initial(inputs.layers, 2), 0, None)
    assert torch.equal(output[0], other[0])
    assert not torch.equal(output[1], other[1])


@pytest.mark.parametrize("options", [ScanOptions(), STABLE, ScanOptions(read="before")])
@pytest.mark.parametrize("chunk_size", [1, 8, 64])
def test_causality_to_the_bit(chunk_size: int, options: ScanOptions) -> None:
    """Changing token t leaves every earlier output as it was, and changes a later one."""
    inputs = memory_inputs(time=21, options=options)
    start = MemoryState.initial(inputs.layers, 2)
    before, _ = scan(inputs, start, 0, None, chunk_size)
    for t in (0, 7, 8, 20):
        changed = memory_inputs(time=21, options=options)
        for tensor in (changed.queries, changed.keys, changed.values):
            tensor[:, t] += 1.0
        for gate in changed.gates:
            gate[:, t] = 0.5
        after, _ = scan(changed, start, 0, None, chunk_size)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t:], after[:, t:])


def test_nothing_happens_without_steps_and_forgetting() -> None:
    inputs = memory_inputs(time=20)
    alpha, eta, theta = inputs.gates
    inputs.gates = (torch.zeros_like(alpha), eta, torch.zeros_like(theta))
    first = MemoryState.initial(inputs.layers, 2)
    _, state = scan(inputs, first, 0, None)
    assert_states_equal(state.replace(position=first.position), first, tolerance=1e-15)


@pytest.mark.parametrize("place", [0, 3, 8, 19])
def test_a_masked_token_changes_nothing(place: int) -> None:
    """Wherever it stands; outputs, state and position are those of the sequence without it."""
    inputs = memory_inputs(time=20, options=STABLE)
    whole, final = scan(inputs, MemoryState.initial(inputs.layers, 2), 0, None)

    def insert(tensor: Tensor) -> Tensor:
        junk = torch.full_like(tensor[:, :1], 50.0)
        return torch.cat([tensor[:, :place], junk, tensor[:, place:]], dim=1)

    longer = Inputs(
        *(insert(t) for t in (inputs.queries, inputs.keys, inputs.values)),
        tuple(insert(g).clamp_max(1.0) for g in inputs.gates),  # type: ignore[arg-type]
        inputs.layers,
        options=STABLE,
    )
    longer.mask = torch.ones(2, 21, dtype=torch.bool)
    longer.mask[:, place] = False
    output, state = scan(longer, MemoryState.initial(inputs.layers, 2), 0, None)
    kept = torch.cat([output[:, :place], output[:, place + 1 :]], dim=1)
    torch.testing.assert_close(kept, whole, rtol=1e-12, atol=1e-12)
    assert (output[:, place] == 0).all()
    assert_states_equal(state, final)


def test_left_padding_of_different_lengths() -> None:
    """Each row keeps its own chunk borders."""
    inputs = memory_inputs(time=20, options=STABLE)
    inputs.mask = torch.ones(2, 20, dtype=torch.bool)
    inputs.mask[1, :5] = False
    output, state = scan(inputs, MemoryState.initial(inputs.layers, 2), 0, None)
    alone = memory_inputs(time=20, options=STABLE)
    row = Inputs(
        *(t[1:, 5:] for t in (alone.queries, alone.keys, alone.values)),
        tuple(g[1:, 5:] for g in alone.gates),  # type: ignore[arg-type]
        alone.layers,
        options=STABLE,
    )
    expected, final = scan(row, MemoryState.initial(inputs.layers, 1), 0, None)
    torch.testing.assert_close(output[1:, 5:], expected, rtol=1e-12, atol=1e-12)
    assert_states_equal(state.select([1]), final)
    assert state.position.tolist() == [20, 15]


def test_select_reset_detach_clone_to() -> None:
    inputs = memory_inputs(time=11)
    first = MemoryState.initial(inputs.layers, 2)
    _, state = scan(inputs, first, 0, None)
    twice = state.select([1, 0, 1])
    assert twice.batch == 3
    assert torch.equal(twice.weights[0][2], state.weights[0][1])
    fresh = state.reset(torch.tensor([True, False]), inputs.layers)
    assert_states_equal(fresh.select([0]), first.select([0]))
    assert_states_equal(fresh.select([1]), state.select([1]))
    copy = state.clone()
    copy.weights[0].zero_()
    assert state.weights[0].abs().sum() > 0
    assert state.to(dtype=torch.float32).dtype == torch.float32
    assert state.to(dtype=torch.float32).position.dtype == torch.long
    assert not state.detach().weights[0].requires_grad
    with pytest.raises(StateError, match="different configurations"):
        state.reset(torch.tensor([True, False]), [torch.ones(2, 3, 3, dtype=torch.float64)])


def test_surprise_falls_when_a_chunk_repeats() -> None:
    inputs = memory_inputs(time=4, key_dim=8, hidden=16)
    alpha, eta, theta = inputs.gates
    gates = Gates(torch.zeros_like(alpha), torch.full_like(eta, 0.3), torch.full_like(theta, 0.05))
    state, losses = MemoryState.initial(inputs.layers, 2), []
    for _ in range(6):
        _, state, trace = scan_memory(
            inputs.queries, inputs.keys, inputs.values, gates, state,
            chunk_size=4,
        )  # fmt: skip
        losses.append(trace.surprise.loss.mean().item())
    assert all(later < earlier for earlier, later in zip(losses[:-1], losses[1:], strict=True))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.ones(1)}, "unknown part 'weight'"),
        ({"weights.2": torch.ones(1)}, r"damaged part 'weights' \(0, 2\)"),
        ({"position": None}, "position missing"),
        ({"weights.0": None}, "weights.0 missing"),
    ],
)
def test_names_that_are_no_state(change: dict[str, torch.Tensor | None], message: str) -> None:
    named = MemoryState.initial([torch.ones(1, 2, 2)], 1).named_tensors() | change
    with pytest.raises(StateError, match=message):
        MemoryState.from_named_tensors({n: t for n, t in named.items() if t is not None})
