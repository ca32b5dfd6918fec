"""How `MemoryState` tensors and tokens become the stacked matrices of the scan, and back.

Stacked: rows are batch x heads, a bias is the last input column of its weight, and weight and
momentum lie side by side. A chunk is `[n ...]` with n = batch x heads; `count` chunks joined are
`[count*n ...]`, one after the other, so that each is a slice: so small chunks share matmuls.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from titans.ops.scan.chunk import Gradients
from titans.ops.scan.mixing import Coefficients
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


def cut_rows(tokens: Tensor, count: int) -> Tensor:
    """`[n count*b ...]` -> `[count*n b ...]`."""
    if count == 1:
        return tokens
    return tokens.unflatten(1, (count, -1)).transpose(0, 1).flatten(0, 1)


def uncut_rows(rows: Tensor, count: int) -> Tensor:
    """The inverse of `cut_rows`."""
    if count == 1:
        return rows
    return rows.unflatten(0, (count, -1)).transpose(0, 1).flatten(1, 2)


def join_chunks(parts: Sequence[Tensor]) -> Tensor:
    """Chunks `[n ...]` -> `[count*n ...]`."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def join_lists(parts: list[list[Tensor]]) -> list[Tensor]:
    """Join layer by layer."""
    return [join_chunks(same) for same in zip(*parts, strict=True)]


TupleOfTensors = TypeVar("TupleOfTensors", Gradients, Coefficients)


def join_tuples(parts: list[TupleOfTensors]) -> TupleOfTensors:
    """Join named tuples of tensors, or of lists of them, field by field."""
    if len(parts) == 1:
        return parts[0]
    fields = [
        join_lists(list(same)) if isinstance(same[0], list) else join_chunks(same)
        for same in zip(*parts, strict=True)
    ]
    return type(parts[0])(*fields)  # pyright: ignore[reportArgumentType]


def join_or_none(parts: list[Tensor | None]) -> Tensor | None:
    """Join chunks that all have a tensor, or all have none."""
    found = [p for p in parts if p is not None]
    return join_chunks(found) if found else None


def repeat_rows(base: list[Tensor] | None, count: int) -> list[Tensor] | None:
    """All rows `count` times, once for every chunk."""
    if base is None or count == 1:
        return base
    return [b.expand(count, *b.shape).flatten(0, 1) for b in base]


def chunk_part(joined: Tensor, number: int, count: int) -> Tensor:
    """Chunk `number` out of joined rows, a view `[n ...]`."""
    rows = joined.shape[0] // count
    return joined if count == 1 else joined[number * rows : (number + 1) * rows]


def part_of_tuple(joined: TupleOfTensors, number: int, count: int) -> TupleOfTensors:
    """Chunk `number` out of a joined named tuple, as views."""
    if count == 1:
        return joined
    fields = [
        [chunk_part(x, number, count) for x in field]
        if isinstance(field, list)
        else chunk_part(field, number, count)
        for field in joined
    ]
    return type(joined)(*fields)  # pyright: ignore[reportArgumentType]
