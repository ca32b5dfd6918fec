"""Values of options: what is no number, or out of range, is refused before anything is loaded."""

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import device as Device

LARGEST = 2**31 - 1
LARGEST_SEED = 2**63 - 1


def whole(least: int = 1, most: int = LARGEST) -> Callable[[str], int]:
    """A whole number in [least, most]."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            wanted = f"of at least {least}" if most == LARGEST else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"give a whole number {wanted}; got {_short(text)}")
        return value

    return convert


def number(least: float = 0.0, most: float = math.inf, *, above: bool = False):
    """A finite number in [least, most]; with `above`, more than `least`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        is_enough = value > least if above else value >= least
        if not (is_enough and value <= most and math.isfinite(value)):
            wanted = f"above {least:g}" if above else f"of at least {least:g}"
            wanted += "" if most == math.inf else f" and at most {most:g}"
            raise argparse.ArgumentTypeError(f"give a number {wanted}; got {_short(text)}")
        return value

    return convert


def known_device(text: str) -> "Device":
    """A device that this machine has."""
    import torch

    try:
        found = torch.device(text)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{_short(text)} is no device: cpu, cuda, ...") from None
    accelerator = torch.accelerator.current_accelerator()
    names = ["cpu"]
    if accelerator is not None:
        count = torch.accelerator.device_count()
        names += [accelerator.type, *(f"{accelerator.type}:{i}" for i in range(count))]
    if str(found) not in names:
        there = ", ".join(names)
        raise argparse.ArgumentTypeError(f"torch finds no {text!r} here; there is: {there}")
    return found


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    from titans.errors import DataError
    from titans.files import parse_json

    try:
        value = parse_json(text, "the value")
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not an object like {{"topic": "dogs"}}')
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
