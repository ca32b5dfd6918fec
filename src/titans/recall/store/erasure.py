"""Overwriting what SQLite leaves of deleted rows in its file.

With `secure_delete` SQLite writes zeros over all that it frees. What it does not is the gap of a
page between the places of its rows and the rows themselves: when a full page is divided, copies of
rows stay there that have moved to the next page, and that may be deleted later. What a gap holds
means nothing to SQLite, so it can be overwritten in the file itself, in a second per gigabyte;
writing the whole file anew (`VACUUM`) takes half a minute.
"""

import os
from pathlib import Path

import numpy as np

SLAB = 1 << 24
"""Bytes looked at together."""
HEADERS = {2: 12, 5: 12, 10: 8, 13: 8}
"""Kind of a page with rows -> bytes of its header, after which the places of its rows begin."""
MAX_PAGES = 1 << 24
"""In a file of fewer pages the first byte of all others is zero: the high byte of a number."""

_handles: dict[tuple[int, int], int] = {}
"""Files that were overwritten, open for as long as the process lives: closing any handle of a file
gives up the locks that SQLite holds on it through another."""


def overwrite_gaps(path: Path) -> int | None:
    """Write zeros into the gaps of all pages; returns how many pages had anything there.

    Call it with the write lock, and with nothing in the write-ahead log. None if this file is of a
    kind that has to be written anew.
    """
    if not hasattr(os, "pread"):  # Windows
        return None
    found = path.stat()
    handle = _handles.get((found.st_dev, found.st_ino))
    if handle is None:
        handle = os.open(path, os.O_RDWR)
        _handles[found.st_dev, found.st_ino] = handle
    header = os.pread(handle, 100, 0)
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    moves_pages = any(header[52:56])  # auto_vacuum, whose tables of pages could be taken for rows
    if moves_pages or found.st_size // size >= MAX_PAGES:
        return None
    changed = 0
    for offset in range(0, found.st_size, SLAB):
        slab = os.pread(handle, SLAB, offset)
        for begin, end in _gaps(slab, size, is_first=offset == 0):
            if slab.count(0, begin, end) != end - begin:
                os.pwrite(handle, bytes(end - begin), offset + begin)
                changed += 1
    os.fsync(handle)
    return changed


def _gaps(slab: bytes, size: int, *, is_first: bool) -> list[tuple[int, int]]:
    """Where the gaps of some whole pages begin and end."""
    pages = np.frombuffer(slab, np.uint8, len(slab) // size * size).reshape(-1, size)
    starts = np.arange(len(pages)) * size
    at = np.zeros(len(pages), np.int64)
    at[0] = 100 if is_first else 0  # the header of the file
    rows = np.arange(len(pages))
    head = pages[rows[:, None], at[:, None] + np.arange(8)].astype(np.int64)
    lengths = np.zeros(256, np.int64)
    lengths[list(HEADERS)] = list(HEADERS.values())
    length = lengths[head[:, 0]]
    begin = at + length + 2 * (256 * head[:, 3] + head[:, 4])
    end = 256 * head[:, 5] + head[:, 6]
    end[end == 0] = 65536
    chosen = (length > 0) & (begin < end) & (end <= size)
    return list(
        zip((starts + begin)[chosen].tolist(), (starts + end)[chosen].tolist(), strict=True)
    )
