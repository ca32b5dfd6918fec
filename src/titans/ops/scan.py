"""First-order linear recurrences `x_t = a_t x_{t-1} + b_t`, in parallel and one by one.

Used where the memory's updates are materialised token by token (`ops.functional`).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def associative_scan(
    factors: Float[Tensor, "time *dims"],
    terms: Float[Tensor, "time *dims"],
    initial: Float[Tensor, "*dims"] | None = None,
) -> Float[Tensor, "time *dims"]:
    """All x_t of `x_t = factors_t x_{t-1} + terms_t` in a logarithmic number of steps.

    Pairs (a, b) compose as (a2 a1, a2 b1 + b2), which is associative; neighbours are merged,
    the half as long sequence is solved, and the rest is filled in (Blelloch). Equal to
    `sequential_scan` (tests/ops/test_scan.py), which it replaces where time is long.

    Args:
        initial: x before the first step; zero if not given.
    """
    if factors.shape != terms.shape:
        raise ValueError(
            f"factors and terms must have one shape, got {tuple(factors.shape)} and "
            f"{tuple(terms.shape)}"
        )
    if initial is not None and len(terms):
        terms = torch.cat([(terms[0] + factors[0] * initial)[None], terms[1:]])
    return _scan_pairs(factors, terms)


def _scan_pairs(factors: Tensor, terms: Tensor) -> Tensor:
    time = len(terms)
    if time < 2:
        return terms
    # Merge tokens (0, 1), (2, 3), ...; the scan of the merged ones gives every second x.
    even_factors, odd_factors = factors[0 : time - 1 : 2], factors[1::2]
    even_terms, odd_terms = terms[0 : time - 1 : 2], terms[1::2]
    odd = _scan_pairs(odd_factors * even_factors, torch.addcmul(odd_terms, odd_factors, even_terms))
    # The others follow from their left neighbour by one step.
    later = factors[2::2]
    even = torch.cat([terms[:1], torch.addcmul(terms[2::2], later, odd[: len(later)])])
    return _interleave(even, odd)


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """even[0], odd[0], even[1], odd[1], ..."""
    pairs = torch.stack([even[: len(odd)], odd], dim=1).flatten(0, 1)
    return pairs if len(even) == len(odd) else torch.cat([pairs, even[-1:]])


def sequential_scan(
    factors: Float[Tensor, "time *dims"],
    terms: Float[Tensor, "time *dims"],
    initial: Float[Tensor, "*dims"] | None = None,
) -> Float[Tensor, "time *dims"]:
    """The same recurrence, written as it is defined."""
    x = torch.zeros_like(terms[0]) if initial is None else initial
    found = []
    for factor, term in zip(factors, terms, strict=True):
        x = factor * x + term
        found.append(x)
    return torch.stack(found)
