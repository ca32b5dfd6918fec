"""One test per cell of the table in docs/compatibility.md: what the layer and the models work with.

Each cell compares values or gradients with those of the plain module in float64.
"""

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from support.models import tiny_model, tiny_tokens
from titans import NeuralMemory
from titans.models.block import Block

SUBJECTS = ["layer", "lmm", "mac", "mag", "mal"]
Gradients = dict[str, Tensor]

# torch's tracer looks at the .grad of intermediate tensors and warns of it itself.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


def build(subject: str) -> tuple[nn.Module, Tensor]:
    """A module in float64 and its input."""
    torch.manual_seed(0)
    if subject == "layer":
        memory = NeuralMemory(8, num_heads=2, chunk_size=4).double()
        return memory, torch.randn(2, 13, 8, dtype=torch.float64)
    return tiny_model(subject), tiny_tokens(time=13)


def loss_of(call: Callable, x: Tensor) -> Tensor:
    """A number of all that a call returns."""
    if x.is_floating_point():
        y, state = call(x)
        return y.square().mean() + state.memory.weights[0].sin().mean()
    return call(input_ids=x, labels=x, use_cache=False).loss


def gradients(module: nn.Module, x: Tensor, call: Callable | None = None) -> Gradients:
    module.zero_grad()
    loss_of(call or module, x).backward()
    return {n: p.grad.double() for n, p in module.named_parameters() if p.grad is not None}


def assert_near(found: Gradients, wanted: Gradients, tolerance: float = 1e-7) -> None:
    assert found.keys() == wanted.keys()
    size = max(g.abs().max().item() for g in wanted.values())
    for name, gradient in wanted.items():
        worst = (found[name] - gradient).abs().max().item()
        assert worst <= tolerance * size, (name, worst, size)


def of_type(dtype: torch.dtype, tolerance: float, autocast: bool, subject: str) -> None:
    module, x = build(subject)
    wanted = gradients(module, x)
    module = module.float() if autocast else module.to(dtype)
    given = x.to(torch.float32 if autocast else dtype) if x.is_floating_point() else x
    with torch.autocast("cpu", dtype) if autocast else nullcontext():
        loss = loss_of(module, given)
    module.zero_grad()
    loss.backward()
    found = {n: p.grad.double() for n, p in module.named_parameters() if p.grad is not None}
    assert_near(found, wanted, tolerance)


def apply(module: nn.Module, parameters: Gradients, x: Tensor) -> Tensor:
    """The loss as a function of the parameters."""
    return loss_of(lambda *a, **k: functional_call(module, parameters, a, k), x)


def constants(module: nn.Module) -> Gradients:
    return {name: p.detach() for name, p in module.named_parameters()}


def used(found: Gradients, wanted: Gradients) -> Gradients:
    """Without parameters that the loss does not depend on, which autograd leaves out."""
    assert all(not g.any() for n, g in found.items() if n not in wanted)
    return {n: g for n, g in found.items() if n in wanted}


def func_grad(subject: str) -> None:
    module, x = build(subject)
    wanted = gradients(module, x)
    assert_near(used(grad(partial(apply, module))(constants(module), x), wanted), wanted)


def func_vmap(subject: str) -> None:
    """Over rows, and over two sets of parameters."""
    module, x = build(subject)
    parameters = constants(module)
    rows = vmap(lambda row: apply(module, parameters, row[None]))(x)
    alone = torch.stack([apply(module, parameters, row[None]) for row in x])
    torch.testing.assert_close(rows, alone, rtol=1e-6, atol=0)
    several = {n: torch.stack([p, 0.9 * p]) for n, p in parameters.items()}
    found = vmap(lambda p: apply(module, p, x))(several)
    for number in range(2):
        wanted = apply(module, {n: p[number] for n, p in several.items()}, x)
        torch.testing.assert_close(found[number], wanted, rtol=1e-6, atol=0)


def func_per_sample(subject: str) -> None:
    module, x = build(subject)
    one = grad(lambda p, row: apply(module, p, row[None]))
    found = vmap(one, in_dims=(None, 0))(constants(module), x)
    for number, row in enumerate(x):
        wanted = gradients(module, row[None])
        assert_near(used({n: g[number] for n, g in found.items()}, wanted), wanted)


def func_jvp(subject: str) -> None:
    module, x = build(subject)
    parameters = constants(module)
    way = {n: torch.randn_like(p) for n, p in parameters.items()}
    found = jvp(lambda p: apply(module, p, x), (parameters,), (way,))[1]
    wanted = sum((g * way[n]).sum() for n, g in gradients(module, x).items())
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0, check_dtype=False)


def double_backward(subject: str) -> None:
    """Against `torch.func`, which goes through plain operations (tests/ops/test_derivatives.py)."""
    module, x = build(subject)
    with sdpa_kernel(SDPBackend.MATH):
        loss = loss_of(module, x)
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    leaves = [p for _, p in named]
    first = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
    second = torch.autograd.grad(
        torch.stack([g.square().sum() for g in first]).sum(), leaves, materialize_grads=True
    )

    def squared(parameters: Gradients) -> Tensor:
        found = grad(partial(apply, module))(parameters, x)
        return torch.stack([g.square().sum() for g in found.values()]).sum()

    wanted = grad(squared)(constants(module))
    assert_near({n: g for (n, _), g in zip(named, second, strict=True)}, wanted)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A group of one process; more of them are in tests/training/test_distributed.py."""
    where = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def data_parallel(subject: str) -> None:
    module, x = build(subject)
    wanted = gradients(module, x)
    assert_near(gradients(module, x, DistributedDataParallel(module)), wanted)


def fully_sharded(subject: str) -> None:
    module, x = build(subject)
    wanted = gradients(module, x)
    for block in module.modules():
        if isinstance(block, Block):
            fully_shard(block)
            register_fsdp_forward_method(block, "initial_state")
    fully_shard(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        found = gradients(module, x)
    whole = {n: g.full_tensor() for n, g in found.items()}  # type: ignore[attr-defined]
    assert_near(whole, wanted)


def checkpointing(subject: str) -> None:
    module, x = build(subject)
    module.train()
    wanted = gradients(module, x)
    call = partial(checkpoint, module, use_reentrant=False)
    if subject != "layer":
        module.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        call = module
    assert_near(gradients(module, x, call), wanted)


def copied(copy_of: Callable[[nn.Module], nn.Module], subject: str) -> None:
    module, x = build(subject)
    wanted = gradients(module, x)
    other = copy_of(module)
    assert all(a is not b for a, b in zip(module.parameters(), other.parameters(), strict=True))
    assert_near(gradients(other, x), wanted)


def weights_only(path: Path, subject: str) -> None:
    """Weights and state through `torch.save` and `torch.load(weights_only=True)`."""
    module, x = build(subject)
    if subject == "layer":
        state = module(x)[1]
    else:
        state = module.new_cache(2)  # type: ignore[operator]
        module(x, past_key_values=state)
    torch.save({"weights": module.state_dict(), "state": state}, path)
    found = torch.load(path, weights_only=True)
    other, _ = build(subject)
    other.load_state_dict(found["weights"])
    assert_near(gradients(other, x), gradients(module, x))
    if subject == "layer":
        assert torch.equal(other(x, found["state"])[0], module(x, state)[0])
    else:
        later = other(x, past_key_values=found["state"]).logits
        assert torch.equal(later, module(x, past_key_values=state).logits)


CELLS: dict[str, Callable[[str], None]] = {
    "float64": partial(of_type, torch.float64, 1e-12, False),
    "float32": partial(of_type, torch.float32, 1e-4, False),
    "bfloat16": partial(of_type, torch.bfloat16, 0.3, False),
    "float16": partial(of_type, torch.float16, 0.05, False),
    "autocast bfloat16": partial(of_type, torch.bfloat16, 0.3, True),
    "autocast float16": partial(of_type, torch.float16, 0.05, True),
    "vmap": func_vmap,
    "grad": func_grad,
    "per-sample": func_per_sample,
    "jvp": func_jvp,
    "double backward": double_backward,
    "DDP": data_parallel,
    "FSDP": fully_sharded,
    "checkpointing": checkpointing,
    "deepcopy": partial(copied, copy.deepcopy),
    "pickle": partial(copied, lambda module: pickle.loads(pickle.dumps(module))),
}


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("cell", CELLS)
def test_cell(cell: str, subject: str, process_group: None) -> None:
    CELLS[cell](subject)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_weights_only(subject: str, tmp_path: Path) -> None:
    weights_only(tmp_path / "saved.pt", subject)


def test_the_table_names_every_cell() -> None:
    page = Path(__file__).parents[2] / "docs" / "compatibility.md"
    table = page.read_text().split("\n\n1. ")[0].split("\n")
    rows = [line.strip("| ").split(" | ") for line in table if line.startswith("| ")]
    assert [name.lower() for name in rows[0]] == SUBJECTS
    others = ["weights_only", "compile", "fullgraph", "export"]
    assert [row[0] for row in rows[1:]] == [*CELLS, *others]
    assert all(cell[:3] in ("yes", "no ") for row in rows[1:] for cell in row[1:])
    refused = {
        (row[0], name)
        for row in rows[1:]
        for name, cell in zip(rows[0], row[1:], strict=True)
        if cell.startswith("no")
    }
    assert refused == {("fullgraph", "MAC")}
