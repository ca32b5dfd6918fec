"""Reading the memory without writing: y = M(q) at the present weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from titans.errors import StateError
from titans.ops.scan.chunk import with_ones
from titans.ops.scan.layout import bias_pattern, from_rows, stack, to_rows
from titans.ops.state import MemoryState


def read_memory(
    queries: Float[Tensor, "batch time heads key_dim"],
    state: MemoryState,
    *,
    residual: bool = False,
) -> Float[Tensor, "batch time heads value_dim"]:
    """Read every query at the weights of `state`; nothing is written, nothing moves on."""
    if state.batch != queries.shape[0] or state.num_heads != queries.shape[2]:
        raise StateError(
            f"the state has {state.batch} rows and {state.num_heads} heads, the queries "
            f"{queries.shape[0]} and {queries.shape[2]}"
        )
    with torch.autocast(device_type=queries.device.type, enabled=False):
        rows = to_rows(queries.to(state.dtype))
        output = apply_layers(rows, stack(state.weights), bias_pattern(state.weights))
        if residual:
            output = output + rows
        return from_rows(output, state.batch).to(queries.dtype)


def apply_layers(x: Tensor, weights: list[Tensor], biased: tuple[bool, ...]) -> Tensor:
    """An MLP with SiLU between its layers, on stacked weights `[n out in]`."""
    for layer, (weight, has_bias) in enumerate(zip(weights, biased, strict=True)):
        if layer:
            x = torch.nn.functional.silu(x)
        x = torch.bmm(with_ones(x, has_bias), weight.mT)
    return x
