"""How `MemoryState` tensors become the stacked matrices of `ops.chunk_math`, and back.

Stacked: rows are batch x heads, a bias is the last input column of its weight, and weight and
momentum lie side by side.
"""

import torch
from torch import Tensor

from titans.ops.state import MemoryState


def bias_pattern(parameters: tuple[Tensor, ...]) -> tuple[bool, ...]:
    """Per layer: is there a bias? Weights are `[batch heads out in]`, biases have no `in`."""
    pattern: list[bool] = []
    for parameter in parameters:
        if parameter.ndim == 4:
            pattern.append(False)
        else:
            pattern[-1] = True
    return tuple(pattern)


def stack(parameters: tuple[Tensor, ...]) -> list[Tensor]:
    """Per layer `[n out in]`, with the bias as a further input column."""
    stacked: list[Tensor] = []
    for parameter in parameters:
        flat = parameter.flatten(0, 1)
        if parameter.ndim == 4:
            stacked.append(flat)
        else:
            stacked[-1] = torch.cat([stacked[-1], flat[..., None]], dim=-1)
    return stacked


def unstack(stacked: list[Tensor], biased: tuple[bool, ...], batch: int) -> tuple[Tensor, ...]:
    """The inverse of `stack`."""
    parameters: list[Tensor] = []
    for matrix, has_bias in zip(stacked, biased, strict=True):
        shaped = matrix.unflatten(0, (batch, -1))
        if has_bias:
            parameters += [shaped[..., :-1], shaped[..., -1]]
        else:
            parameters.append(shaped)
    return tuple(parameters)


def pack(state: MemoryState, base: list[Tensor] | None, has_momentum: bool) -> list[Tensor]:
    """Weights (less `base`, if given) and, where there is any, momentum side by side."""
    weights = stack(state.weights)
    if base is not None:
        weights = [w - b for w, b in zip(weights, base, strict=True)]
    if not has_momentum:
        return weights
    momentum = stack(state.momentum)
    return [torch.cat(pair, dim=-1) for pair in zip(weights, momentum, strict=True)]


def unpack(
    packed: list[Tensor], base: list[Tensor] | None, has_momentum: bool
) -> tuple[list[Tensor], list[Tensor] | None]:
    """The inverse of `pack`: stacked weights and stacked momentum, or None where there is none."""
    halves = [both.chunk(2 if has_momentum else 1, dim=-1) for both in packed]
    weights = [half[0] for half in halves]
    if base is not None:
        weights = [w + b for w, b in zip(weights, base, strict=True)]
    return weights, [half[1] for half in halves] if has_momentum else None


def to_rows(tokens: Tensor) -> Tensor:
    """`[batch time heads ...]` -> `[batch*heads time ...]`."""
    return tokens.transpose(1, 2).flatten(0, 1)


def from_rows(rows: Tensor, batch: int) -> Tensor:
    """The inverse of `to_rows`."""
    return rows.unflatten(0, (batch, -1)).transpose(1, 2)
