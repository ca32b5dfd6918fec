"""The memory's weights at one moment, in a few numbers."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from titans.analysis.records import FloatArray, IntArray, Life
from titans.ops import MemoryState


class Moment(NamedTuple):
    """One row of `Life`, `[heads]` and `[heads matrices]`."""

    weight_norm: FloatArray
    drift: FloatArray
    momentum_norm: FloatArray
    effective_rank: FloatArray
    drift_rank: FloatArray


def measure(state: MemoryState) -> Moment:
    """Norms and ranks of the memory of the first row."""
    weights = [w[0] for w in state.weights]
    drift = [w - w0[0] for w, w0 in zip(weights, state.initial_weights, strict=True)]
    matrices = [n for n, w in enumerate(weights) if w.ndim == 3]
    return Moment(
        _norm(weights),
        _norm(drift),
        _norm([s[0] for s in state.momentum]),
        _ranks([weights[n] for n in matrices], state.num_heads),
        _ranks([drift[n] for n in matrices], state.num_heads),
    )


def effective_rank(matrix: Tensor) -> Tensor:
    """exp of the entropy of the singular values as shares of their sum; 0 for a zero matrix.

    n equal singular values count n. Roy and Vetterli, EUSIPCO 2007. NaN for a memory that has
    diverged.
    """
    finite = matrix.isfinite().flatten(-2).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], matrix.double(), 0.0))
    total = values.sum(-1, keepdim=True)
    shares = values / total.clamp_min(torch.finfo(values.dtype).tiny)
    entropy = torch.special.entr(shares).sum(-1)
    rank = torch.where(total[..., 0] > 0, entropy.exp(), torch.zeros_like(entropy))
    return torch.where(finite, rank, torch.nan)


def life(positions: list[int], moments: list[Moment]) -> Life:
    """Moments in order as one record."""
    columns = [np.stack(column) for column in zip(*moments, strict=True)]
    return Life(
        positions=_integers(positions),
        weight_norm=columns[0],
        drift=columns[1],
        momentum_norm=columns[2],
        effective_rank=columns[3],
        drift_rank=columns[4],
    )


def _integers(values: list[int]) -> IntArray:
    return np.asarray(values, dtype=np.int64)


def _ranks(matrices: list[Tensor], num_heads: int) -> FloatArray:
    if not matrices:
        return np.zeros((num_heads, 0), dtype=np.float32)
    return _array(torch.stack([effective_rank(matrix) for matrix in matrices], dim=-1))


def _norm(tensors: list[Tensor]) -> FloatArray:
    squared = [t.double().flatten(1).square().sum(1) for t in tensors]
    return _array(torch.stack(squared).sum(0).sqrt())


def _array(tensor: Tensor) -> FloatArray:
    return tensor.detach().float().cpu().numpy()
