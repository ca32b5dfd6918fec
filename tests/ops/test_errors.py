"""Wrong input: a message that names the value and the fix, and the caller's state untouched.

Run with annotations off (`make test`), since those would catch most of it first.
"""

import pytest
import torch

from support.parity import memory_inputs
from titans.errors import StateError
from titans.ops import Gates, MemoryState, ScanOptions, scan_memory

pytestmark = pytest.mark.untyped


def call(**changes):
    inputs = memory_inputs(time=6, dtype=torch.float32)
    given = {
        "queries": inputs.queries,
        "keys": inputs.keys,
        "values": inputs.values,
        "gates": Gates(*inputs.gates),
        "state": MemoryState.initial(inputs.layers, 2),
        "chunk_size": 4,
    }
    if "with" in changes:
        given |= changes.pop("with")(given)
    given |= changes
    before = {n: t.clone() for n, t in given["state"].named_tensors().items()}
    try:
        return scan_memory(**given)
    finally:
        for name, tensor in given["state"].named_tensors().items():
            assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, ValueError, "mask must be"),
        ({"with": lambda g: {"keys": g["keys"][..., :3]}}, ValueError, "one shape"),
        ({"with": lambda g: {"values": g["values"][:1]}}, ValueError, "agree with keys"),
        (
            {"with": lambda g: {k: g[k][:, :0] for k in ("queries", "keys", "values")}},
            ValueError,
            "empty input",
        ),
        ({"with": lambda g: {"state": g["state"].select([0])}}, StateError, "1 rows"),
        (
            {"state": MemoryState.initial([torch.ones(2, 5, 3)], 2)},
            StateError,
            "different configurations",
        ),
        ({"state": MemoryState.initial([torch.ones(3, 5, 4)], 2)}, StateError, "3 heads"),
        (
            {
                "with": lambda g: (
                    {k: g[k].double() for k in ("queries", "keys", "values")}
                    | {"gates": Gates(*(x.double() for x in g["gates"]))}
                )
            },
            StateError,
            "float64",
        ),
        (
            {"with": lambda g: {k: g[k].long() for k in ("queries", "keys", "values")}},
            ValueError,
            "floating point",
        ),
    ],
)
def test_what_is_refused(changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(**changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "l3"}, "l3"),
        ({"forget_towards": "one"}, "one"),
        ({"read": "during"}, "during"),
        ({"gradient": "some"}, "some"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"step_limit": -1.0}, "step_limit"),
        ({"lp_power": 0.5}, "lp_power"),
        ({"skip_unsurprising": True}, "surprise_threshold"),
    ],
)
def test_options_are_checked(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScanOptions(**settings)


def test_initial_states_are_checked() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        MemoryState.initial([], 1)
    with pytest.raises(ValueError, match="batch"):
        MemoryState.initial([torch.ones(1, 2, 2)], 0)
    with pytest.raises(ValueError, match="heads, out, in"):
        MemoryState.initial([torch.ones(2, 2)], 1)
    with pytest.raises(ValueError, match="bias"):
        MemoryState.initial([(torch.ones(1, 2, 3), torch.ones(1, 3))], 1)
