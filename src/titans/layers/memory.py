"""`NeuralMemory`: the long-term memory as a plain layer, `y, state = memory(x, state)`.

It owns what is learned in training (projections, gates, the memory's initial weights) and calls
`titans.ops` for what is learned at test time. It knows no model and no tokens: `x` may be
anything that comes as `[batch, time, dim]`. Paper: sections 3.1 and 4.4.
"""

from dataclasses import replace
from functools import partial
from typing import Literal, Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from titans import ops
from titans.errors import ConfigError, StateError
from titans.layers.gates import MemoryGates
from titans.layers.memory_config import DELTA_RULES, EXACT_RULES, MemoryConfig, MemorySettings
from titans.layers.memory_networks import LAYER_GAIN, NETWORKS, KeyProducts, mlp_parameters
from titans.layers.memory_state import MemoryTrace, NeuralMemoryState
from titans.layers.nonfinite import lose, without_nonfinite
from titans.layers.norm import RMSNorm, fixed_length
from titans.layers.rows import compact_if_needed, real_columns, scatter_back, take_columns
from titans.layers.short_conv import ShortConv, next_tail
from titans.ops import Gates, MemoryState, ScanOptions
from titans.ops.checks import check_not_empty
from titans.ops.delta import as_gated_delta, scan_delta
from titans.ops.generic import NetworkMemory
from titans.ops.least_squares import initial_known, scan_least_squares
from titans.ops.nonfinite import fill
from titans.ops.online import scan_online
from titans.ops.online_layers import scan_layers
from titans.ops.state import Trace, widened
from titans.ops.tree import where_rows
from titans.ops.writes import may_act
from titans.settings import check_keys

PIECE_TOKENS = 4096
"""Tokens, over all rows, that the layer works on at a time."""


class NeuralMemory(nn.Module):
    """A memory whose weights learn while it reads.

        NeuralMemory(64, num_heads=2, chunk_size=16)
        NeuralMemory(64, MemoryConfig(num_heads=2, chunk_size=16))      # the same

    Args:
        dim: width of the input and the output.
        config: every setting of the memory; the defaults if it is left out.
        module: a network of your own as the memory: any module that maps `[..., head_dim]` to
            `[..., value_dim]` (slower than an MLP; titans.layers.memory_networks has examples).
        settings: fields of `MemoryConfig`, in place of `config` or on top of it.
    """

    def __init__(
        self,
        dim: int,
        config: MemoryConfig | None = None,
        *,
        module: nn.Module | None = None,
        **settings: Unpack[MemorySettings],
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ConfigError(f"dim must be at least 1, got {dim}")
        check_keys(settings, MemorySettings.__annotations__)
        config = replace(config or MemoryConfig(), **settings)
        if module is not None:
            config.check_network(f"a {type(module).__name__}")
            config = replace(config, rule=config.rule or "chunk")
        self.dim = dim
        self.config = config = config.as_published().resolve(dim)
        self.num_heads, self.head_dim = int(config.num_heads or 0), int(config.head_dim or 0)
        self.value_dim, self.chunk_size = config.value_dim or self.head_dim, config.chunk_size
        self.value_length = config.value_norm
        if config.value_norm is not None and module is None:
            self.value_length = config.value_norm * 0.5 ** max(0, config.depth - 2)
        self._set_options()

        keys, _, values = self._widths
        self.query_proj = nn.Linear(dim, keys, bias=False)
        self.key_proj = nn.Linear(dim, keys, bias=False)
        self.value_proj = nn.Linear(dim, values, bias=False)
        if config.conv_size:
            own = None if config.key_lag is None else 0
            self.query_conv = ShortConv(keys, config.conv_size, own)
            self.key_conv = ShortConv(keys, config.conv_size, config.key_lag)
            self.value_conv = ShortConv(values, config.conv_size, own)
        if config.features is not None:
            self.key_products = KeyProducts(self.num_heads, self.head_dim, config.features)
        self.gates = MemoryGates(dim, config)
        self.output_norm = RMSNorm(self.value_dim)
        self.output_gate = nn.Linear(dim, values, bias=False)
        self.output_proj = nn.Linear(values, dim, bias=False)
        if module is None and config.network != "mlp":
            hidden = max(1, round(self.head_dim * config.expansion))
            module = NETWORKS[config.network](self.head_dim, hidden)
        self.network = None if module is None else NetworkMemory(module)
        self._set_initial_memory()

    def set_write_threshold(self, threshold: float | None) -> None:
        """Write only tokens whose step size reaches this; None: all (`write_threshold`)."""
        self.config = replace(self.config, write_threshold=threshold)
        self._set_options()

    def _set_options(self) -> None:
        self._reading_options = self.config.scan_options(training=False)
        self._training_options = self.config.scan_options(training=True)

    @property
    def options(self) -> ScanOptions:
        """What the scan is asked to do: in training, a write threshold may not hold."""
        return self._training_options if self.training else self._reading_options

    def _set_initial_memory(self) -> None:
        """M_0: parameters, or buffers if they are not to be learned."""
        init, bias = self.config.init, self.config.bias
        if self.network is not None:
            parameters = self.network.initial_parameters(self.num_heads)
        else:
            hidden = max(1, round(self.head_dim * self.config.expansion))
            first = self.config.features or self.head_dim
            widths = [first, *[hidden] * (self.config.depth - 1), self.value_dim]
            parameters = mlp_parameters(self.num_heads, widths, bias)
        if init == "zero_last":
            parameters[-2 if bias else -1].zero_()
        elif init == "zero_first":
            parameters[0].zero_()
            for weight in parameters[1:]:
                if weight.ndim == 3:
                    for head in weight:
                        nn.init.orthogonal_(head, gain=LAYER_GAIN)
        self._num_memory_parameters = len(parameters)
        for number, parameter in enumerate(parameters):
            if init in ("random", "zero_first"):
                self.register_buffer(f"memory_{number}", parameter)
            else:
                self.register_parameter(f"memory_{number}", nn.Parameter(parameter))
        if self.config.rule in DELTA_RULES:
            # The published rules start from zero and do not learn where to start.
            for weight in self.initial_memory:
                weight.requires_grad_(False)

    def _is_written(self, number: int) -> bool:
        """Whether reading changes a tensor of the memory."""
        if self.network is not None:
            return True
        per_layer = 2 if self.config.bias else 1
        return self.options.written_layers(self.config.depth)[number // per_layer]

    @property
    def written_numbers(self) -> int:
        """Numbers of the memory that reading changes, over all heads; momentum not counted."""
        tensors = enumerate(self.initial_memory)
        return sum(tensor.numel() for number, tensor in tensors if self._is_written(number))

    @property
    def initial_memory(self) -> list[Tensor]:
        """M_0, per tensor `[heads, ...]`."""
        return [getattr(self, f"memory_{i}") for i in range(self._num_memory_parameters)]

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Of queries, keys and values, over all heads."""
        inner = self.num_heads * self.head_dim
        return inner, inner, self.num_heads * self.value_dim

    def initial_state(self, batch: int) -> NeuralMemoryState:
        """The state before the first token of every row."""
        memory = MemoryState.from_parameters(self.initial_memory, batch)
        if self.config.rule == "least_squares":
            memory = initial_known(memory)
        past = max(self.config.conv_size - 1, 0)
        like = widened(self.query_proj.weight[:0])
        return NeuralMemoryState(
            memory,
            like.new_zeros(batch, past, sum(self._widths)),
            like.new_zeros(batch, past, self._widths[0]),
            self.gates.initial_past(batch, like),
        )

    def reset(self, state: NeuralMemoryState, rows: Bool[Tensor, " batch"]) -> NeuralMemoryState:
        """Start some rows again, and leave the others as they are."""
        return where_rows(rows, self.initial_state(state.batch), state)

    def forward(
        self,
        x: Float[Tensor, "batch time {self.dim}"],
        state: NeuralMemoryState | None = None,
        *,
        mask: Bool[Tensor, "batch time"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
        write_mask: Bool[Tensor, "batch time"] | None = None,
        return_trace: bool = False,
    ) -> (
        tuple[Float[Tensor, "batch time {self.dim}"], NeuralMemoryState]
        | tuple[Float[Tensor, "batch time {self.dim}"], NeuralMemoryState, MemoryTrace]
    ):
        """Write every token into the memory and read it back, causally.

        Args:
            state: where to continue; None starts from the initial memory. The state returned is
                part of the autograd graph: `state.detach()` ends the gradient there.
            mask: False marks padding, which changes nothing and gives zero.
            lengths: real tokens per row, instead of `mask` where padding comes last in every row.
            write_mask: False marks tokens that read but do not write.
            return_trace: also return what was done with each token: gates, surprise, written.
        """
        state = self._check(x, state, mask, lengths)
        x, mask, lost = without_nonfinite(x, mask, lengths, self.options.skip_nonfinite)
        order, lengths = compact_if_needed(mask, lengths, x.shape[1])
        if order is not None:
            write_mask = None if write_mask is None else take_columns(write_mask, order)
            x = take_columns(x, order)
        y, state, trace = self._run_pieces(x, state, lengths, write_mask, return_trace)
        if order is not None:
            y = scatter_back(y, order)
            trace = None if trace is None else trace.map(lambda t: scatter_back(t, order))
        if lost is not None:
            y, state, trace = lose(lost, y, state, trace)
        return (y, state) if trace is None else (y, state, trace)

    def read(
        self,
        x: Float[Tensor, "batch time {self.dim}"],
        state: NeuralMemoryState | None = None,
        *,
        mask: Bool[Tensor, "batch time"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch time {self.dim}"], NeuralMemoryState]:
        """Read at the present weights, and return what `forward` does.

        Nothing is written; of the state, only the read's own tail moves.
        """
        state = self._check(x, state, mask, lengths)
        if self.options.skip_nonfinite:
            x, mask, _ = without_nonfinite(x, mask, lengths, skip=True)
        order, lengths = compact_if_needed(mask, lengths, x.shape[1])
        x = x if order is None else take_columns(x, order)
        if lengths is not None:
            x = fill(x, ~real_columns(lengths, x.shape[1]), 0.0)  # NaN times zero is NaN
        raw = self.query_proj(x)
        out = self.recall(self._shape(raw, state.read_tail, "query"), state.memory)
        state = state.replace(read_tail=next_tail(raw, state.read_tail, lengths))
        y = self._output(out, x)
        if lengths is not None:
            y = y * real_columns(lengths, x.shape[1])[..., None].to(y.dtype)
        return (y if order is None else scatter_back(y, order)), state

    def recall(
        self, keys: Float[Tensor, "batch time heads keys"], memory: MemoryState
    ) -> Float[Tensor, "batch time heads dim"]:
        """M(keys) at the weights of `memory`: the bare memory, without projections or gate."""
        if self.network is not None:
            return self.network.read(keys, memory)
        return ops.read_memory(keys, memory, residual=self.options.residual)

    def associations(
        self, x: Float[Tensor, "batch time {self.dim}"], state: NeuralMemoryState
    ) -> tuple[Float[Tensor, "batch time heads keys"], Float[Tensor, "batch time heads dim"]]:
        """The keys and values that `forward` would write for `x` (no padding) after `state`."""
        _, key_tail, value_tail = state.conv_tail.split(self._widths, dim=-1)
        keys = self._shape(self.key_proj(x), key_tail, "key")
        return keys, self._shape(self.value_proj(x), value_tail, "value")

    def _run_pieces(
        self,
        x: Tensor,
        state: NeuralMemoryState,
        lengths: Tensor | None,
        write_mask: Tensor | None,
        want_trace: bool,
    ) -> tuple[Tensor, NeuralMemoryState, MemoryTrace | None]:
        """A long call in pieces of whole chunks, so that what it works on stays in the cache."""
        batch, time = x.shape[:2]
        size = max(PIECE_TOKENS // (batch * self.chunk_size), 1) * self.chunk_size
        # A graph for any length has no loop over it.
        if torch.compiler.is_compiling() or time <= size:
            return self._run(x, state, lengths, write_mask, want_trace)
        outputs: list[Tensor] = []
        traces: list[MemoryTrace] = []
        # Split, not sliced: a slice's derivative is as long as the whole input.
        for number, part in enumerate(x.split(size, dim=1)):
            begin = number * size
            left = None if lengths is None else (lengths - begin).clamp(0, size)
            writes = None if write_mask is None else write_mask[:, begin : begin + size]
            y, state, trace = self._run(part, state, left, writes, want_trace)
            outputs.append(y)
            if trace is not None:
                traces.append(trace)
        return torch.cat(outputs, dim=1), state, MemoryTrace.join(traces) if traces else None

    def _run(
        self,
        x: Tensor,
        state: NeuralMemoryState,
        lengths: Tensor | None,
        write_mask: Tensor | None,
        want_trace: bool,
    ) -> tuple[Tensor, NeuralMemoryState, MemoryTrace | None]:
        """Rows whose real tokens come first; `lengths` says how many (None: all)."""
        gates, gate_past = self.gates(x, state.position, state.gate_past, lengths)
        may_skip = lengths is None and not want_trace and not torch.is_grad_enabled()
        may_skip = may_skip and not torch.compiler.is_compiling()
        if may_skip and self._writes_nothing(gates, write_mask):
            y, state = self._pass_by(x, state)
            return y, state.replace(gate_past=gate_past), None
        raw = [self.query_proj(x), self.key_proj(x), self.value_proj(x)]
        tails = state.conv_tail.split(self._widths, dim=-1)
        names = ("query", "key", "value")
        queries, keys, values = (
            self._shape(r, t, n) for r, t, n in zip(raw, tails, names, strict=True)
        )
        mask = None if lengths is None else real_columns(lengths, x.shape[1])
        out, memory, done = self._scan(
            (queries, keys, values), gates, state.memory, mask, write_mask
        )
        conv_tail = torch.cat(
            [next_tail(r, t, lengths) for r, t in zip(raw, tails, strict=True)], dim=-1
        )
        y = self._output(out, x)
        if mask is not None:
            y = y * mask[..., None].to(y.dtype)
        state = NeuralMemoryState(memory, conv_tail, state.read_tail, gate_past)
        if self.config.rule == "kda":
            gates = gates._replace(forget_gate=gates.forget_gate.mean(-1))
        trace = MemoryTrace(gates, done.surprise, done.active, done.written)
        return y, state, trace if want_trace else None

    def _writes_nothing(self, gates: Gates, write_mask: Tensor | None) -> bool:
        """Whether every token of a call is a no-op, by its mask or by its step size."""
        acting = may_act(gates.step_size, self.options, write_mask=write_mask)
        return acting is not None and not bool(acting.any())

    def _pass_by(self, x: Tensor, state: NeuralMemoryState) -> tuple[Tensor, NeuralMemoryState]:
        """Read only: what `_run` comes to where nothing is written, without the scan."""
        tails = state.conv_tail.split(self._widths, dim=-1)
        raw = self.query_proj(x)
        out = self.recall(self._shape(raw, tails[0], "query"), state.memory)
        # Of keys and values, later calls need only what their convolutions look back on.
        last = x[:, max(x.shape[1] - tails[0].shape[1], 0) :]
        raws = (raw, self.key_proj(last), self.value_proj(last))
        tail = torch.cat([next_tail(r, t, None) for r, t in zip(raws, tails, strict=True)], dim=-1)
        memory = state.memory.pass_by(x.shape[1], self.chunk_size)
        return self._output(out, x), state.replace(memory=memory, conv_tail=tail)

    def _scan(
        self,
        tokens: tuple[Tensor, Tensor, Tensor],
        gates: Gates,
        memory: MemoryState,
        mask: Tensor | None,
        write_mask: Tensor | None,
    ) -> tuple[Tensor, MemoryState, Trace]:
        if self.network is not None:
            return self.network.scan(
                tokens[0],
                tokens[1],
                tokens[2],
                gates,
                memory,
                chunk_size=self.chunk_size,
                mask=mask,
                write_mask=write_mask,
                options=self.options,
            )
        if self.config.rule == "gated_delta":
            tokens, gates = as_gated_delta(tokens, gates)
        if self.config.rule in EXACT_RULES:
            scan = scan_online if self.config.rule == "online" else scan_least_squares
            if self.config.depth > 1:
                scan = partial(scan_layers, chunk_size=self.chunk_size)
            return scan(
                *tokens, gates, memory, mask=mask, write_mask=write_mask, options=self.options
            )
        queries, keys, values = tokens
        one_token = queries.shape[1] == 1 and not torch.is_grad_enabled()
        if one_token and self.config.rule != "kda":
            out, memory, trace = ops.step(
                queries[:, 0],
                keys[:, 0],
                values[:, 0],
                Gates(*(g[:, 0] for g in gates)),
                memory,
                chunk_size=self.chunk_size,
                mask=None if mask is None else mask[:, 0],
                write_mask=None if write_mask is None else write_mask[:, 0],
                options=self.options,
            )
            return out[:, None], memory, trace.map(lambda t: t[:, None])
        if self.config.rule in DELTA_RULES:
            return scan_delta(
                queries,
                keys,
                values,
                gates,
                memory,
                mask=mask,
                write_mask=write_mask,
                write_threshold=self.options.write_threshold,
            )
        return ops.scan_memory(
            queries,
            keys,
            values,
            gates,
            memory,
            chunk_size=self.chunk_size,
            mask=mask,
            write_mask=write_mask,
            options=self.options,
        )

    def _shape(self, raw: Tensor, tail: Tensor, name: Literal["query", "key", "value"]) -> Tensor:
        """Projection -> convolution -> SiLU -> heads -> L2 norm (-> products, of keys)."""
        if self.config.conv_size:
            raw = getattr(self, f"{name}_conv")(raw, tail)
        heads = nn.functional.silu(raw).unflatten(-1, (self.num_heads, -1))
        length = self.value_length if name == "value" else 1.0
        heads = heads if length is None else fixed_length(heads, length)
        return (
            heads if name == "value" or self.config.features is None else self.key_products(heads)
        )

    def _output(self, out: Tensor, x: Tensor) -> Tensor:
        """Norm -> gate -> projection (section 4.4)."""
        y = self.output_norm(out).flatten(-2).to(self.query_proj.weight.dtype)
        return self.output_proj(y * torch.sigmoid(self.output_gate(x)))

    def _check(
        self,
        x: Tensor,
        state: NeuralMemoryState | None,
        mask: Tensor | None,
        lengths: Tensor | None,
    ) -> NeuralMemoryState:
        if not isinstance(x, Tensor):
            raise ValueError(f"x must be a tensor, got {type(x).__name__}; use torch.as_tensor(x)")
        if x.ndim != 3 or x.shape[-1] != self.dim:
            hint = "; x[None] adds the batch" if x.ndim == 2 else ""
            raise ValueError(f"x must be [batch, time, {self.dim}], got {tuple(x.shape)}{hint}")
        check_not_empty(x)
        if mask is not None and lengths is not None:
            raise ValueError("give mask or lengths, not both: lengths is for padding at the end")
        if lengths is not None and lengths.shape != x.shape[:1]:
            raise ValueError(f"lengths must be [batch] = [{len(x)}], got {list(lengths.shape)}")
        if state is None:
            return self.initial_state(x.shape[0])
        ours = [tuple(p.shape) for p in self.initial_memory]
        theirs = [tuple(w.shape[1:]) for w in state.memory.weights]
        if ours != theirs:
            raise StateError(
                f"the state belongs to another configuration: its memory has tensors {theirs}, "
                f"this layer's {ours}"
            )
        if state.batch != x.shape[0]:
            raise StateError(
                f"the state has {state.batch} rows, the input {x.shape[0]}; use "
                "state.select(...) or memory.initial_state(batch)"
            )
        return state if self.options.written == "all" else self._with_own_weights(state)

    def _with_own_weights(self, state: NeuralMemoryState) -> NeuralMemoryState:
        """Layers that are not written, as they are now and not as when the state was made."""

        def renew(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            own = enumerate(zip(self.initial_memory, weights, strict=True))
            return tuple(
                w if self._is_written(i) else p.to(w.dtype).expand_as(w) for i, (p, w) in own
            )

        memory = state.memory
        memory = memory.replace(
            weights=renew(memory.weights),
            chunk_weights=renew(memory.chunk_weights),
            initial_weights=renew(memory.initial_weights),
        )
        return state.replace(memory=memory)

    def extra_repr(self) -> str:
        """Sizes, for `print(model)`."""
        return (
            f"{self.dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, "
            f"chunk_size={self.chunk_size}"
        )
