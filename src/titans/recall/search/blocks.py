"""The index of a scope in blocks: thousands of passages as one value of the store.

A large scope opens in a fraction of a second from its blocks; row by row it takes seconds. Blocks
are a copy of what the rows say, in the order of writing and without gaps, made while writing. Those
that hold a forgotten record are made again. What is newer than the last block is read by row.
"""

import json
from collections.abc import Sequence

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from titans.recall.search.index import Columns, ScopeIndex
from titans.recall.store import Store

BLOCK_ROWS = 2048
"""Passages in a block, or a few more: a record is not divided."""


def load_index(store: Store, scope_id: int, index: ScopeIndex) -> None:
    """Take into the index what the store has beyond it."""
    if not len(index):
        index.reserve(store.rows_in_blocks(scope_id))
        for data in store.blocks(scope_id):
            index.append(unpack(data))
    index.extend(store.index_entries(scope_id, index.last_seq))


def save_blocks(store: Store, scope_id: int, index: ScopeIndex) -> None:
    """Add a block for every `BLOCK_ROWS` passages that have none; inside `store.writing()`."""
    seqs = index.column("seq")
    ends = store.block_ends(scope_id)
    begin = int(np.searchsorted(seqs, ends[-1], side="right")) if ends else 0
    while len(index) - begin >= BLOCK_ROWS:
        last = int(seqs[begin + BLOCK_ROWS - 1])
        end = int(np.searchsorted(seqs, last, side="right"))
        store.save_block(scope_id, last, end - begin, pack(index.rows(begin, end)))
        begin = end


def renew_blocks(store: Store, scope_id: int, dim: int, ends: Sequence[int]) -> None:
    """Make the blocks again that `store.delete_records` has removed.

    Args:
        ends: the blocks that there were before (`store.block_ends`).
    """
    left, begin = set(store.block_ends(scope_id)), 0
    for end in ends:
        if end not in left:
            index = ScopeIndex(dim)
            index.extend(store.index_entries(scope_id, begin, end))
            if len(index):
                rows = pack(index.rows(0, len(index)))
                store.save_block(scope_id, index.last_seq, len(index), rows)
        begin = end


def pack(rows: Columns) -> bytes:
    """The columns of a block as bytes."""
    names = json.dumps(rows.speakers).encode()
    extra = {"names": np.frombuffer(names, np.uint8), "total": rows.total}
    return save_arrays({**rows.columns, **extra})


def unpack(data: bytes) -> Columns:
    """The inverse."""
    columns = load_arrays(data)
    names = json.loads(columns.pop("names").tobytes())
    return Columns(columns, names, columns.pop("total"))
