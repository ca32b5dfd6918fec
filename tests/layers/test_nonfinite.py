"""NaN and infinity: what came before stays, to the bit; the row is lost, or goes on without it."""

import pytest
import torch
from torch import Tensor

from support.parity import memory_inputs
from titans import MemoryConfig, NeuralMemory
from titans.layers.memory_config import Rule
from titans.ops import Gates, MemoryState, scan_memory, step
from titans.ops.delta import scan_delta
from titans.ops.least_squares import initial_known, scan_least_squares
from titans.ops.online import scan_online

NAN, INFINITY = float("nan"), float("inf")
STABLE = MemoryConfig().scan_options(training=True)
STEPS = [NAN, INFINITY, -INFINITY]


def layer(*, skip: bool = False) -> NeuralMemory:
    torch.manual_seed(0)
    return NeuralMemory(16, num_heads=2, chunk_size=8, skip_nonfinite=skip)


def with_bad(x: Tensor, time: int, value: float) -> Tensor:
    x = x.clone()
    x[0, time, 3] = value
    return x


@pytest.mark.parametrize("value", STEPS)
@pytest.mark.parametrize("time", [0, 5, 8, 23])
def test_a_row_is_lost_from_there_on(time: int, value: float) -> None:
    memory, x = layer(), torch.randn(2, 24, 16)
    wanted, after = memory(x)
    y, state, trace = memory(with_bad(x, time, value), return_trace=True)
    assert torch.equal(y[0, :time], wanted[0, :time])
    assert torch.equal(y[1], wanted[1])
    assert y[0, time:].isnan().all()
    assert trace.surprise.loss[0, time:].isnan().all()
    assert trace.surprise.loss[0, :time].isfinite().all()
    assert state.memory.lost.tolist() == [True, False]
    for name, tensor in state.named_tensors().items():
        assert torch.equal(tensor[1], after.named_tensors()[name][1]), name
    # It stays lost, and says so, until it is started anew.
    assert memory(x, state)[0][0].isnan().all()
    revived = memory.reset(state, state.memory.lost)
    assert torch.equal(memory(x, revived)[0][0], wanted[0])


@pytest.mark.parametrize("time", [0, 5, 23])
def test_the_gradients_of_what_came_before_are_as_without_it(time: int) -> None:
    x = torch.randn(2, 24, 16)
    found = []
    for given in (x, with_bad(x, time, NAN)):
        memory, given = layer(), given.clone().requires_grad_()
        y, _ = memory(given)
        (y[0, :time].square().sum() + y[1].square().sum()).backward()
        found.append([given.grad, *(p.grad for p in memory.parameters())])
    for clean, other in zip(*found, strict=True):
        assert clean is not None
        assert other is not None
        torch.testing.assert_close(other, clean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", STEPS)
def test_a_row_goes_on_without_the_token(value: float) -> None:
    memory, x = layer(skip=True), torch.randn(2, 24, 16)
    mask = torch.ones(2, 24, dtype=torch.bool)
    mask[0, 5] = False
    wanted, after = memory(x, mask=mask)
    y, state = memory(with_bad(x, 5, value))
    assert torch.equal(y, wanted)
    for name, tensor in state.named_tensors().items():
        assert torch.equal(tensor, after.named_tensors()[name]), name
    with torch.no_grad():
        ys, state = [], None
        for t in range(24):
            one, state = memory(with_bad(x, 5, value)[:, t : t + 1], state)
            ys.append(one)
    torch.testing.assert_close(torch.cat(ys, 1), wanted, rtol=1e-5, atol=1e-6)


def test_what_is_behind_a_mask_changes_nothing() -> None:
    x, mask = torch.randn(2, 24, 16), torch.ones(2, 24, dtype=torch.bool)
    mask[0, 20:], mask[1, :3] = False, False
    found = []
    for hidden in (0.5, NAN, INFINITY):
        memory, given = layer(), x.masked_fill(~mask[..., None], hidden).requires_grad_()
        y, state = memory(given, mask=mask)
        y.square().sum().backward()
        gradients = [p.grad for p in memory.parameters()]
        found.append([y, *state.named_tensors().values(), given.grad, *gradients])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))  # type: ignore[arg-type]


def test_what_is_behind_a_mask_changes_no_reading() -> None:
    x, mask = torch.randn(2, 24, 16), torch.ones(2, 24, dtype=torch.bool)
    mask[0, 20:], mask[1, :3] = False, False
    found = []
    for hidden in (0.5, NAN, INFINITY):
        memory, given = layer(), x.masked_fill(~mask[..., None], hidden).requires_grad_()
        y, state = memory.read(given, mask=mask)
        y.square().sum().backward()
        gradients = [p.grad for p in memory.parameters() if p.grad is not None]
        found.append([y, state.read_tail, given.grad, *gradients])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))  # type: ignore[arg-type]


def test_reading_goes_on_without_the_token() -> None:
    memory, x = layer(skip=True), torch.randn(2, 24, 16)
    mask = torch.ones(2, 24, dtype=torch.bool)
    mask[0, 5] = False
    wanted, after = memory.read(x, mask=mask)
    y, state = memory.read(with_bad(x, 5, NAN))
    assert torch.equal(y, wanted)
    assert torch.equal(state.read_tail, after.read_tail)


@pytest.mark.parametrize("rule", ["delta", "gated_delta", "kda", "ttt"])
def test_the_published_rules_go_on_without_the_token(rule: Rule) -> None:
    memory, x = NeuralMemory(16, rule=rule, skip_nonfinite=True), torch.randn(1, 24, 16)
    mask = torch.arange(24)[None] != 5
    y, state = memory(with_bad(x, 5, NAN))
    assert torch.equal(y, memory(x, mask=mask)[0])
    assert not state.memory.lost.any()


def tokens(time: int = 12, depth: int = 2) -> tuple[list[Tensor], Gates, MemoryState]:
    inputs = memory_inputs(time=time, depth=depth)
    state = MemoryState.initial(inputs.layers, 2)
    return [inputs.queries, inputs.keys, inputs.values], Gates(*inputs.gates), state


@pytest.mark.parametrize("which", ["keys", "values", "theta", "overflow"])
def test_the_scan_contains_a_token(which: str) -> None:
    """In one head; the other head and the other row go on."""
    (q, k, v), gates, state = tokens()
    run = {"chunk_size": 4, "options": STABLE}
    wanted, after, _ = scan_memory(q, k, v, gates, state, **run)
    given = {"keys": k.clone(), "values": v.clone(), "theta": gates.step_size.clone()}
    bad = given["values" if which == "overflow" else which]
    bad[0, 6, 1] = 1.7e308 if which == "overflow" else NAN
    gates = gates._replace(step_size=given["theta"])
    out, state, trace = scan_memory(q, given["keys"], given["values"], gates, state, **run)
    assert torch.equal(out[0, :6], wanted[0, :6])
    assert torch.equal(out[0, :, 0], wanted[0, :, 0])
    assert torch.equal(out[1], wanted[1])
    assert out[0, 6:, 1].isnan().all()
    assert trace.surprise.grad_norm[0, 6:, 1].isnan().all()
    assert state.weights[0][0, 1].isnan().all()
    assert torch.equal(state.weights[0][0, 0], after.weights[0][0, 0])


@pytest.mark.parametrize("rule", ["delta", "online", "least_squares"])
def test_the_online_rules_contain_a_token(rule: str) -> None:
    (q, k, v), gates, state = tokens(depth=1)
    scan = {"delta": scan_delta, "online": scan_online, "least_squares": scan_least_squares}[rule]
    state = initial_known(state) if rule == "least_squares" else state
    wanted, _, _ = scan(q, k, v, gates, state)
    v = v.clone()
    v[0, 6, 1] = NAN
    out, after, _ = scan(q, k, v, gates, state)
    assert torch.equal(out[0, :6], wanted[0, :6])
    assert out[0, 6:, 1].isnan().all()
    assert after.lost.tolist() == [True, False]


def test_a_step_that_is_not_written_may_hold_anything() -> None:
    (q, k, v), gates, state = tokens(time=1)
    k, v = k.clone(), v.clone()
    k[0], v[0] = NAN, INFINITY
    gates = Gates(*(g[:, 0] for g in gates))
    writes = torch.tensor([False, True])
    out, after, _ = step(
        q[:, 0], k[:, 0], v[:, 0], gates, state, chunk_size=4, write_mask=writes, options=STABLE
    )
    assert out.isfinite().all()
    assert not after.lost.any()
