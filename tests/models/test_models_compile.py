"""`torch.compile` and `torch.export` of whole models, with the plain model's numbers.

After the first few calls nothing is compiled again, whatever the length and the split.
Annotations that execute cannot be compiled, so this runs apart (`make test`), marker `compile`.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

from support.models import tiny_model, tiny_tokens
from titans.models import TitansForCausalLM

# torch's tracer looks at the .grad of intermediate tensors and warns of it itself.
pytestmark = [
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]

NAMES = ["lmm-online", "mac-online", "mag-online", "mal-online"]
CASES = [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[2:])]
KNOWN_LENGTHS = (29, 21)
"""Each ends with part of a segment (of 8 tokens) and goes beyond two windows (of 6)."""
OTHER_LENGTHS = (45, 38, 15, 52)
KNOWN_CALLS = (9, 13, 8, 6, 1, 17, 4, *[1] * 9, 2, 11, 8)
OTHER_CALLS = (1, 1, 30, 1, 5, *[1] * 10, 11, 3, 7, 12, 25, 2, 1, 14)


@pytest.fixture(autouse=True)
def forget_graphs() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def build(case: str) -> TitansForCausalLM:
    return tiny_model(case, dtype=torch.float32, num_hidden_layers=1)


def gradients(
    model: TitansForCausalLM, call: Callable, ids: Tensor, mask: Tensor | None
) -> dict[str, Tensor]:
    model.zero_grad()
    labels = ids if mask is None else ids.masked_fill(~mask, -100)
    loss = call(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
    loss.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    size = max(tensor.abs().max().item() for tensor in wanted.values())
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5 * size)


def check_training(case: str, backend: str, *, padded: bool) -> None:
    model = build(case).train()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=case != "mac-online")
    known = 0
    for time in (*KNOWN_LENGTHS, *OTHER_LENGTHS):
        ids = tiny_tokens(time=time)
        mask = (torch.arange(time) < torch.tensor([[time], [time - 4]])) if padded else None
        assert_near(gradients(model, compiled, ids, mask), gradients(model, model, ids, mask))
        known = counter.frame_count if time in KNOWN_LENGTHS else known
    assert counter.frame_count == known > 0


@pytest.mark.parametrize("case", CASES)
def test_training(case: str) -> None:
    check_training(case, "eager", padded=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_training_with_padding(case: str) -> None:
    check_training(case, "eager", padded=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_training_through_the_graphs_own_backward(case: str) -> None:
    check_training(case, "aot_eager", padded=False)


@torch.no_grad()
@torch._dynamo.config.patch(recompile_limit=32)  # pyright: ignore[reportAttributeAccessIssue]
@pytest.mark.parametrize(
    "case",
    [c if c == "lmm-online" else pytest.param(c, marks=pytest.mark.slow) for c in NAMES],
)
def test_prefill_and_decoding(case: str) -> None:
    model = build(case)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=case != "mac-online")
    ids = tiny_tokens(time=sum(KNOWN_CALLS) + sum(OTHER_CALLS))
    one, other = model.new_cache(2), model.new_cache(2)
    known = 0
    for number, part in enumerate(ids.split((*KNOWN_CALLS, *OTHER_CALLS), dim=1)):
        wanted = model(part, past_key_values=one).logits
        found = compiled(part, past_key_values=other).logits
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
        known = counter.frame_count if number < len(KNOWN_CALLS) else known
    assert counter.frame_count == known > 0
    for name, tensor in one.named_tensors().items():
        torch.testing.assert_close(other.named_tensors()[name], tensor, rtol=0, atol=1e-5)


def recipe() -> dict[str, Any]:
    """What the example in docs/compatibility.md defines."""
    page = Path(__file__).parents[2] / "docs" / "compatibility.md"
    names: dict[str, Any] = {}
    (example,) = re.findall(
        r"```python\n(import torch\nfrom torch import nn.*?)```", page.read_text(), re.S
    )
    exec(compile(example, str(page), "exec"), names)
    return names


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_export_of_prefill_and_decoding(case: str, tmp_path: Path) -> None:
    model, ids = build(case), tiny_tokens(time=60)
    prefill, step = recipe()["Prefill"](model), recipe()["Step"](model)
    first, read = ids[:, :21], 21
    any_length: Any = None
    if case != "mac-online":
        any_length, read = torch.export.ShapesCollection(), 33
        any_length[first] = {1: torch.export.Dim.DYNAMIC}
    cache = model.new_cache(2)
    wanted = model(ids[:, :read], past_key_values=cache).logits
    whole = torch.export.export(prefill, (first,), dynamic_shapes=any_length).module()
    found, state = whole(ids[:, :read])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    one = torch.export.export(step, (ids[:, :1], state))
    torch.export.save(one, tmp_path / "step.pt2")
    one = torch.export.load(tmp_path / "step.pt2").module()
    before = {name: tensor.clone() for name, tensor in state.items()}
    first_state = state
    for place in range(read, read + 12):
        wanted = model(ids[:, place : place + 1], past_key_values=cache).logits
        found, state = one(ids[:, place : place + 1], state)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert cache.named_tensors().keys() == state.keys()
    for name, tensor in cache.named_tensors().items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-5)
        assert torch.equal(first_state[name], before[name]), "a call changed the state it was given"


def test_mac_is_not_one_graph() -> None:
    compiled = torch.compile(build("mac-online"), backend="eager", fullgraph=True)
    with pytest.raises(Unsupported, match=r"torch\.compiler\.disable"):
        compiled(tiny_tokens())
