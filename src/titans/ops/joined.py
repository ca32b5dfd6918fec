"""Several chunks as one stack of rows: how reads of small chunks share their matmuls.

A chunk is `[n ...]` with n = batch x heads; `count` chunks joined are `[count*n ...]`, one chunk
after the other, so that each is a slice of the stack.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from titans.ops.chunk_math import Recall
from titans.ops.mixing import Coefficients


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


TupleOfTensors = TypeVar("TupleOfTensors", Recall, Coefficients)


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
