"""The associative scan equals the recurrence, written as it is defined."""

import pytest
import torch
from torch import Tensor

from titans.ops import associative_scan


def sequential_scan(factors: Tensor, terms: Tensor, initial: Tensor | None) -> Tensor:
    x = torch.zeros_like(terms[0]) if initial is None else initial
    found = []
    for factor, term in zip(factors, terms, strict=True):
        x = factor * x + term
        found.append(x)
    return torch.stack(found)


@pytest.mark.parametrize("with_initial", [False, True])
@pytest.mark.parametrize("time", [1, 2, 3, 7, 8, 9, 64, 101])
def test_equals_the_sequential_scan(time: int, with_initial: bool) -> None:
    factors = torch.rand(time, 3, 2, dtype=torch.float64)
    factors[::5] = 0.0
    terms = torch.randn(time, 3, 2, dtype=torch.float64)
    initial = torch.randn(3, 2, dtype=torch.float64) if with_initial else None
    leaves = [t.clone().requires_grad_() for t in (factors, terms)]
    twins = [t.clone().requires_grad_() for t in (factors, terms)]
    fast = associative_scan(*leaves, initial)
    slow = sequential_scan(*twins, initial)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(slow)
    for a, b in zip(
        torch.autograd.grad((fast * weight).sum(), leaves, allow_unused=True),
        torch.autograd.grad((slow * weight).sum(), twins, allow_unused=True),
        strict=True,
    ):
        # One step from zero: the parallel form has no factor to depend on, the other times zero.
        a = torch.zeros_like(b) if a is None else a
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.untyped
def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="one shape"):
        associative_scan(torch.ones(3, 2), torch.ones(4, 2))
