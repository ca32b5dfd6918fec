"""Derivatives of any order and kind: `torch.func` and double backward, against the specification.

The scans have a backward written by hand, and a form in plain operations where it cannot serve.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from support.parity import OPTIONS, memory_inputs
from titans.ops import Gates, MemoryState, ScanOptions, reference_options, scan_memory, step
from titans.ops.delta import scan_delta
from titans.ops.least_squares import initial_known, scan_least_squares
from titans.ops.online import scan_online
from titans.ops.online_layers import scan_layers

STABLE = ScanOptions(forget_towards="initial", step_limit=1.0)


def layered(*tokens: object, options: ScanOptions | None = None, **more: object) -> tuple:
    return scan_layers(*tokens, options=options or ScanOptions(), **more)  # type: ignore[arg-type]


def online(*tokens: object, chunk_size: int, **more: object) -> tuple:
    return scan_online(*tokens, block=chunk_size, **more)  # type: ignore[arg-type]


def least_squares(
    q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: MemoryState, **more: object
) -> tuple:
    block, options = more["chunk_size"], more["options"]
    return scan_least_squares(q, k, v, gates, initial_known(state), block=block, options=options)


def delta(*tokens: object, chunk_size: int, options: ScanOptions) -> tuple:
    return scan_delta(*tokens)  # type: ignore[arg-type]


def by_channel(
    q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: MemoryState, **_: object
) -> tuple:
    unequal = torch.linspace(0.1, 1, k.shape[-1], dtype=k.dtype)
    channels = gates._replace(forget_gate=gates.forget_gate[..., None] * unequal)
    return scan_delta(q, k, v, channels, state)


def slow_delta(q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: MemoryState, **_: object):
    options = ScanOptions(momentum=False)
    return reference_options.scan_memory(q, k, v, gates, state, chunk_size=1, options=options)


def slow_online(*tokens: object, chunk_size: int, options: ScanOptions) -> tuple:
    return scan_online(*tokens, form="paper", options=options, block=1)  # type: ignore[arg-type]


SCANS: dict[str, tuple[Callable, Callable | None, int, ScanOptions]] = {
    "memory": (scan_memory, reference_options.scan_memory, 2, ScanOptions()),
    "memory stable": (scan_memory, reference_options.scan_memory, 2, STABLE),
    "memory many": (scan_memory, reference_options.scan_memory, 2, OPTIONS["many"]),
    "memory truncated": (scan_memory, reference_options.scan_memory, 2, OPTIONS["truncated"]),
    "online": (partial(online, form="paper"), reference_options.scan_memory, 1, ScanOptions()),
    "bounded": (online, None, 1, ScanOptions(forget_towards="initial")),
    "delta": (delta, slow_delta, 1, ScanOptions()),
    "delta by channel": (by_channel, None, 1, ScanOptions()),
    "least squares": (least_squares, None, 1, ScanOptions(forget_towards="initial")),
    "layers": (layered, None, 2, ScanOptions()),
}
"""Per scan: itself, a specification or None, layers, options."""


class Case:
    """A scan as a function of one flat list of tensors, so that transforms can be applied."""

    def __init__(self, name: str, time: int = 11) -> None:
        self.fast, self.slow, depth, self.options = SCANS[name]
        inputs = memory_inputs(batch=2, time=time, depth=depth, largest_step=0.1)
        gates = [g.clamp(0.05, 0.95) for g in inputs.gates[:2]] + [inputs.gates[2] + 0.02]
        self.tensors = [inputs.queries, inputs.keys, inputs.values, *gates, *inputs.layers]
        self.chunk = 1 if "online" in name and self.slow else 4

    def loss(self, scan: Callable, *tensors: Tensor) -> Tensor:
        q, k, v, alpha, eta, theta, *layers = tensors
        state = MemoryState.initial(layers, q.shape[0])
        chunk = self.chunk if scan is self.slow or "online" not in repr(scan) else 4
        out, state, trace = scan(
            q, k, v, Gates(alpha, eta, theta), state, chunk_size=chunk, options=self.options
        )
        ends = sum(w.sin().sum() for w in (*state.weights, *state.momentum))
        return out.square().sum() + trace.surprise.loss.sum() + ends

    @property
    def other(self) -> Callable:
        """The specification; else the same scan by its backward written by hand."""
        return self.slow or self.fast


def assert_near(found: Tensor, wanted: Tensor) -> None:
    scale = wanted.abs().max().item()
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9 * max(scale, 1.0))


def by_backward(case: Case) -> tuple[Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in case.tensors]
    return torch.autograd.grad(case.loss(case.other, *leaves), leaves, materialize_grads=True)


@pytest.mark.parametrize("name", SCANS)
def test_func_grad(name: str) -> None:
    case = Case(name)
    found = grad(partial(case.loss, case.fast), argnums=tuple(range(len(case.tensors))))(
        *case.tensors
    )
    for one, other in zip(found, by_backward(case), strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("name", SCANS)
def test_jvp(name: str) -> None:
    case = Case(name)
    tangents = [torch.randn_like(t) for t in case.tensors]
    _, found = jvp(partial(case.loss, case.fast), tuple(case.tensors), tuple(tangents))
    wanted = sum((g * t).sum() for g, t in zip(by_backward(case), tangents, strict=True))
    assert_near(found, wanted)


@pytest.mark.parametrize("name", SCANS)
def test_double_backward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(name, time=7)

    def second(scan: Callable) -> tuple[Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in case.tensors]
        first = torch.autograd.grad(
            case.loss(scan, *leaves), leaves, create_graph=True, materialize_grads=True
        )
        total = sum(g.square().sum() for g in first)
        return torch.autograd.grad(total, leaves, materialize_grads=True)

    if case.slow is not None:
        for one, other in zip(second(case.fast), second(case.slow), strict=True):
            assert_near(one, other)
        return
    # Without a specification of its own: against autograd's own derivatives throughout.
    found = second(case.fast)
    for module in ("online", "scan.mixing"):
        monkeypatch.setattr(f"titans.ops.{module}.by_hand", lambda: False)
    for one, other in zip(found, second(case.fast), strict=True):
        assert_near(one, other)


@pytest.mark.parametrize("name", SCANS)
def test_vmap_over_rows_and_per_sample_gradients(name: str) -> None:
    """Rows mapped one by one, and the weights' gradient of each row."""
    case = Case(name)
    tokens, layers = case.tensors[:6], case.tensors[6:]

    def one_row(layers: list[Tensor], *row: Tensor) -> Tensor:
        return case.loss(case.fast, *(t[None] for t in row), *layers)

    per_row = vmap(grad(one_row), in_dims=(None, *[0] * 6))(layers, *tokens)
    for row in range(2):
        leaves = [w.clone().requires_grad_() for w in layers]
        loss = case.loss(case.other, *(t[row : row + 1] for t in tokens), *leaves)
        for found, wanted in zip(per_row, torch.autograd.grad(loss, leaves), strict=True):
            assert_near(found[row], wanted)


@pytest.mark.parametrize("name", SCANS)
def test_vmap_over_memories(name: str) -> None:
    """The same tokens for several memories: weights are mapped, tokens are not."""
    case = Case(name)
    tokens, layers = case.tensors[:6], case.tensors[6:]
    several = [torch.stack([w, 0.5 * w, -w]) for w in layers]
    found = vmap(lambda *ws: case.loss(case.fast, *tokens, *ws))(*several)
    for number in range(3):
        wanted = case.loss(case.other, *tokens, *(w[number] for w in several))
        assert_near(found[number], wanted)


def test_vmap_over_states_at_different_places() -> None:
    """Rows that stand at different places in their chunks, each with a mask of its own."""
    inputs = memory_inputs(batch=3, time=9)
    state = MemoryState.initial(inputs.layers, 3)
    state = state.replace(position=torch.tensor([0, 2, 5]))
    mask = torch.rand(3, 9) > 0.3
    args = (inputs.queries, inputs.keys, inputs.values, Gates(*inputs.gates))
    whole, after, _ = scan_memory(*args, state, chunk_size=4, mask=mask)

    def one(q: Tensor, k: Tensor, v: Tensor, gates: Gates, row: dict, mask: Tensor):
        state = MemoryState.from_named_tensors({n: t[None] for n, t in row.items()})
        gates = Gates(*(g[None] for g in gates))
        out, state, _ = scan_memory(
            q[None], k[None], v[None], gates, state, chunk_size=4, mask=mask[None]
        )
        return out[0], {n: t[0] for n, t in state.named_tensors().items()}

    found, ends = vmap(one)(*args, state.named_tensors(), mask)
    assert_near(found, whole)
    for name, tensor in after.named_tensors().items():
        assert_near(ends[name].double(), tensor.double())


def test_a_step_under_jvp() -> None:
    inputs = memory_inputs(batch=2, time=1)
    gates = Gates(*(g[:, 0] for g in inputs.gates))

    def absorb(key: Tensor) -> Tensor:
        state = MemoryState.initial(inputs.layers, 2)
        return step(inputs.queries[:, 0], key, inputs.values[:, 0], gates, state, chunk_size=4)[0]

    def slow(key: Tensor) -> Tensor:
        state = MemoryState.initial(inputs.layers, 2)
        timed = Gates(*(g[:, None] for g in gates))
        found = reference_options.scan_memory(
            inputs.queries, key[:, None], inputs.values, timed, state, chunk_size=4
        )
        return found[0][:, 0]

    key, way = inputs.keys[:, 0], torch.randn(2, 2, 4, dtype=torch.float64)
    for one, other in zip(jvp(absorb, (key,), (way,)), jvp(slow, (key,), (way,)), strict=True):
        assert_near(one, other)
