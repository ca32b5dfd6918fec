"""The entrance of the public functions: they run eagerly, and refuse what cannot be meant.

Every error names the value and the fix.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from titans.errors import StateError
from titans.ops.options import ScanOptions
from titans.ops.state import Gates, MemoryState

Function = TypeVar("Function", bound=Callable[..., Any])


def eager(*, recursive: bool) -> Callable[[Function], Function]:
    """Run a function as it is inside a compiled model; what it calls, too, if `recursive`."""

    def decorate(function: Function) -> Function:
        # Whoever compiles has torch._dynamo; for anybody else it would be half of the import time.
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return torch.compiler.disable(function, recursive=recursive)(*args, **kwargs)
            return function(*args, **kwargs)

        return run  # type: ignore[return-value]

    return decorate


def check_scan(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    state: MemoryState,
    chunk_size: int,
    mask: Tensor | None,
    write_mask: Tensor | None,
    options: ScanOptions,
) -> None:
    """Raise on the first thing that does not fit."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 (the exact online rule), got {chunk_size}")
    _check_tokens(queries, keys, values, gates)
    batch, time = keys.shape[:2]
    for name, given in (("mask", mask), ("write_mask", write_mask)):
        if given is None:
            continue
        if given.shape != (batch, time) or given.dtype != torch.bool:
            raise ValueError(
                f"{name} must be a bool tensor of shape {(batch, time)}, "
                f"got {given.dtype} {tuple(given.shape)}"
            )
    check_state(state, keys, values, options)


def _check_tokens(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates) -> None:
    for name, tensor in (("queries", queries), ("keys", keys), ("values", values)):
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} must be [batch, time, heads, dim], got shape {tuple(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
    check_not_empty(keys)
    if queries.shape != keys.shape:
        raise ValueError(
            f"queries and keys must have one shape, got {tuple(queries.shape)} and "
            f"{tuple(keys.shape)}"
        )
    if values.shape[:3] != keys.shape[:3]:
        raise ValueError(
            f"values must agree with keys in batch, time and heads, got {tuple(values.shape)} "
            f"and {tuple(keys.shape)}"
        )
    for name, gate in gates._asdict().items():
        if gate.shape != keys.shape[:3]:
            raise ValueError(
                f"gates.{name} must be [batch, time, heads] = {tuple(keys.shape[:3])}, "
                f"got {tuple(gate.shape)}"
            )


def check_not_empty(tokens: Tensor) -> None:
    """Raise on an input of no rows or no tokens."""
    for size, name, unit in zip(tokens.shape, ("batch", "time"), ("row", "token"), strict=False):
        if size == 0:
            raise ValueError(f"empty input: {name} is 0; give at least one {unit}")


def check_state(state: MemoryState, keys: Tensor, values: Tensor, options: ScanOptions) -> None:
    """Raise `StateError` unless the state fits these keys and values."""
    batch, _, heads, key_dim = keys.shape
    if state.batch != batch:
        raise StateError(
            f"the state has {state.batch} rows, the input {batch}; "
            "use state.select(...) or start from a state of the right batch"
        )
    first, last = state.weights[0], [w for w in state.weights if w.ndim == 4][-1]
    if state.num_heads != heads:
        raise StateError(f"the state has {state.num_heads} heads, the input {heads}")
    if first.shape[-1] != key_dim or last.shape[-2] != values.shape[-1]:
        raise StateError(
            f"the state's memory maps {first.shape[-1]} -> {last.shape[-2]} features, the input "
            f"asks for {key_dim} -> {values.shape[-1]}: they belong to different configurations"
        )
    if options.residual and key_dim != values.shape[-1]:
        raise ValueError(
            f"a residual memory needs keys and values of one width, got {key_dim} and "
            f"{values.shape[-1]}"
        )
    if state.device != keys.device:
        raise StateError(
            f"the state is on {state.device}, the input on {keys.device}; use state.to(device)"
        )
    if state.dtype.itemsize < 4:
        raise StateError(
            f"the state is {state.dtype}, in which small writes would be lost; "
            "use state.to(dtype=torch.float32)"
        )
    if keys.dtype == torch.float64 and state.dtype != torch.float64:
        raise StateError(
            f"the input is float64, the state {state.dtype}; use state.to(dtype=torch.float64)"
        )
