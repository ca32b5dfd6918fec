"""The memory's state and gates: the only data that flows between calls.

`MemoryState` holds everything that a later call needs to continue exactly, and its size never
changes. It is a value: no method alters it, each returns a new one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from titans.errors import StateError
from titans.ops.tree import TensorTree, map_tree, where_rows

Layer = Tensor | tuple[Tensor, Tensor]
"""One layer of a memory network: a weight `[heads, out, in]`, or (weight, bias `[heads, out]`)."""


def widened(tensor: Tensor) -> Tensor:
    """In at least float32: what adds up over thousands of tokens, and what is solved for."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class Gates(NamedTuple):
    """The three data-dependent gates of the update rule, one number per token and head."""

    forget_gate: Float[Tensor, "batch time heads *channels"]
    """alpha_t in [0, 1]: how much of the memory is forgotten before the write (eq. 13). Only
    `scan_delta` takes one number per channel of the key."""
    momentum_decay: Float[Tensor, "batch time heads"]
    """eta_t in [0, 1]: how much of the past surprise is kept (eq. 14)."""
    step_size: Float[Tensor, "batch time heads"]
    """theta_t >= 0: how strongly the present surprise is written (eq. 14)."""


class Surprise(NamedTuple):
    """How surprising each token was to the memory that met it."""

    loss: Float[Tensor, "batch time heads"]
    """The inner loss at the weights of the chunk's start. Differentiable. Zero where masked."""
    grad_norm: Float[Tensor, "batch time heads"]
    """The norm of the loss's gradient over all weights of the head that are written. A constant for
    autograd."""


class Trace(NamedTuple):
    """What a scan did with each token. All but `surprise.loss` are constants for autograd."""

    surprise: Surprise
    """How surprising the token was."""
    active: Bool[Tensor, "batch time heads"]
    """False: a full no-op (padding, masks, thresholds); nothing is written or forgotten."""
    written: Bool[Tensor, "batch time heads"]
    """True: the token's gradient was added. An active token that was too little surprising only
    forgets."""
    factor: Float[Tensor, "batch time heads"]
    """What thresholds, clipping and the stabiliser multiplied theta by; zero if not written."""

    def map(self, fn: Callable[[Tensor], Tensor]) -> "Trace":
        """Apply `fn` to every tensor."""
        return map_tree(fn, self)

    @classmethod
    def join(cls, parts: Sequence["Trace"]) -> "Trace":
        """One trace of several calls, one after the other in time."""
        return map_tree(lambda *same: torch.cat(same, dim=1), *parts)


@dataclass(frozen=True)
class MemoryState(TensorTree):
    """Weights, momentum and position of a memory, for every batch row and head.

    Tensors are listed layer by layer: a weight `[batch, heads, out, in]`, followed by its bias
    `[batch, heads, out]` if the layer has one.
    """

    FORMAT = "titans.memory_state"

    weights: tuple[Tensor, ...]
    """M_t: the memory itself, after the last token."""
    momentum: tuple[Tensor, ...]
    """S_t: past surprise."""
    chunk_weights: tuple[Tensor, ...]
    """M_c: the weights at the start of the open chunk, where gradients are taken."""
    initial_weights: tuple[Tensor, ...]
    """M_0: what forgetting returns to with `forget_towards="initial"`."""
    position: Int[Tensor, " batch"]
    """Tokens absorbed so far; chunks begin at its multiples of `chunk_size`."""

    @classmethod
    def initial(cls, layers: Sequence[Layer], batch: int) -> "MemoryState":
        """The state before the first token: weights M_0 from `layers`, no momentum.

        Args:
            layers: per layer a weight `[heads, out, in]` or a pair (weight, bias `[heads, out]`).
            batch: number of rows; each gets a memory of its own.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        return cls.from_parameters(_flatten_layers(layers), batch)

    @classmethod
    def from_parameters(cls, parameters: Sequence[Tensor], batch: int) -> "MemoryState":
        """Like `initial`, from the flat parameters of any memory network, each `[heads, ...]`.

        Parameters in half precision give a state in float32.
        """
        if not parameters:
            raise ValueError("a memory needs at least one layer, got none")
        weights = tuple(widened(p).expand(batch, *p.shape) for p in parameters)
        first = parameters[0]
        return cls(
            weights=weights,
            momentum=tuple(w.new_zeros(w.shape) for w in weights),
            chunk_weights=weights,
            initial_weights=weights,
            position=torch.zeros(batch, dtype=torch.long, device=first.device),
        )

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.position.shape[0]

    @property
    def num_heads(self) -> int:
        """Number of heads."""
        return self.weights[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type that the memory computes in."""
        return self.weights[0].dtype

    @property
    def device(self) -> torch.device:
        """Where the state lives."""
        return self.weights[0].device

    @property
    def lost(self) -> Bool[Tensor, " batch"]:
        """Rows that have read NaN or infinity (`ScanOptions.skip_nonfinite`); `reset` revives."""
        return torch.stack([~w.flatten(1).isfinite().all(1) for w in self.weights]).any(0)

    def reset(self, mask: Bool[Tensor, " batch"], layers: Sequence[Layer]) -> "MemoryState":
        """Start the rows in `mask` again from `layers`, and leave the others as they are."""
        return self.reset_parameters(mask, _flatten_layers(layers))

    def reset_parameters(
        self, mask: Bool[Tensor, " batch"], parameters: Sequence[Tensor]
    ) -> "MemoryState":
        """Like `reset`, from flat parameters, each `[heads, ...]`."""
        if mask.shape != (self.batch,):
            raise ValueError(f"mask must have shape ({self.batch},), got {tuple(mask.shape)}")
        fresh = MemoryState.from_parameters(parameters, self.batch)
        check_same_layout(self, fresh, "the weights given to reset")
        return where_rows(mask, fresh, self)

    def pass_by(self, time: int, chunk_size: int) -> "MemoryState":
        """The state after `time` tokens that write nothing and forget nothing."""
        crossed = self.position % chunk_size + time >= chunk_size
        return self.replace(
            chunk_weights=where_rows(crossed, self.weights, self.chunk_weights),
            position=self.position + time,
        )

    @classmethod
    def from_named_tensors(cls, named: Mapping[str, Tensor]) -> "MemoryState":
        """The inverse of `named_tensors`."""
        missing = [n for n in ("position", "weights.0") if n not in named]
        if missing:
            raise StateError(f"not a memory state: {', '.join(missing)} missing")
        return super().from_named_tensors(named)


def check_same_layout(state: MemoryState, other: MemoryState, what: str) -> None:
    """Raise `StateError` unless both have the same layers and heads (rows may differ)."""
    ours = [tuple(w.shape[1:]) for w in state.weights]
    theirs = [tuple(w.shape[1:]) for w in other.weights]
    if ours != theirs:
        raise StateError(
            f"the state holds a memory of layers {ours}, {what} has {theirs}: "
            "they belong to different configurations"
        )


def _flatten_layers(layers: Sequence[Layer]) -> list[Tensor]:
    flat: list[Tensor] = []
    for number, layer in enumerate(layers):
        weight, bias = layer if isinstance(layer, tuple) else (layer, None)
        if weight.ndim != 3:
            raise ValueError(
                f"layer {number}: a weight must be [heads, out, in], got {tuple(weight.shape)}"
            )
        flat.append(weight)
        if bias is not None:
            if bias.shape != weight.shape[:2]:
                raise ValueError(
                    f"layer {number}: a bias must be [heads, out] = {tuple(weight.shape[:2])}, "
                    f"got {tuple(bias.shape)}"
                )
            flat.append(bias)
    return flat
