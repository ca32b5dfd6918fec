"""The memory of one layer, by update rule: Titans', or a published rule as a baseline.

    delta        M_t = M_{t-1} - beta_t (M_{t-1} k - v) k^T                          DeltaNet
    gated_delta  M_t = a_t M_{t-1} - beta_t (a_t M_{t-1} k - v) k^T, a = 1 - alpha   Gated DeltaNet
    ttt          gradient steps on a deep memory, no momentum, no forgetting         TTT (no norm)

The baselines run through the same layer (projections, convolutions, gate, output) without the
stabiliser; delta and gated_delta are exact online rules of a matrix that starts at zero.
"""

from torch import Tensor

from titans.layers.gates import GateSettings
from titans.layers.memory import NeuralMemory
from titans.layers.memory_networks import MLP
from titans.layers.memory_parts import Parts
from titans.models.config import TitansConfig
from titans.ops import Gates, MemoryState, ScanOptions, Surprise
from titans.ops.delta import scan_delta

SMALLEST_DECAY = 1e-6
"""1 - alpha is kept above this where it divides."""


class DeltaMemory(NeuralMemory):
    """One matrix and the exact online rule, a block of tokens at a time."""

    def _scan(
        self,
        tokens: tuple[Tensor, Tensor, Tensor],
        gates: Gates,
        memory: MemoryState,
        mask: Tensor | None,
        write_mask: Tensor | None,
        want_surprise: bool,
    ) -> tuple[Tensor, MemoryState, Surprise | None]:
        tokens, gates = self._as_ours(tokens, gates)
        if tokens[0].shape[1] == 1:
            return super()._scan(tokens, gates, memory, mask, write_mask, want_surprise)
        out, memory, trace = scan_delta(
            *tokens,
            gates,
            memory,
            mask=mask,
            write_mask=write_mask,
            write_threshold=self.options.write_threshold,
        )
        return out, memory, trace.surprise if want_surprise else None

    def _as_ours(
        self, tokens: tuple[Tensor, Tensor, Tensor], gates: Gates
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Gates]:
        """Tokens and gates with which our rule is the published one."""
        return tokens, gates


class GatedDeltaMemory(DeltaMemory):
    """Takes the error at the decayed memory, as Gated DeltaNet does; ours takes it before decay.

    With 2 theta = beta (1 - alpha) and v / (1 - alpha) in place of v, both are the same.
    """

    def _as_ours(
        self, tokens: tuple[Tensor, Tensor, Tensor], gates: Gates
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Gates]:
        queries, keys, values = tokens
        decay = (1 - gates.forget_gate).clamp_min(SMALLEST_DECAY)
        gates = gates._replace(step_size=gates.step_size * decay)
        return (queries, keys, values / decay[..., None].to(values.dtype)), gates


def build_memory(config: TitansConfig) -> NeuralMemory:
    """The memory of one layer."""
    if config.memory_rule == "titans":
        return _titans(config)
    if config.memory_rule == "ttt":
        return _ttt(config)
    return _delta(config, is_gated=config.memory_rule == "gated_delta")


def _parts(config: TitansConfig, value_norm: float | None) -> Parts:
    return Parts(
        conv_size=config.memory_conv_kernel,
        key_lag=config.memory_key_lag,
        value_norm=value_norm,
    )


def _titans(config: TitansConfig) -> NeuralMemory:
    is_associative = config.write_gate == "associative"
    return NeuralMemory(
        config.hidden_size,
        num_heads=int(config.memory_num_heads or 0),
        head_dim=config.memory_head_dim,
        value_dim=config.memory_value_dim,
        memory=MLP(depth=config.memory_depth, expansion=config.memory_expansion),
        chunk_size=config.chunk_size,
        gates=GateSettings(
            kind=config.memory_gates,  # type: ignore[arg-type]
            step_init=config.memory_step_init,
            step_max=config.memory_step_max,
            forget_init=config.memory_forget_init,
            momentum_init=config.memory_momentum_init,
            use_forgetting=config.memory_forgetting,
            use_momentum=config.memory_momentum,
            conv_size=config.memory_gate_kernel,
        ),
        parts=_parts(config, config.memory_value_norm),
        init=config.memory_init,  # type: ignore[arg-type]
        options=ScanOptions(
            written=config.memory_written,  # type: ignore[arg-type]
            forget_towards=config.forget_towards,  # type: ignore[arg-type]
            step_limit=config.step_limit,
            gradient=config.memory_gradient,  # type: ignore[arg-type]
            surprise_threshold=config.surprise_threshold if is_associative else None,
            surprise_measure=config.surprise_measure,  # type: ignore[arg-type]
            skip_unsurprising=is_associative,
        ),
    )


def _ttt(config: TitansConfig) -> NeuralMemory:
    return NeuralMemory(
        config.hidden_size,
        num_heads=int(config.memory_num_heads or 0),
        head_dim=config.memory_head_dim,
        value_dim=config.memory_value_dim,
        memory=MLP(depth=config.memory_depth, expansion=config.memory_expansion),
        chunk_size=config.chunk_size,
        # The published rate of TTT-MLP: 0.1 times a sigmoid.
        gates=GateSettings(
            step_init=0.05,
            step_max=0.1,
            use_forgetting=False,
            use_momentum=False,
            conv_size=config.memory_gate_kernel,
        ),
        parts=_parts(config, None),
        options=ScanOptions(),
    )


def _delta(config: TitansConfig, *, is_gated: bool) -> NeuralMemory:
    kind = GatedDeltaMemory if is_gated else DeltaMemory
    memory = kind(
        config.hidden_size,
        num_heads=int(config.memory_num_heads or 0),
        head_dim=config.memory_head_dim,
        value_dim=config.memory_value_dim,
        memory=MLP(depth=1),
        chunk_size=1,
        # beta = 2 theta is a sigmoid: in (0, 1).
        gates=GateSettings(
            step_init=0.25,
            step_max=0.5,
            use_forgetting=is_gated,
            use_momentum=False,
            conv_size=config.memory_gate_kernel,
        ),
        parts=_parts(config, None),
        init="zero_last",
        options=ScanOptions(),
    )
    # The published rules start from zero and do not learn where to start.
    for weight in memory.initial_memory:
        weight.requires_grad_(False)
    return memory
