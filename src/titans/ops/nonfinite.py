"""Tokens that are NaN or infinite, and those whose gradient overflows.

In a chunk's closed form an earlier token meets a later one as zero times its numbers, and zero
times NaN is NaN. So a scan looks once, at the small tensors that any such token shows up in; if one
did, it runs again without the numbers that are not finite.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from titans.ops.derivatives import is_transformed
from titans.ops.state import Gates, MemoryState, Trace

Scan = TypeVar("Scan", bound=Callable[..., tuple[Tensor, MemoryState, Trace]])


def is_finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite; False, too, where the sum of finite ones overflows."""
    with torch.no_grad():
        return math.isfinite(float(sum(t.sum() for t in tensors)))


def fill(tensor: Tensor, where: Tensor, value: float) -> Tensor:
    """`tensor` with `value` where `where`, whose axes are the tensor's first ones."""
    return tensor.masked_fill(where.view(*where.shape, *[1] * (tensor.ndim - where.ndim)), value)


def contained(scan: Scan) -> Scan:
    """A scan in which a token that is not finite leaves everything before it as it is, to the bit.

    From that token on its row is lost, in every head that it reaches: outputs, surprise and state
    are NaN. With `ScanOptions.skip_nonfinite` the row goes on as if the token were padding.
    """

    @wraps(scan)
    def run(
        queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, state: MemoryState, **more: Any
    ) -> tuple[Tensor, MemoryState, Trace]:
        found = scan(queries, keys, values, gates, state, **more)
        # Transforms cannot branch on numbers.
        if is_transformed() or is_finite(found[2].surprise.grad_norm, *gates):
            return found
        return _around(scan, [queries, keys, values, *gates], state, more)

    return run  # type: ignore[return-value]


def _around(
    scan: Callable[..., tuple[Tensor, MemoryState, Trace]],
    tokens: list[Tensor],
    state: MemoryState,
    more: dict[str, Any],
) -> tuple[Tensor, MemoryState, Trace]:
    """The scan without the numbers that are not finite, and NaN where a row is lost."""
    mask, write_mask, options = (more.get(n) for n in ("mask", "write_mask", "options"))
    bad = torch.stack([not_finite(t, 3) for t in tokens[1:]]).any(0)
    if options is not None and options.skip_nonfinite:
        kept = ~bad.any(-1)
        mask = kept if mask is None else mask & kept
        more = {**more, "mask": mask}
    real = torch.ones_like(bad) if mask is None else mask[..., None].expand_as(bad)
    acting = real if write_mask is None else real & write_mask[..., None]
    before = torch.stack([not_finite(w, 2) for w in state.weights]).any(0)
    lost = ((bad & acting).cumsum(1) > 0) | before[:, None]
    sound = _fill_rows(state, before, 0.0)

    def again() -> tuple[Tensor, MemoryState, Trace]:
        queries = fill(tokens[0], lost, 0.0)
        keys, values, *gates = (fill(t, lost | bad, 0.0) for t in tokens[1:])
        return scan(queries, keys, values, Gates(*gates), sound, **more)

    out, after, trace = again()
    overflows = not_finite(trace.surprise.grad_norm, 3) & acting
    if bool(overflows.any()):
        lost = lost | (overflows.cumsum(1) > 0)
        out, after, trace = again()
    nan, shown = float("nan"), lost & real
    surprise = type(trace.surprise)(*(fill(s, shown, nan) for s in trace.surprise))
    after = _fill_rows(after, lost[:, -1], nan)
    return fill(out, shown, nan), after, trace._replace(surprise=surprise)


def not_finite(tensor: Tensor, axes: int) -> Tensor:
    """Where, along the first axes, any number is not finite."""
    finite = tensor.detach().isfinite()
    return ~(finite if tensor.ndim == axes else finite.flatten(axes).all(-1))


def _fill_rows(state: MemoryState, rows: Tensor, value: float) -> MemoryState:
    """What is written in a memory, filled in these rows and heads."""
    written = ("weights", "momentum", "chunk_weights")
    found = {name: tuple(fill(t, rows, value) for t in getattr(state, name)) for name in written}
    return state.replace(**found)
