"""What the token mixers of all variants share: a memory, its mode, and a state to carry on."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from titans.layers.attention import Attention, KeyValues
from titans.layers.memory import NeuralMemory
from titans.layers.memory_state import MemoryTrace, NeuralMemoryState
from titans.layers.norm import RMSNorm
from titans.layers.persistent import PersistentMemory
from titans.layers.rows import Rows
from titans.models.cache import BlockState
from titans.models.config import TitansConfig
from titans.models.report import MemoryReport

MemoryMode = Literal["live", "frozen", "off"]
"""live: reads and writes; frozen: reads, never writes; off: left out of the computation."""


class Mixed(NamedTuple):
    """What a mixer returns."""

    out: Float[Tensor, "batch time dim"]
    state: BlockState
    report: MemoryReport | None
    """None where the layer has no memory, or it is off, or nobody wants a report."""


class Mixer(nn.Module, ABC):
    """Base of the token mixers: `out, state, report = mixer(x, state, rows, write_mask)`.

    x is the block's normalised input; the residual is the block's business.
    """

    def __init__(self, config: TitansConfig, has_memory: bool = True) -> None:
        super().__init__()
        self.memory: NeuralMemory | None = None
        self.memory_mode: MemoryMode = "live"
        self.reports = True

    @abstractmethod
    def initial_state(self, batch: int) -> BlockState:
        """The state before the first token."""

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "batch time dim"],
        state: BlockState,
        rows: Rows,
        write_mask: Bool[Tensor, "batch time"] | None = None,
    ) -> Mixed:
        """Mix tokens; `write_mask` is False where the memory must not be written."""


def build_attention(config: TitansConfig) -> Attention:
    """The attention of MAC, MAG and the baselines."""
    return Attention(
        config.hidden_size,
        config.num_attention_heads,
        rope_theta=config.rope_theta,
        init_std=config.initializer_range,
    )


def empty_slots(attention: Attention, batch: int, size: int) -> KeyValues:
    """Room for `size` keys and values of each row."""
    weight = attention.k_proj.weight
    shape = (batch, size, attention.num_heads, attention.head_dim)
    return KeyValues(weight.new_zeros(shape), weight.new_zeros(shape))


def remember(
    mixer: Mixer,
    x: Float[Tensor, "batch time dim"],
    state: BlockState,
    rows: Rows,
    write_mask: Bool[Tensor, "batch time"] | None,
) -> tuple[Float[Tensor, "batch time dim"], BlockState, MemoryReport | None]:
    """Write x into the mixer's memory (unless it is frozen) and read it, causally."""
    memory, before = mixer.memory, state.memory
    assert memory is not None and before is not None
    if mixer.memory_mode == "frozen":
        write_mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    if not (mixer.reports or mixer.training):
        y, after = memory(x, before, lengths=rows.lengths, write_mask=write_mask)
        return y, replace(state, memory=after), None
    y, after, trace = memory(
        x, before, lengths=rows.lengths, write_mask=write_mask, return_trace=True
    )
    return y, replace(state, memory=after), _report(trace, rows.mask)


def _report(trace: MemoryTrace, mask: Tensor | None) -> MemoryReport:
    """What the memory did, summed over real tokens and heads."""
    gates, surprise, _, written = trace
    with torch.no_grad():
        real = torch.ones_like(written) if mask is None else mask[..., None].expand_as(written)
        parts = (surprise.grad_norm, gates.forget_gate, gates.momentum_decay, written)
        norm, alpha, eta, num_written = ((part * real).sum() for part in parts)
    return MemoryReport(
        loss=(surprise.loss * real).sum(),
        grad_norm=norm,
        forget_gate=alpha,
        momentum_decay=eta,
        step_size=(gates.step_size * real).sum(),
        written=num_written,
        count=real.sum(),
    )


def write_prefix(
    memory: NeuralMemory, persistent: PersistentMemory | None, batch: int
) -> tuple[Float[Tensor, "batch vectors dim"] | None, NeuralMemoryState]:
    """A memory that has read the persistent vectors, at the start of a stream, and its answers."""
    if persistent is None:
        return None, memory.initial_state(batch)
    # The same for every row: computed once.
    answers, state = memory(persistent(1), memory.initial_state(1))
    return (
        answers.expand(batch, -1, -1),
        state.map(lambda tensor: tensor.expand(batch, *tensor.shape[1:])),
    )


def gate_with_memory(
    y: Float[Tensor, "batch time dim"],
    m: Float[Tensor, "batch time dim"] | None,
    y_norm: RMSNorm,
    m_norm: RMSNorm,
) -> Float[Tensor, "batch time dim"]:
    """`norm(y) * sigmoid(norm(m))`; a memory that is off counts as one that answers zero."""
    gate = 0.5 if m is None else torch.sigmoid(m_norm(m))
    return y_norm(y) * gate


def build_convex_gate(config: TitansConfig) -> nn.Linear:
    """The projection behind g in `mix_with_memory`; it starts at g = 1/2."""
    proj = nn.Linear(2 * config.hidden_size, config.hidden_size)
    nn.init.normal_(proj.weight, std=config.initializer_range)
    nn.init.zeros_(proj.bias)
    return proj


def mix_with_memory(
    x: Float[Tensor, "batch time dim"],
    a: Float[Tensor, "batch time dim"],
    m: Float[Tensor, "batch time dim"] | None,
    gate_proj: nn.Linear,
) -> Float[Tensor, "batch time dim"]:
    """`g a + (1 - g) m`, g from x and m; attention alone where the memory is off."""
    if m is None:
        return a
    g = torch.sigmoid(gate_proj(torch.cat((x, m), dim=-1)))
    return g * a + (1 - g) * m
