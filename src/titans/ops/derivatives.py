"""Two ways to a derivative: written by hand, or autograd's own through plain operations.

The derivatives written by hand are faster, and need no memory per token. They serve one backward
pass. `torch.func`, forward mode, and the derivative of a derivative go through plain operations,
which are tested to be the same function (tests/ops/test_derivatives.py).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """Whether a transform of `torch.func`, or forward mode, looks into this call."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def by_hand() -> bool:
    """Whether a derivative written by hand can serve; a compiler writes its own."""
    return not (torch.compiler.is_compiling() or is_transformed())


def is_recorded() -> bool:
    """Whether autograd goes through the operations that follow, so that none may be in place."""
    return torch.is_grad_enabled() or is_transformed()


def is_mapped(tensor: Tensor | None) -> bool:
    """Whether `vmap` runs over this tensor, so that no decision can be taken on its values."""
    while tensor is not None and is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


def through(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """The derivative of a function of plain operations, which can be differentiated again.

    Args:
        grads: the derivatives by the function's outputs; None counts as zero.
    """
    with torch.enable_grad():
        # Views, since one input may be made from another: each derivative is by one alone.
        views = [None if t is None else t.view_as(t) for t in inputs]
        outputs = function(*views)
    wanted = [v for v in views if v is not None and v.requires_grad]
    pairs = [
        (o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad
    ]
    found = iter(
        torch.autograd.grad(
            [o for o, _ in pairs],
            wanted,
            [g for _, g in pairs],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
    )
    return tuple(next(found) if v is not None and v.requires_grad else None for v in views)
