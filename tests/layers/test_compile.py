"""`torch.compile` and `torch.export`: one graph for every length, with the eager numbers.

Annotations that execute cannot be compiled, so this runs apart (`make test`), marker `compile`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from titans import MemoryConfig, NeuralMemory
from titans.ops import checks

# torch's tracer looks at the .grad of intermediate tensors and warns of it itself.
pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


CHUNK = MemoryConfig(rule="chunk", depth=2)
PAPER = replace(CHUNK, forget_towards="zero", step_limit=None)


def check_compiled(config: MemoryConfig, length: int, chunk_size: int) -> None:
    x = torch.randn(2, length, 16)
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        memory = NeuralMemory(16, config, num_heads=2, chunk_size=chunk_size, compiled=compiled)
        y, state = memory(x)
        y.square().sum().backward()
        found.append((y, state.memory.weights[0], memory.key_proj.weight.grad))
    for eager, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, eager, rtol=1e-4, atol=1e-5)


def test_compiled_chunk_step_equals_eager() -> None:
    """Two chunks of a size that is not grouped: one graph each way."""
    check_compiled(PAPER, 128, 64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [PAPER, CHUNK, replace(CHUNK, written="first", momentum=False)],
    ids=["paper", "stable", "first-layer"],
)
def test_compiled_groups_and_open_chunks_equal_eager(config: MemoryConfig) -> None:
    check_compiled(config, 20, 8)


def run(call: Callable, memory: NeuralMemory, *args: object, **more: object) -> dict[str, Tensor]:
    """What a call returns, and the gradients."""
    memory.zero_grad()
    y, state = call(*args, **more)
    (y.square().sum() + state.memory.weights[0].sin().sum()).backward()
    named = {n: p.grad for n, p in memory.named_parameters() if p.grad is not None}
    return {"y": y, **state.named_tensors(), **named}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        size = max(tensor.abs().max().item(), 1.0) if tensor.numel() else 1.0
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5 * size)


def small(**settings: Any) -> NeuralMemory:
    torch.manual_seed(0)
    return NeuralMemory(16, num_heads=2, chunk_size=4, **settings)


def test_training_is_one_graph_for_any_length() -> None:
    """The first length has a graph of its own, as everywhere in PyTorch."""
    memory = small()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(memory, backend=counter, fullgraph=True)
    for time in (21, 13, 40, 9):
        x = torch.randn(2, time, 16)
        assert_near(run(compiled, memory, x), run(memory, memory, x))
    assert counter.frame_count == 2


@pytest.mark.parametrize(("rule", "width"), [("kda", None), ("least_squares", 3)])
def test_gates_and_states_of_other_shapes_pass_through_the_graph(
    rule: str, width: int | None
) -> None:
    memory, x = small(rule=rule, value_dim=width), torch.randn(2, 11, 16)
    compiled = torch.compile(memory, backend="aot_eager", fullgraph=True)
    assert_near(run(compiled, memory, x), run(memory, memory, x))


@pytest.mark.slow
def test_masks_states_and_decoding_compile() -> None:
    memory = small()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(memory, backend=counter, fullgraph=True)
    for begin, time in ((6, 11), (7, 13), (3, 30)):
        state = memory(torch.randn(2, begin, 16))[1].detach()
        x, mask = torch.randn(2, time, 16), torch.rand(2, time) > 0.3
        assert_near(run(compiled, memory, x, state), run(memory, memory, x, state))
        given = {"mask": mask, "write_mask": torch.rand(2, time) > 0.5}
        assert_near(
            run(compiled, memory, x, state, **given), run(memory, memory, x, state, **given)
        )
    with torch.no_grad():
        one = other = memory(torch.randn(2, 7, 16))[1]
        graphs = []
        for _ in range(6):
            x = torch.randn(2, 1, 16)
            y, one = memory(x, one)
            z, other = compiled(x, other)
            torch.testing.assert_close(z, y, rtol=0, atol=1e-5)
            graphs.append(counter.frame_count)
    assert graphs[1] == graphs[-1]


@pytest.mark.slow
def test_a_layer_compiled_to_kernels_trains() -> None:
    memory = small()
    x = torch.randn(2, 20, 16)
    assert_near(run(torch.compile(memory, fullgraph=True), memory, x), run(memory, memory, x))


@torch.no_grad()
def test_export_of_the_layer(tmp_path: Path) -> None:
    memory, x = small().eval(), torch.randn(2, 21, 16)
    any_length: Any = torch.export.ShapesCollection()
    any_length[x] = {1: torch.export.Dim.DYNAMIC}
    first = torch.export.export(memory, (x,), dynamic_shapes=any_length)
    y, state = memory(x)
    found, after = first.module()(x)
    assert_near({"y": found, **after.named_tensors()}, {"y": y, **state.named_tensors()})
    later = torch.export.export(memory, (x, state), dynamic_shapes=any_length)
    torch.export.save(later, tmp_path / "memory.pt2")
    later = torch.export.load(tmp_path / "memory.pt2")
    for time in (9, 33):
        x = torch.randn(2, time, 16)
        torch.testing.assert_close(later.module()(x, state)[0], memory(x, state)[0])


def test_what_is_kept_out_of_a_compiled_model_is_not_traced() -> None:
    seen = []

    @checks.eager(recursive=True)
    def outside(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return 2 * x

    compiled = torch.compile(lambda x: outside(x + 1) - 1, backend="eager")
    for length in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(length)), torch.full((length,), 3.0))
    assert seen == [False] * 3
