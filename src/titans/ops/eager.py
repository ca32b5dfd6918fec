"""Keep a function out of `torch.compile`, whose typing would hide its signature."""

from collections.abc import Callable
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., object])


def eager(function: Function) -> Function:
    """Run `function` as it is inside a compiled model: its own loop is compiled, if at all, by
    `ScanOptions.compiled`."""
    return torch.compiler.disable(function)  # type: ignore[return-value]
