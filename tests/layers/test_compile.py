"""`torch.compile`: the compiled chunk step equals the eager one; a compiled layer trains.

Annotations that execute cannot be compiled, so this runs apart (`make test`), marker `compile`.
"""

import pytest
import torch

from titans import MemoryConfig, NeuralMemory
from titans.ops import checks

# torch's tracer looks at the .grad of intermediate tensors and warns of it itself.
pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


PAPER = MemoryConfig(forget_towards="zero", step_limit=None)


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
    [PAPER, MemoryConfig(), MemoryConfig(written="first", momentum=False)],
    ids=["paper", "stable", "first-layer"],
)
def test_compiled_groups_and_open_chunks_equal_eager(config: MemoryConfig) -> None:
    check_compiled(config, 20, 8)


@pytest.mark.slow
def test_a_compiled_layer_trains() -> None:
    torch.manual_seed(0)
    memory = NeuralMemory(16, num_heads=2, chunk_size=8)
    compiled = torch.compile(memory)
    x = torch.randn(2, 20, 16)
    eager, _ = memory(x)
    y, _ = compiled(x)
    torch.testing.assert_close(y, eager, rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    assert all(p.grad is not None for p in memory.parameters())


def test_what_is_kept_out_of_a_compiled_model_is_not_traced() -> None:
    seen = []

    @checks.eager
    def outside(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return 2 * x

    compiled = torch.compile(lambda x: outside(x + 1) - 1, backend="eager")
    for length in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(length)), torch.full((length,), 3.0))
    assert seen == [False] * 3
