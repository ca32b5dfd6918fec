"""Lengths as people write them: 2k = 2,048 tokens, 1M = 1,048,576."""

import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}


def parse_length(text: str) -> int:
    """`512`, `2k`, `16K` or `2M` as a number of tokens."""
    match = re.fullmatch(r"\s*(\d+)\s*([kKmM]?)\s*", text)
    if match is None:
        raise ValueError(f"a length is written 512, 2k, 16K or 2M; got {text!r}")
    return int(match[1]) * _UNITS[match[2].lower()]


def parse_lengths(text: str) -> tuple[int, ...]:
    """Lengths with commas between them."""
    return tuple(parse_length(part) for part in text.split(","))


def format_length(length: int) -> str:
    """The shortest way to write a length exactly."""
    for unit in ("m", "k"):
        if length and length % _UNITS[unit] == 0:
            return f"{length // _UNITS[unit]}{unit.upper()}"
    return str(length)
