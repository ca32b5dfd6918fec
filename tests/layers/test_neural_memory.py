"""The layer: streaming, masks, gradients, stability, and each part switched off."""

import math
import typing
from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

from titans import MemoryConfig, NeuralMemory, NeuralMemoryState
from titans.errors import StateError
from titans.layers.memory_config import MemorySettings


class Own(nn.Module):
    """A network that this package does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)))


NETWORKS: dict[str, dict] = {
    "mlp": {"rule": "chunk", "depth": 2},
    "linear": {"rule": "chunk", "depth": 1},
    "deep": {"depth": 3, "bias": True},
    "online": {},
    "online, deep": {"depth": 2},
    "online, products": {"features": 12},
    "products": {"rule": "chunk", "depth": 2, "features": 12},
    "residual": {"depth": 2, "residual": True},
    "gated": {"network": "gated", "expansion": 1.5},
    "swiglu": {"network": "swiglu"},
    "factorised": {"network": "factorised", "expansion": 0.4},
    "own": {"module": Own()},
}
GATES: dict[str, dict] = {
    "token": {},
    "chunk": {"gates": "chunk"},
    "constant": {"gates": "constant"},
    "look back": {"gate_conv_size": 3},
    "look back, chunk": {"gates": "chunk", "gate_conv_size": 3},
}


def layer(network: str = "mlp", **settings) -> NeuralMemory:
    settings = {"num_heads": 2, "chunk_size": 8} | NETWORKS[network] | settings
    return NeuralMemory(16, **settings).double()


def tokens(batch: int = 2, time: int = 21, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, time, 16, generator=g, dtype=torch.float64)


def assert_same_state(a: NeuralMemoryState, b: NeuralMemoryState) -> None:
    theirs = b.named_tensors()
    for name, tensor in a.named_tensors().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-10, atol=1e-11, msg=name)


@pytest.mark.parametrize("masked", [False, True])
def test_a_long_call_in_pieces_equals_one_piece(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, x = layer(), tokens(batch=3, time=37).requires_grad_()
    mask = torch.rand(3, 37, generator=torch.Generator().manual_seed(0)) > 0.3 if masked else None

    def run() -> list[Tensor]:
        y, state, trace = memory(x, mask=mask, return_trace=True)
        grads = torch.autograd.grad(y.square().sum() + trace.surprise.loss.sum(), [x, *parameters])
        return [
            y,
            *trace.surprise,
            *trace.gates,
            trace.written,
            *state.named_tensors().values(),
            *grads,
        ]

    parameters = [p for p in memory.parameters() if p.requires_grad]
    whole = run()
    monkeypatch.setattr("titans.layers.memory.PIECE_TOKENS", 48)
    for one, other in zip(whole, run(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_values_have_the_length_asked_for() -> None:
    x = tokens()
    for length in (4.0, 1.5):
        memory = layer(value_norm=length)
        _, values = memory.associations(x, memory.initial_state(2))
        torch.testing.assert_close(values.norm(dim=-1), torch.full_like(values[..., 0], length))
    for depth, length in ((1, 4.0), (2, 4.0), (3, 2.0), (4, 1.0)):
        assert layer(depth=depth).value_length == length
    with pytest.raises(ValueError, match=r"value_norm must be above 0.*got 0"):
        MemoryConfig(value_norm=0.0)
    memory = layer(value_norm=None)
    assert memory.associations(x, memory.initial_state(2))[1].norm(dim=-1).std() > 0.01


def test_a_write_comes_to_the_same_whatever_the_momentum() -> None:
    memory = layer(gates="constant", momentum_init=0.9, step_init=0.2)
    found, _ = memory.gates(
        tokens(), torch.zeros(2, dtype=torch.long), memory.initial_state(2).gate_past, None
    )
    total = found.step_size / (1 - found.momentum_decay)
    torch.testing.assert_close(total, torch.full_like(total, 0.2))


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("network", NETWORKS)
def test_any_split_and_single_tokens_equal_the_whole(network: str, gates: str) -> None:
    memory, x = layer(network, **GATES[gates]), tokens()
    whole, final = memory(x)
    with torch.no_grad():
        for cuts in ([5, 8, 9], list(range(1, 21))):
            state, parts = None, []
            for begin, end in zip([0, *cuts], [*cuts, 21], strict=True):
                y, state = memory(x[:, begin:end], state)
                parts.append(y)
            torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-11)
            assert state is not None
            assert_same_state(state, final)


@pytest.mark.parametrize("gates", ["token", "look back"])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_parameter_gets_a_gradient(network: str, gates: str) -> None:
    memory = layer(network, **GATES[gates])
    y, _ = memory(tokens())
    y.square().sum().backward()
    for name, parameter in memory.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("mode", ["full", "truncated"])
def test_projections_learn_in_both_gradient_modes(mode: str) -> None:
    """Truncation drops the second order, not the dependence on keys and values."""
    memory = layer(gradient=mode)
    y, _ = memory(tokens())
    y.square().sum().backward()
    for name in ("query_proj", "key_proj", "value_proj", "gates.proj", "memory_0", "memory_1"):
        parameter = memory.get_parameter(name if name.startswith("mem") else f"{name}.weight")
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("gates", ["token", "look back"])
@pytest.mark.parametrize("network", NETWORKS)
def test_causality_and_batch_isolation_to_the_bit(network: str, gates: str) -> None:
    memory, x = layer(network, **GATES[gates]), tokens()
    with torch.no_grad():
        before, _ = memory(x)
        changed = x.clone()
        changed[:, 12] += 1.0
        after, _ = memory(changed)
        assert torch.equal(before[:, :12], after[:, :12])
        assert not torch.equal(before[:, 12:], after[:, 12:])
        other = x.clone()
        other[1] = tokens(seed=5)[1]
        assert torch.equal(memory(other)[0][0], before[0])


@pytest.mark.parametrize("gates", ["token", "chunk", "look back"])
@pytest.mark.parametrize("network", ["mlp", "swiglu", "online, products", "online, deep"])
def test_padding_anywhere_changes_nothing(network: str, gates: str) -> None:
    """Two calls with masks equal the rows without their padding."""
    memory, x = layer(network, **GATES[gates]), tokens(time=30)
    mask = torch.rand(2, 30, generator=torch.Generator().manual_seed(4)) > 0.4
    state, parts = None, []
    for begin, end in ((0, 13), (13, 30)):
        y, state = memory(x[:, begin:end], state, mask=mask[:, begin:end])
        parts.append(y)
    y = torch.cat(parts, 1)
    assert (y[~mask] == 0).all()
    assert state is not None
    for row in range(2):
        alone, final = memory(x[row : row + 1, mask[row]])
        torch.testing.assert_close(y[row][mask[row]], alone[0], rtol=1e-10, atol=1e-11)
        assert_same_state(state.select([row]), final)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("counts", [[9, 21], [0, 20], [21, 21]])
def test_lengths_are_a_mask_whose_padding_comes_last(counts: list[int], skip: bool) -> None:
    memory, x = layer(skip_nonfinite=skip), tokens()
    lengths = torch.tensor(counts)
    mask = torch.arange(21) < lengths[:, None]
    x[~mask] = math.nan
    x[1, 7] = math.nan if skip else 0.0
    writes = torch.rand(2, 21, generator=torch.Generator().manual_seed(4)) > 0.3
    found = memory(x, lengths=lengths, write_mask=writes, return_trace=True)
    wanted = memory(x, mask=mask, write_mask=writes, return_trace=True)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[2].written, wanted[2].written)
    states = [found[1], wanted[1]]
    x = x.nan_to_num()
    (y, after), (other, reference) = (
        memory.read(x, states[0], lengths=lengths),
        memory.read(x, states[1], mask=mask),
    )
    assert torch.equal(y, other)
    theirs = reference.named_tensors()
    for name, tensor in after.named_tensors().items():
        assert torch.equal(tensor, theirs[name]), name


def test_wrong_lengths_are_named() -> None:
    memory, x = layer(), tokens()
    full = torch.tensor([21, 21])
    with pytest.raises(ValueError, match="mask or lengths, not both"):
        memory(x, mask=torch.ones(2, 21, dtype=torch.bool), lengths=full)
    with pytest.raises(ValueError, match=r"0\.\.21, the input's tokens; got 3 to 22"):
        memory(x, lengths=torch.tensor([3, 22]))
    with pytest.raises(ValueError, match=r"must be in 0\.\.21.*got -1 to 21"):
        memory.read(x, lengths=torch.tensor([-1, 21]))


def test_write_mask_reads_without_writing() -> None:
    memory, x = layer(), tokens()
    nothing = torch.zeros(2, 21, dtype=torch.bool)
    _, state = memory(x, write_mask=nothing)
    first = memory.initial_state(2)
    for a, b in zip(state.memory.weights, first.memory.weights, strict=True):
        torch.testing.assert_close(a, b)
    assert state.position.tolist() == [21, 21]


@pytest.mark.parametrize("network", ["mlp", "gated", "online, products"])
def test_read_writes_nothing_and_streams(network: str) -> None:
    memory, x = layer(network), tokens()
    state = memory(x)[1]
    whole, after = memory.read(x, state)
    for name, tensor in state.named_tensors().items():
        if name != "read_tail":
            assert torch.equal(tensor, after.named_tensors()[name]), name
    first, middle = memory.read(x[:, :7], state)
    second, _ = memory.read(x[:, 7:], middle)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    mask = torch.ones(2, 21, dtype=torch.bool)
    mask[1, :4] = False
    masked, _ = memory.read(x, state, mask=mask)
    alone, _ = memory.read(x[1:, 4:], state.select([1]))
    torch.testing.assert_close(masked[1:, 4:], alone)
    assert (masked[1, :4] == 0).all()


def test_gates_that_look_back_see_so_many_tokens() -> None:
    memory, x = layer(**GATES["look back"]), tokens()
    changed = x.clone()
    changed[:, 10] += 1.0

    def steps(x: Tensor) -> Tensor:
        return memory.gates(
            x, torch.zeros(2, dtype=torch.long), memory.initial_state(2).gate_past, None
        )[0].step_size

    differs = (steps(x) != steps(changed)).any(dim=(0, 2))
    assert differs.nonzero().flatten().tolist() == [10, 11, 12]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gate_conv_size": -1}, "gate_conv_size must be at least 0"),
        ({"gate_conv_size": 2, "gates": "constant"}, "has no effect with gates='constant'"),
    ],
)
def test_gates_that_cannot_look_back_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryConfig(**settings)


def test_a_state_from_before_gates_looked_back_loads() -> None:
    memory = layer()
    _, state = memory(tokens())
    named = state.named_tensors()
    del named["gate_tail"]
    assert_same_state(NeuralMemoryState.from_named_tensors(named), state)


@pytest.mark.parametrize("gates", ["chunk", "look back"])
def test_save_load_reset(gates: str, tmp_path) -> None:
    memory, x = layer(**GATES[gates]), tokens()
    whole, final = memory(x)
    _, middle = memory(x[:, :11])
    middle.save(tmp_path / "state.safetensors")
    y, state = memory(x[:, 11:], NeuralMemoryState.load(tmp_path / "state.safetensors"))
    torch.testing.assert_close(y, whole[:, 11:])
    assert_same_state(state, final)
    reset = memory.reset(final, torch.tensor([True, False]))
    assert_same_state(reset.select([0]), memory.initial_state(1))
    assert_same_state(reset.select([1]), final.select([1]))


@pytest.mark.parametrize(
    "settings",
    [
        {"conv_size": 0},
        {"momentum": False},
        {"forgetting": False},
        {"gates": "constant", "forget_init": 0.02, "momentum_init": 0.9, "step_init": 0.01},
        {"loss": "huber", "huber_delta": 0.5},
        {"loss": "lp", "lp_power": 3.0},
        {"max_grad_norm": 0.5},
        {"read": "before"},
        {"forget_towards": "zero", "step_limit": None, "value_norm": None, "step_init": 0.01},
        {"rule": "ttt"},
        {"rule": "delta"},
        {"rule": "gated_delta"},
        {"rule": "kda", "features": 5},
        {"rule": "least_squares", "depth": 1},
        {"rule": "least_squares", "depth": 1, "features": 5, "value_dim": 3, "read": "before"},
        {"init": "random"},
        {"init": "zero_last"},
        {"init": "zero_first"},
        {"init": "zero_first", "depth": 3, "bias": True},
        {"head_dim": 4},
        {"head_dim": 10, "value_dim": 3},
        {"value_dim": 12, "depth": 1},
    ],
)
def test_parts_can_be_switched(settings: dict) -> None:
    memory, x = layer(**settings), tokens()
    y, _, trace = memory(x, return_trace=True)
    assert y.shape == x.shape and torch.isfinite(y).all()
    assert trace.surprise.loss.shape == (2, 21, 2)
    continued, _ = memory(x[:, 9:], memory(x[:, :9])[1])
    torch.testing.assert_close(continued, y[:, 9:])
    if settings.get("init") in ("random", "zero_first"):
        assert not any(name.startswith("memory_") for name, _ in memory.named_parameters())
    if settings.get("init", "").startswith("zero"):
        empty, _ = memory.read(x, memory.initial_state(2))
        assert empty.abs().max() == 0


@pytest.mark.parametrize("conv_size", [0, 4])
def test_keys_and_values_of_unequal_width(conv_size: int) -> None:
    memory = layer(head_dim=10, value_dim=3, conv_size=conv_size)
    x, mask = tokens(), torch.ones(2, 21, dtype=torch.bool)
    whole, final = memory(x)
    with torch.no_grad():
        state, parts = None, []
        for token in x.split(1, dim=1):
            y, state = memory(token, state)
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-11)
        assert_same_state(state, final)
        mask[0, :6] = False
        masked, _ = memory(x, mask=mask)
        alone, _ = memory(x[:1, 6:])
        torch.testing.assert_close(masked[:1, 6:], alone, rtol=1e-10, atol=1e-11)
    assert [tuple(w.shape[2:]) for w in final.memory.weights] == [(20, 10), (3, 20)]
    whole.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in memory.parameters())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("init", ["learned", "random"])
@pytest.mark.parametrize("written", ["first", "last"])
def test_one_layer_alone_is_written(written: str, init: str, bias: bool) -> None:
    """The others are ordinary weights, learned or fixed, and the same after any text."""
    memory = layer(init=init, bias=bias, written=written, forget_towards="zero", step_limit=None)
    start, after = memory.initial_state(2), memory(tokens())[1]
    per_layer = 2 if bias else 1
    changed = [
        not torch.equal(a, s)
        for a, s in zip(after.memory.weights, start.memory.weights, strict=True)
    ]
    expected = [written == "first"] * per_layer + [written == "last"] * per_layer
    assert changed == expected
    learned = [name for name, _ in memory.named_parameters() if name.startswith("memory_")]
    assert learned == [f"memory_{i}" for i in range(len(expected)) if init == "learned"]
    sizes = [w.numel() for w in memory.initial_memory]
    assert memory.written_numbers == sum(n for n, w in zip(sizes, expected, strict=True) if w)
    y, _ = memory(tokens())
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in memory.parameters())


def test_a_fixed_start_fixes_layers_that_are_not_written() -> None:
    memory = layer(init="zero_first", written="first")
    assert not any(name.startswith("memory_") for name, _ in memory.named_parameters())
    assert {"memory_0", "memory_1"} <= memory.state_dict().keys()
    assert memory.memory_1.abs().max() > 0


def test_a_layer_that_is_not_written_is_taken_from_the_layer_not_from_the_state() -> None:
    """As in training with carried states: between two windows the optimiser has moved it."""
    memory = layer(init="learned", written="first")
    _, state = memory(tokens())
    state = state.detach()
    with torch.no_grad():
        memory.memory_1.mul_(2)
    y, after = memory(tokens(seed=1), state)
    expected = memory.memory_1.expand_as(after.memory.weights[1])
    assert torch.equal(after.memory.weights[1], expected)
    y.square().sum().backward()
    assert memory.memory_1.grad is not None and memory.memory_1.grad.abs().max() > 0


def test_keys_start_one_token_back() -> None:
    memory = NeuralMemory(64, num_heads=1, key_lag=1)
    starts = [c.weight.mean(1) for c in (memory.query_conv, memory.key_conv, memory.value_conv)]
    for start, place in zip(starts, (0, 1, 0), strict=True):
        expected = torch.eye(4)[place]
        torch.testing.assert_close(start, expected, rtol=0, atol=0.1)


def test_an_empty_first_layer_is_written_first() -> None:
    """The others see nothing but zeros in the first chunk, and little behind it."""
    memory = layer(init="zero_first")
    start = memory.initial_state(2).memory.weights

    def change(time: int) -> list[Tensor]:
        after = memory(tokens(time=time))[1].memory.weights
        return [(a - s).norm() for a, s in zip(after, start, strict=True)]

    first, last = change(8)
    assert first > 0 and last == 0
    first, last = change(21)
    assert first > last > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value_dim": 0}, "value_dim must be at least 1, got 0"),
        ({"value_dim": 4, "residual": True}, "head_dim is 8, value_dim 4"),
        ({"value_dim": 4, "network": "gated"}, "head_dim is 8, value_dim 4"),
        ({"init": "zero_first", "depth": 1}, "needs a depth of 2 or more"),
        ({"init": "zero_last", "written": "first"}, "no error reaches"),
        ({"network": "swiglu", "written": "last"}, "written='last' needs an MLP"),
        ({"network": "swiglu", "init": "zero_first"}, "'zero_first' needs an MLP"),
        ({"module": Own(), "depth": 2}, "depth=2 needs an MLP, and there is a Own"),
        ({"module": Own(), "rule": "online"}, "needs an MLP, and there is a Own"),
        ({"rule": "online", "bias": True}, "bias=True needs rule='chunk'"),
        ({"rule": "least_squares", "depth": 2}, "rule='least_squares' needs a depth of 1, got 2"),
        ({"rule": "least_squares", "loss": "lp"}, "loss='lp' needs rule='chunk'"),
        ({"rule": "online", "step_max": 1.6}, "step_max must be at most 1.5 with rule='online'"),
        ({"dept": 1}, "unknown key dept; did you mean depth"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(**settings)


def test_constant_gates_are_the_constants() -> None:
    gates = {"gates": "constant", "forget_init": 0.02, "momentum_init": 0.9, "step_init": 0.01}
    memory = layer(**gates)
    found, _ = memory.gates(
        tokens(), torch.zeros(2, dtype=torch.long), memory.initial_state(2).gate_past, None
    )
    for gate, value in zip(found, (0.02, 0.9, 0.01 * (1 - 0.9)), strict=True):
        torch.testing.assert_close(gate, torch.full_like(gate, value))


def test_surprise_falls_on_repetition_and_rises_for_news() -> None:
    memory, x = layer().float(), tokens(time=8).float()
    state, losses = None, []
    with torch.no_grad():
        for _ in range(8):
            _, state, trace = memory(x, state, return_trace=True)
            losses.append(trace.surprise.loss.mean().item())
        _, _, news = memory(tokens(time=8, seed=9).float(), state, return_trace=True)
    assert losses[1] < losses[0] and losses[-1] < 0.5 * losses[0]
    assert news.surprise.loss.mean().item() > 2 * losses[-1]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("chunk_size", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_repeated_tokens_are_stable_at_every_chunk_size(chunk_size: int, depth: int) -> None:
    """The same token again and again, for at least eight chunks, with the strongest steps that the
    gates can make: a deep memory may overshoot at first, but it settles."""
    torch.manual_seed(1)
    memory = NeuralMemory(
        16, num_heads=2, depth=depth, chunk_size=chunk_size, step_init=0.99, momentum_init=0.9
    )
    x = torch.randn(1, 1, 16).expand(1, max(512, 8 * chunk_size), 16)
    with torch.no_grad():
        y, state, trace = memory(x, return_trace=True)
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(w).all() for w in state.memory.weights)
    first = trace.surprise.loss[:, 0].max()
    assert trace.surprise.loss.max() < 25 * first
    assert trace.surprise.loss[:, -1].max() < 0.2 * first


def test_autocast_keeps_the_state_in_float32() -> None:
    memory, x = layer().float(), tokens().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = memory(x)
    assert y.dtype == torch.bfloat16
    assert state.memory.dtype == torch.float32
    exact, _ = memory(x)
    assert (y.float() - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NeuralMemory(10, num_heads=3), ValueError, "head_dim"),
        (lambda: NeuralMemory(8, chunk_size=0), ValueError, "chunk_size"),
        (lambda: NeuralMemory(8, init="ones"), ValueError, "ones"),
        (lambda: MemoryConfig(depth=0), ValueError, "depth must be at least 1, got 0"),
        (lambda: MemoryConfig(depth=1.5), ValueError, "depth must be of type int, got 1.5"),
        (lambda: MemoryConfig(gates="row"), ValueError, "gates must be one of .* got 'row'"),
        (lambda: MemoryConfig(step_init=2.0), ValueError, "step_max"),
        (lambda: MemoryConfig(step_init=math.nan), ValueError, "step_init must be a finite"),
        (lambda: MemoryConfig(key_lag=4), ValueError, "key_lag must be below conv_size"),
        (lambda: layer()(tokens()[:, :0]), ValueError, "empty"),
        (lambda: layer()(tokens(), layer().initial_state(3)), StateError, "3 rows"),
        (lambda: layer()(tokens(), layer("deep").initial_state(2)), StateError, "configuration"),
    ],
)  # fmt: skip
def test_errors_name_the_value(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.untyped
def test_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[batch, time, 16\]"):
        layer()(torch.randn(1, 3, 15, dtype=torch.float64))


@pytest.mark.parametrize("conv_size", [0, 4])
@pytest.mark.parametrize("how", ["threshold", "write_mask"])
def test_a_text_that_writes_nothing_is_passed_by_exactly(how: str, conv_size: int) -> None:
    """The short cut gives what the scan gives: reads, and the state to go on from."""
    torch.manual_seed(0)
    memory = (
        NeuralMemory(
            12,
            num_heads=2,
            chunk_size=5,
            conv_size=conv_size,
            gate_conv_size=conv_size,
        )
        .double()
        .eval()
    )
    x = torch.randn(3, 40, 12, dtype=torch.float64)
    parts = x.split([7, 2, 1, 11, 5, 14], dim=1)
    with torch.no_grad():
        _, start = memory(parts[0])
        left = right = start
        for part in parts[1:-1]:
            mask = torch.zeros(part.shape[:2], dtype=torch.bool)
            if how == "threshold":
                memory.set_write_threshold(2.0)
            given = {} if how == "threshold" else {"write_mask": mask}
            short, left = memory(part, left, **given)
            full, right, _ = memory(part, right, return_trace=True, **given)
            torch.testing.assert_close(short, full, atol=1e-12, rtol=0)
            for name, tensor in left.named_tensors().items():
                torch.testing.assert_close(tensor, right.named_tensors()[name], atol=1e-12, rtol=0)
        memory.set_write_threshold(None)
        after, _ = memory(parts[-1], left)
        wanted, _ = memory(parts[-1], right)
    torch.testing.assert_close(after, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_the_trace_says_what_was_done(masked: bool) -> None:
    """Gates as the layer makes them; written by threshold, surprise and mask; padding never."""
    memory, x = layer(surprise_threshold=12.0, write_threshold=0.0502).eval(), tokens()
    mask = torch.ones(2, 21, dtype=torch.bool)
    mask[0, :6] = not masked
    may_write = torch.rand(2, 21, generator=torch.Generator().manual_seed(2)) > 0.3
    _, _, trace = memory(x, mask=mask, write_mask=may_write, return_trace=True)
    past = memory.initial_state(2).gate_past
    gates, _ = memory.gates(x, torch.zeros(2, dtype=torch.long), past, None)
    for found, made in zip(trace.gates, gates, strict=True):
        torch.testing.assert_close(found[mask], made[mask], rtol=1e-12, atol=0)
    wanted = (gates.step_size >= 0.0502) & (mask & may_write)[..., None]
    wanted &= trace.surprise.loss > 12.0
    assert torch.equal(trace.written, wanted) and torch.equal(trace.active, wanted)
    assert 0 < trace.written.double().mean() < 0.9


@pytest.mark.untyped
def test_keyword_arguments_are_the_fields_of_the_config() -> None:
    """`MemorySettings` names them for editors and type checkers."""
    hints = typing.get_type_hints(MemoryConfig, include_extras=True)
    assert typing.get_type_hints(MemorySettings, include_extras=True) == hints
    config = MemoryConfig(num_heads=2, chunk_size=8, expansion=3)
    memory = NeuralMemory(16, config, depth=1)
    assert (memory.config.chunk_size, memory.config.depth, memory.head_dim) == (8, 1, 8)
    assert isinstance(memory.config.expansion, float)
    assert all(field.kw_only for field in fields(MemoryConfig))
