"""A scan as one operator of PyTorch, `titans::scan`: what a compiler or an exporter sees of it.

How a scan runs depends on where rows stand in their chunks, which a graph cannot ask for. As one
operator it runs as it always does, so that one graph serves every length, split and padding. Its
backward runs the scan a second time: a graph can keep nothing for it but tensors of known shape.
"""

from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import DispatchKey

from titans.ops.options import ScanOptions
from titans.ops.state import Gates, MemoryState, Surprise, Trace

Function = TypeVar("Function", bound=Callable[..., tuple[Tensor, MemoryState, Trace]])
GROUPS = ("weights", "momentum", "chunk_weights", "initial_weights")
NUM_TOKENS = 6
"""Queries, keys, values and the three gates."""
NUM_OUTPUTS = 6
"""Outputs and the five of a trace."""
_FUNCTIONS: dict[str, Callable[..., tuple[Tensor, MemoryState, Trace]]] = {}


def as_operator(function: Function) -> Function:
    """`function` as it is; inside a compiled model, one operator."""
    _FUNCTIONS[function.__name__] = function

    @wraps(function)
    def run(*args: Any, **settings: Any) -> tuple[Tensor, MemoryState, Trace]:
        if torch.compiler.is_compiling():
            return _through(function.__name__, args, settings)
        return function(*args, **settings)

    return run  # type: ignore[return-value]


def _through(
    name: str, args: Sequence[Any], settings: dict[str, Any]
) -> tuple[Tensor, MemoryState, Trace]:
    queries, keys, values, gates, state = args
    mask, write_mask = settings.pop("mask", None), settings.pop("write_mask", None)
    options = settings.pop("options", None)
    plain = [f"{key!r}: {value!r}" for key, value in settings.items()]
    if options is not None:
        fields = [f"{key!r}: {value!r}" for key, value in options.__dict__.items()]
        plain.append("'options': {" + ", ".join(fields) + "}")
    tensors = [queries, keys, values, *gates, *state.weights, *state.momentum]
    tensors += [*state.chunk_weights, *state.initial_weights, state.position]
    found = _scan(name, "{" + ", ".join(plain) + "}", tensors, mask, write_mask)
    out, loss, norm, active, written, factor, *rest = found
    size = len(state.weights)
    after = MemoryState(
        weights=tuple(rest[:size]),
        momentum=tuple(rest[size : 2 * size]),
        chunk_weights=tuple(rest[2 * size : 3 * size]),
        initial_weights=state.initial_weights,
        position=rest[-1],
    )
    return out, after, Trace(Surprise(loss, norm), active, written, factor)


def _call(
    name: str,
    settings: str,
    tensors: Sequence[Tensor],
    mask: Tensor | None,
    write_mask: Tensor | None,
) -> list[Tensor]:
    """The function itself, on flat tensors."""
    given = literal_eval(settings)
    if "options" in given:
        given["options"] = ScanOptions(**given["options"])
    queries, keys, values, *gates = tensors[:NUM_TOKENS]
    rest, size = tensors[NUM_TOKENS:], (len(tensors) - NUM_TOKENS - 1) // len(GROUPS)
    groups = {n: tuple(rest[i * size : (i + 1) * size]) for i, n in enumerate(GROUPS)}
    state = MemoryState(**groups, position=rest[-1])
    given |= {"mask": mask, "write_mask": write_mask}
    found = _FUNCTIONS[name](queries, keys, values, Gates(*gates), state, **given)
    out, after, (surprise, *decisions) = found
    memory = (*after.weights, *after.momentum, *after.chunk_weights, after.position)
    return [out, *surprise, *decisions, *memory]


def _like_outputs(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Empty tensors of the shapes and types of what `_scan` returns."""
    values, gate, weight = tensors[2], tensors[5], tensors[NUM_TOKENS]
    trace = [gate.new_empty(gate.shape, dtype=weight.dtype) for _ in range(3)]
    flags = [gate.new_empty(gate.shape, dtype=torch.bool) for _ in range(2)]
    size = (len(tensors) - NUM_TOKENS - 1) // len(GROUPS)
    memory = tensors[NUM_TOKENS : NUM_TOKENS + 3 * size]
    out = values.new_empty(values.shape)
    after = [t.new_empty(t.shape) for t in (*memory, tensors[-1])]
    return [out, *trace[:2], *flags, trace[2], *after]


@torch.library.custom_op("titans::scan", mutates_args=())
def _scan(
    name: str,
    settings: str,
    tensors: Sequence[Tensor],
    mask: Tensor | None,
    write_mask: Tensor | None,
) -> list[Tensor]:
    with torch.no_grad():
        # An operator may return neither what it was given nor the same thing twice.
        return [
            t.clone(memory_format=torch.contiguous_format)
            for t in _call(name, settings, tensors, mask, write_mask)
        ]


@_scan.register_fake
def _(
    name: str,
    settings: str,
    tensors: Sequence[Tensor],
    mask: Tensor | None,
    write_mask: Tensor | None,
) -> list[Tensor]:
    return _like_outputs(tensors)


@contextmanager
def _recording() -> Iterator[None]:
    """Inside an operator autograd is switched off below `enable_grad`: switch on both."""
    without = torch._C._dispatch_tls_local_exclude_set()
    for key in (DispatchKey.AutogradFunctionality, DispatchKey.AutogradOther):
        without = without.remove(key)
    include = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(include, without), torch.enable_grad():
        yield


@torch.library.custom_op("titans::scan_backward", mutates_args=())
def _scan_backward(
    name: str,
    settings: str,
    tensors: Sequence[Tensor],
    mask: Tensor | None,
    write_mask: Tensor | None,
    grads: Sequence[Tensor],
) -> list[Tensor]:
    """The derivatives by all tensors but the last, the position."""
    with _recording():
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
        outputs = _call(name, settings, leaves, mask, write_mask)
        floating = [t for t in outputs if t.is_floating_point()]
        pairs = [(t, g) for t, g in zip(floating, grads, strict=True) if t.requires_grad]
        found = torch.autograd.grad(
            [t for t, _ in pairs],
            leaves[:-1],
            [g for _, g in pairs],
            materialize_grads=True,
            allow_unused=True,
        )
    return [g.clone(memory_format=torch.contiguous_format) for g in found]


@_scan_backward.register_fake
def _(
    name: str,
    settings: str,
    tensors: Sequence[Tensor],
    mask: Tensor | None,
    write_mask: Tensor | None,
    grads: Sequence[Tensor],
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in tensors[:-1]]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    ctx.name, ctx.settings, tensors, mask, write_mask = inputs
    ctx.save_for_backward(mask, write_mask, *tensors)


def _differentiate(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    mask, write_mask, *tensors = ctx.saved_tensors
    given = [
        torch.zeros_like(o) if g is None else g
        for g, o in zip(grads, _like_outputs(tensors), strict=True)
        if o.is_floating_point()
    ]
    found = _scan_backward(ctx.name, ctx.settings, tensors, mask, write_mask, given)
    return None, None, [*found, None], None, None


_scan.register_autograd(_differentiate, setup_context=_keep)
