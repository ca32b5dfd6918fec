"""`NeuralMemory`: the long-term memory as a plain layer, `y, state = memory(x, state)`.

It owns what is learned in training (projections, gates, the memory's initial weights) and calls
`titans.ops` for what is learned at test time. It knows no model and no tokens: `x` may be
anything that comes as `[batch, time, dim]`. Paper: sections 3.1 and 4.4.
"""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from titans import ops
from titans.errors import StateError
from titans.layers.gates import GateSettings, MemoryGates
from titans.layers.memory_init import MEMORY_INITS, MemoryInit, default_init, passes_no_error
from titans.layers.memory_networks import LAYER_GAIN, MLP
from titans.layers.memory_parts import Parts
from titans.layers.memory_state import NeuralMemoryState
from titans.layers.nonfinite import lose, without_nonfinite
from titans.layers.norm import RMSNorm, fixed_length
from titans.layers.rows import compact, scatter_back, take_columns
from titans.layers.short_conv import ShortConv, next_tail
from titans.ops import Gates, MemoryState, ScanOptions, Surprise
from titans.ops.generic import NetworkMemory
from titans.ops.state import widened
from titans.ops.writes import may_act

STABLE = ScanOptions(forget_towards="initial", step_limit=1.0)
"""The layer's default: stable at every chunk size (docs/decisions/0003-stabiliser.md) and never
dead (docs/decisions/0004-forgetting.md). `ScanOptions()` is the paper's bare recurrence."""

PIECE_TOKENS = 4096
"""Tokens, over all rows, that the layer works on at a time."""


class NeuralMemory(nn.Module):
    """A memory whose weights learn while it reads.

    Args:
        dim: width of the input and the output.
        num_heads: memories side by side, each with its own weights and gates.
        head_dim: width of a head; `dim // num_heads` by default.
        value_dim: width of a head's values; `head_dim` by default, which then is the keys' alone.
        memory: the network that is written: an `MLP`, or any module that maps
            `[..., head_dim]` to `[..., value_dim]` (slower; titans.layers.memory_networks).
        chunk_size: tokens whose gradients are taken at the same weights; 1 is the exact
            online rule, larger is faster.
        gates: how forgetting, momentum and step size are made.
        parts: which of the paper's parts are used.
        init: initial weights of the memory: learned; random and fixed; learned with a last layer
            of zeros (zero_last); or fixed with a first layer of zeros and orthogonal ones behind it
            (zero_first), so that writes go into the first, nearly as into a matrix. With either
            of these an empty memory reads zero. What is fixed stays as it starts also where it is
            not written (`options.written`). By default learned, and random for an `MLP` of
            three layers or more (docs/decisions/0003-stabiliser.md).
        options: what the scan does beyond the plain recurrence.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int = 4,
        head_dim: int | None = None,
        value_dim: int | None = None,
        memory: MLP | nn.Module = MLP(),  # noqa: B008 (frozen)
        chunk_size: int = 64,
        gates: GateSettings = GateSettings(),  # noqa: B008 (frozen)
        parts: Parts = Parts(),  # noqa: B008 (frozen)
        init: MemoryInit | None = None,
        options: ScanOptions = STABLE,
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim < 1:
            raise ValueError(f"dim and num_heads must be at least 1, got {dim} and {num_heads}")
        if head_dim is None:
            if dim % num_heads:
                raise ValueError(f"dim {dim} does not divide into {num_heads} heads; give head_dim")
            head_dim = dim // num_heads
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        depth = memory.depth if isinstance(memory, MLP) else 0
        if init is None:
            init = default_init(depth)
        if init not in MEMORY_INITS:
            raise ValueError(f"init must be one of {', '.join(MEMORY_INITS)}; got {init!r}")
        if init == "zero_first" and depth < 2:
            raise ValueError("init='zero_first' needs an MLP of two layers or more")
        if options.written != "all" and depth == 0:
            raise ValueError(f"written={options.written!r} needs an MLP; use written='all'")
        if passes_no_error(options.written, init, depth):
            raise ValueError(
                f"nothing could ever be written: with init={init!r} no error reaches the "
                f"{options.written} layer; choose another init"
            )
        value_dim = head_dim if value_dim is None else value_dim
        if head_dim < 1 or value_dim < 1:
            raise ValueError(
                f"head_dim and value_dim must be at least 1, got {head_dim} and {value_dim}"
            )
        inner, value_inner = num_heads * head_dim, num_heads * value_dim
        if not parts.output_proj and value_inner != dim:
            raise ValueError(
                f"without output_proj, num_heads * value_dim ({value_inner}) must equal dim ({dim})"
            )
        self.dim, self.num_heads = dim, num_heads
        self.head_dim, self.value_dim = head_dim, value_dim
        self.chunk_size, self.parts = chunk_size, parts
        length = parts.value_norm
        self.value_length = None if length is None else length * 0.5 ** max(0, depth - 2)

        self.query_proj = nn.Linear(dim, inner, bias=parts.bias)
        self.key_proj = nn.Linear(dim, inner, bias=parts.bias)
        self.value_proj = nn.Linear(dim, value_inner, bias=parts.bias)
        if parts.conv_size:
            own = None if parts.key_lag is None else 0
            self.query_conv = ShortConv(inner, parts.conv_size, own)
            self.key_conv = ShortConv(inner, parts.conv_size, parts.key_lag)
            self.value_conv = ShortConv(value_inner, parts.conv_size, own)
        self.gates = MemoryGates(dim, num_heads, chunk_size, gates)
        if parts.output_norm:
            self.output_norm = RMSNorm(value_dim)
        if parts.output_gate:
            self.output_gate = nn.Linear(dim, value_inner, bias=False)
        if parts.output_proj:
            self.output_proj = nn.Linear(value_inner, dim, bias=False)
        self.network = None if isinstance(memory, MLP) else NetworkMemory(memory)
        self._has_bias = isinstance(memory, MLP) and memory.bias
        if isinstance(memory, MLP) and memory.residual:
            if head_dim != value_dim:
                raise ValueError(
                    f"a residual memory adds the key to the value: head_dim ({head_dim}) and "
                    f"value_dim ({value_dim}) must be equal"
                )
            options = replace(options, residual=True)
        self.options = replace(options, momentum=options.momentum and gates.use_momentum)
        self._set_initial_memory(memory, init)

    def _set_initial_memory(self, memory: MLP | nn.Module, init: MemoryInit) -> None:
        """M_0: parameters, or buffers if they are not to be learned."""
        if isinstance(memory, MLP):
            parameters = memory.initial_parameters(self.num_heads, self.head_dim, self.value_dim)
            last = len(parameters) - (2 if memory.bias else 1)
        else:
            assert self.network is not None
            parameters = self.network.initial_parameters(self.num_heads)
            last = len(parameters) - 1
        if init == "zero_last":
            parameters[last].zero_()
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

    def _is_written(self, number: int) -> bool:
        """Whether reading changes a tensor of the memory."""
        if self.network is not None:
            return True
        per_layer = 2 if self._has_bias else 1
        depth = self._num_memory_parameters // per_layer
        return self.options.written_layers(depth)[number // per_layer]

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
        past = max(self.parts.conv_size - 1, 0)
        like = widened(self.query_proj.weight[:0])
        return NeuralMemoryState(
            memory,
            like.new_zeros(batch, past, sum(self._widths)),
            like.new_zeros(batch, past, self._widths[0]),
            self.gates.initial_past(batch, like),
        )

    def reset(self, state: NeuralMemoryState, rows: Bool[Tensor, " batch"]) -> NeuralMemoryState:
        """Start some rows anew, and leave the others as they are."""
        fresh = self.initial_state(state.batch).named_tensors()
        chosen = {
            name: torch.where(rows.view(-1, *[1] * (t.ndim - 1)), fresh[name], t)
            for name, t in state.named_tensors().items()
        }
        return NeuralMemoryState.from_named_tensors(chosen)

    def forward(
        self,
        x: Float[Tensor, "batch time {self.dim}"],
        state: NeuralMemoryState | None = None,
        *,
        mask: Bool[Tensor, "batch time"] | None = None,
        write_mask: Bool[Tensor, "batch time"] | None = None,
        return_surprise: bool = False,
    ) -> (
        tuple[Float[Tensor, "batch time {self.dim}"], NeuralMemoryState]
        | tuple[Float[Tensor, "batch time {self.dim}"], NeuralMemoryState, Surprise]
    ):
        """Write every token into the memory and read it back, causally.

        Args:
            state: where to continue; None starts from the initial memory.
            mask: False marks padding, which changes nothing and gives zero.
            write_mask: False marks tokens that read but do not write.
            return_surprise: also return each token's loss and gradient norm per head.
        """
        state = self._check(x, state)
        x, mask, lost = without_nonfinite(x, mask, self.options.skip_nonfinite)
        if mask is None or bool(mask.all()):
            y, state, surprise = self._run_pieces(x, state, None, write_mask, return_surprise)
        else:
            order, count = compact(mask)
            writes = None if write_mask is None else take_columns(write_mask, order)
            x = take_columns(x, order)
            y, state, surprise = self._run_pieces(x, state, count, writes, return_surprise)
            y = scatter_back(y, order)
            if surprise is not None:
                surprise = Surprise(*(scatter_back(s, order) for s in surprise))
        if lost is not None:
            y, state, surprise = lose(lost, y, state, surprise)
        return (y, state) if surprise is None else (y, state, surprise)

    def write(
        self,
        x: Float[Tensor, "batch time {self.dim}"],
        state: NeuralMemoryState | None = None,
        *,
        mask: Bool[Tensor, "batch time"] | None = None,
    ) -> NeuralMemoryState:
        """Write without reading: the state that `forward` would return."""
        return self(x, state, mask=mask)[1]

    def read(
        self,
        x: Float[Tensor, "batch time {self.dim}"],
        state: NeuralMemoryState,
        *,
        mask: Bool[Tensor, "batch time"] | None = None,
    ) -> tuple[Float[Tensor, "batch time {self.dim}"], NeuralMemoryState]:
        """Read at the present weights. Nothing is written; only the read's own tail moves."""
        state = self._check(x, state)
        if mask is not None and not bool(mask.all()):
            order, count = compact(mask)
            y, state = self._read(take_columns(x, order), state, count)
            return scatter_back(y * _real(count, x.shape[1], y), order), state
        return self._read(x, state, None)

    def _read(
        self, x: Tensor, state: NeuralMemoryState, count: Tensor | None
    ) -> tuple[Tensor, NeuralMemoryState]:
        raw = self.query_proj(x)
        out = self.recall(self._shape(raw, state.read_tail, "query"), state.memory)
        state = state.replace(read_tail=next_tail(raw, state.read_tail, count))
        return self._output(out, x), state

    def recall(
        self, keys: Float[Tensor, "batch time heads dim"], memory: MemoryState
    ) -> Float[Tensor, "batch time heads dim"]:
        """M(keys) at the weights of `memory`: the bare memory, without projections or gate."""
        if self.network is not None:
            return self.network.read(keys, memory)
        return ops.read_memory(keys, memory, residual=self.options.residual)

    def associations(
        self, x: Float[Tensor, "batch time {self.dim}"], state: NeuralMemoryState
    ) -> tuple[Float[Tensor, "batch time heads dim"], Float[Tensor, "batch time heads dim"]]:
        """The keys and values that `forward` would write for `x` (no padding) after `state`."""
        _, key_tail, value_tail = state.conv_tail.split(self._widths, dim=-1)
        keys = self._shape(self.key_proj(x), key_tail, "key")
        return keys, self._shape(self.value_proj(x), value_tail, "value")

    def _run_pieces(
        self,
        x: Tensor,
        state: NeuralMemoryState,
        count: Tensor | None,
        write_mask: Tensor | None,
        want_surprise: bool,
    ) -> tuple[Tensor, NeuralMemoryState, Surprise | None]:
        """A long call in pieces of whole chunks, so that what it works on stays in the cache."""
        batch, time = x.shape[:2]
        size = max(PIECE_TOKENS // (batch * self.chunk_size), 1) * self.chunk_size
        if time <= size:
            return self._run(x, state, count, write_mask, want_surprise)
        outputs, surprises = [], []
        # Split, not sliced: a slice's derivative is as long as the whole input.
        for number, part in enumerate(x.split(size, dim=1)):
            begin = number * size
            left = None if count is None else (count - begin).clamp(0, size)
            writes = None if write_mask is None else write_mask[:, begin : begin + size]
            y, state, surprise = self._run(part, state, left, writes, want_surprise)
            outputs.append(y)
            surprises.append(surprise)
        together = None
        if want_surprise:
            together = Surprise(
                *(torch.cat(parts, dim=1) for parts in zip(*surprises, strict=True))  # type: ignore[arg-type]
            )
        return torch.cat(outputs, dim=1), state, together

    def _run(
        self,
        x: Tensor,
        state: NeuralMemoryState,
        count: Tensor | None,
        write_mask: Tensor | None,
        want_surprise: bool,
    ) -> tuple[Tensor, NeuralMemoryState, Surprise | None]:
        """Rows whose real tokens come first; `count` says how many (None: all)."""
        gates, gate_past = self.gates(x, state.position, state.gate_past, count)
        may_skip = count is None and not want_surprise and not torch.is_grad_enabled()
        if may_skip and self._writes_nothing(gates, write_mask):
            y, state = self._pass_by(x, state)
            return y, state.replace(gate_past=gate_past), None
        raw = [self.query_proj(x), self.key_proj(x), self.value_proj(x)]
        tails = state.conv_tail.split(self._widths, dim=-1)
        names = ("query", "key", "value")
        queries, keys, values = (
            self._shape(r, t, n) for r, t, n in zip(raw, tails, names, strict=True)
        )
        mask = None if count is None else _real(count, x.shape[1], x)[..., 0].bool()
        out, memory, surprise = self._scan(
            (queries, keys, values), gates, state.memory, mask, write_mask, want_surprise
        )
        conv_tail = torch.cat(
            [next_tail(r, t, count) for r, t in zip(raw, tails, strict=True)], dim=-1
        )
        y = self._output(out, x)
        if count is not None:
            y = y * _real(count, x.shape[1], y)
        return y, NeuralMemoryState(memory, conv_tail, state.read_tail, gate_past), surprise

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
        want_surprise: bool,
    ) -> tuple[Tensor, MemoryState, Surprise | None]:
        if self.network is not None:
            out, memory, trace = self.network.scan(
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
            return out, memory, trace.surprise if want_surprise else None
        queries, keys, values = tokens
        if queries.shape[1] == 1 and not torch.is_grad_enabled():
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
            timed = Surprise(*(s[:, None] for s in trace.surprise))
            return out[:, None], memory, timed if want_surprise else None
        out, memory, trace = ops.scan_memory(
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
        return out, memory, trace.surprise if want_surprise else None

    def _shape(self, raw: Tensor, tail: Tensor, name: Literal["query", "key", "value"]) -> Tensor:
        """Projection -> convolution -> SiLU -> heads -> L2 norm."""
        if self.parts.conv_size:
            raw = getattr(self, f"{name}_conv")(raw, tail)
        if self.parts.activation:
            raw = nn.functional.silu(raw)
        heads = raw.unflatten(-1, (self.num_heads, -1))
        if name == "value":
            length = self.value_length
            return heads if length is None else fixed_length(heads, length)
        return fixed_length(heads) if self.parts.normalize else heads

    def _output(self, out: Tensor, x: Tensor) -> Tensor:
        """Norm -> gate -> projection (section 4.4)."""
        if self.parts.output_norm:
            out = self.output_norm(out)
        y = out.flatten(-2).to(self.query_proj.weight.dtype)
        if self.parts.output_gate:
            y = y * torch.sigmoid(self.output_gate(x))
        return self.output_proj(y) if self.parts.output_proj else y

    def _check(self, x: Tensor, state: NeuralMemoryState | None) -> NeuralMemoryState:
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise ValueError(f"x must be [batch, time, {self.dim}], got {tuple(x.shape)}")
        if x.shape[1] == 0:
            raise ValueError("empty input: time is 0; give at least one token")
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


def _real(count: Tensor, time: int, like: Tensor) -> Tensor:
    """One at each row's first `count` places, zero behind them, `[batch time 1]`."""
    places = torch.arange(time, device=like.device)
    return (places[None, :] < count[:, None]).to(like.dtype)[..., None]
