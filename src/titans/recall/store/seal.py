"""Checksums: every row carries one over all its values, and it is checked when read.

A database notices a damaged page only if its structure breaks. A flipped bit inside a text, a
number or a vector would pass in silence; with the checksum it is an error that names the row.
"""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SEALED: dict[str, tuple[str, ...]] = {
    "records": (
        *("seq", "scope", "id", "text", "speaker", "time", "metadata", "surprise", "written"),
        *("reason", "duplicate_of", "successor_of", "expires", "importance", "pinned"),
        *("recalls", "marked"),
    ),
    "passages": ("id", "scope", "seq", "num_terms", "flags", "vectors"),
    "passage_tokens": ("passage", "vectors"),
    "neural_writes": ("seq", "scope", "vectors"),
    "snapshots": ("scope", "seq", "state"),
    "persistent_texts": ("scope", "position", "text"),
    "index_blocks": ("scope", "last_seq", "num_rows", "data"),
    "meta": ("key", "value"),
    "scopes": ("id", "name", "generation", "last_seq", "num_records", "marks"),
    "terms": ("id", "scope", "term", "num_passages"),
}
"""Tables whose rows end in a `checksum`, and the columns that it covers."""

POSTING = ("term", "passage", "count")
"""The columns of a posting. There are many, read thousands at once, so theirs is only a sum."""
_FACTORS = (0x1E3779B1, 0x05EBCA77, 0x42B2AE3D)  # odd: each flipped bit changes the sum
_MODULUS = 2**31
POSTING_SUM = (
    "("
    + " + ".join(f"{c} * {f}" for c, f in zip(POSTING, _FACTORS, strict=True))
    + f") % {_MODULUS}"
)
"""The checksum of a posting in SQL."""

Value = int | float | str | bytes | None


def seal(*values: Value) -> int:
    """The checksum (CRC-32) of the values of a row. Their types and lengths count as well."""
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(b"n0")
            continue
        if isinstance(value, str):
            kind, data = b"s", value.encode("utf-8", "surrogatepass")
        elif isinstance(value, bytes):
            kind, data = b"b", value
        elif isinstance(value, float):
            kind, data = b"f", struct.pack("<d", value)
        else:
            kind, data = b"i", b"%d" % value
        parts += (b"%b%d" % (kind, len(data)), data)
    return zlib.crc32(b"".join(parts))


def seal_posting(*values: int) -> int:
    """The checksum of a posting."""
    return sum(value * factor for value, factor in zip(values, _FACTORS, strict=True)) % _MODULUS


def is_sound(row: Sequence[Value]) -> bool:
    """Whether a row, its checksum last, is what was written."""
    return seal(*row[:-1]) == row[-1]


def are_sound(postings: NDArray[np.int64]) -> bool:
    """Whether postings, `[rows, (*POSTING, checksum)]`, are what was written."""
    found = (postings[:, :-1] @ np.array(_FACTORS, np.int64)) % _MODULUS
    return bool((found == postings[:, -1]).all())
