"""What the layer does with tokens that are NaN or infinite (`ScanOptions.skip_nonfinite`).

The scan contains what reaches it (titans.ops.nonfinite). Here the input is cleaned before the
projections, so that gradients by them stay finite where the loss leaves out what was lost.
"""

import torch
from torch import Tensor

from titans.layers.memory_state import MemoryTrace, NeuralMemoryState
from titans.layers.rows import real_columns
from titans.ops import Surprise
from titans.ops.derivatives import by_hand
from titans.ops.nonfinite import fill, is_finite


def without_nonfinite(
    x: Tensor, mask: Tensor | None, lengths: Tensor | None, skip: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The input, the mask, and which tokens are lost (`[batch time]`; None: none).

    Padding comes as `mask` or as `lengths`; a mask that is returned counts instead of both.
    """
    # Compiled code and transforms cannot branch on numbers: there the scan's own care is all.
    if not by_hand() or is_finite(x):
        return x, mask, None
    bad = ~x.detach().isfinite().all(-1)
    x = fill(x, bad, 0.0)
    real = mask if lengths is None else real_columns(lengths, x.shape[1])
    if skip:
        return x, ~bad if real is None else real & ~bad, None
    real = torch.ones_like(bad) if real is None else real
    return x, mask, ((bad & real).cumsum(1) > 0) & real


def lose(
    lost: Tensor, y: Tensor, state: NeuralMemoryState, trace: MemoryTrace | None
) -> tuple[Tensor, NeuralMemoryState, MemoryTrace | None]:
    """What a call returns, NaN where rows are lost."""
    nan, rows = float("nan"), lost.any(1)
    if trace is not None:
        trace = trace._replace(surprise=Surprise(*(fill(s, lost, nan) for s in trace.surprise)))
    state = state.map(lambda t: fill(t, rows, nan) if t.is_floating_point() else t)
    return fill(y, lost, nan), state, trace
