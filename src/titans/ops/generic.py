"""Any network as the memory: the same recurrence with gradients from `torch.func`.

Slower than `ops.scan`, and it forms every token's weights: chunk by chunk the per-token
gradients come from `vmap(grad)`, momentum and weights from associative scans over the chunk.
Tested against `ops.reference_options` (an MLP written as a module) in tests/ops/test_generic.py.
"""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from titans.ops.options import ScanOptions
from titans.ops.scan.chunk import constant, loss_slope, loss_value
from titans.ops.scan.layout import from_rows, to_rows
from titans.ops.scan.plan import align_rows
from titans.ops.state import Gates, MemoryState, Surprise, Trace
from titans.ops.tree import where_rows
from titans.ops.writes import (
    acting_gates,
    decide,
    make_trace,
    may_act,
    momentum_to_come,
    product,
    stable_step,
)


class NetworkMemory:
    """A module's `forward` as a function of its parameters, and the memory scan over it."""

    def __init__(self, module: nn.Module) -> None:
        if any(True for _ in module.buffers()):
            raise ValueError(
                f"{type(module).__name__} has buffers; a memory network may only have parameters, "
                "since those are what is written"
            )
        self.module = copy.deepcopy(module)
        self.names = [name for name, _ in module.named_parameters()]
        if not self.names:
            raise ValueError(f"{type(module).__name__} has no parameters, so nothing to write to")

    def initial_parameters(self, num_heads: int) -> list[Tensor]:
        """Parameters `[heads, ...]`, each head initialised on its own where the module can."""
        heads = []
        for number in range(num_heads):
            head = copy.deepcopy(self.module)
            if number:
                for part in head.modules():
                    if hasattr(part, "reset_parameters"):
                        part.reset_parameters()  # type: ignore[operator]
            heads.append([p.detach() for p in head.parameters()])
        return [torch.stack(same) for same in zip(*heads, strict=True)]

    def apply(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """M(x) at `parameters`; for use under `vmap`."""
        return functional_call(self.module, dict(zip(self.names, parameters, strict=True)), (x,))

    def read(
        self, queries: Float[Tensor, "batch time heads key_dim"], state: MemoryState
    ) -> Float[Tensor, "batch time heads value_dim"]:
        """Read every query at the weights of `state`."""
        with torch.autocast(device_type=queries.device.type, enabled=False):
            rows = to_rows(queries.to(state.dtype))
            weights = tuple(w.flatten(0, 1) for w in state.weights)
            out = vmap(self.apply)(weights, rows)
            return from_rows(out, state.batch).to(queries.dtype)

    def scan(
        self,
        queries: Float[Tensor, "batch time heads key_dim"],
        keys: Float[Tensor, "batch time heads key_dim"],
        values: Float[Tensor, "batch time heads value_dim"],
        gates: Gates,
        state: MemoryState,
        *,
        chunk_size: int,
        mask: Bool[Tensor, "batch time"] | None = None,
        write_mask: Bool[Tensor, "batch time"] | None = None,
        options: ScanOptions,
    ) -> tuple[Float[Tensor, "batch time heads value_dim"], MemoryState, Trace]:
        """`ops.scan_memory` for this network."""
        if options.written != "all":
            raise ValueError(
                f"written={options.written!r} needs an MLP as the memory; any other network is "
                "written as a whole: use written='all'"
            )
        result_dtype = values.dtype
        with torch.autocast(device_type=keys.device.type, enabled=False):
            tokens = [t.to(state.dtype) for t in (queries, keys, values, *gates)]
            if not options.momentum:
                tokens[4] = torch.zeros_like(tokens[4])
            time = keys.shape[1]
            acts = may_act(tokens[5], options, write_mask=write_mask)
            active = torch.ones_like(tokens[5]) if acts is None else acts.to(state.dtype)
            rows = align_rows(mask, time, state.position, chunk_size)
            if rows is not None:
                active = rows.align(active) * rows.valid[..., None]
                tokens = [rows.align(t) for t in tokens]
                offset, count, width = rows.offset, rows.count, rows.width
            else:
                offset, width = state.position % chunk_size, time
                count = torch.full_like(offset, time)
            first = 0 if rows is not None else int(offset[0])
            chunks = _Chunks(self, options, chunk_size, offset, count)
            outputs, state, trace = chunks.run(
                tokens, active, state, width, first, aligned=rows is None
            )
            if rows is not None:
                outputs, trace = rows.restore(outputs), trace.map(rows.restore)
        return outputs.to(result_dtype), state, trace


class _Chunks:
    """The loop over chunks of one scan."""

    def __init__(
        self,
        network: NetworkMemory,
        options: ScanOptions,
        chunk_size: int,
        offset: Tensor,
        count: Tensor,
    ) -> None:
        self.network, self.options, self.chunk_size = network, options, chunk_size
        self.offset, self.count = offset, count

    def run(
        self,
        tokens: list[Tensor],
        active: Tensor,
        state: MemoryState,
        width: int,
        first: int,
        aligned: bool,
    ) -> tuple[Tensor, MemoryState, Trace]:
        """Chunk by chunk; `first` tokens of the first chunk were absorbed before (aligned rows)."""
        heads = state.num_heads
        opened = (self.offset > 0).repeat_interleave(heads)
        weights = [w.flatten(0, 1) for w in state.weights]
        momentum = [s.flatten(0, 1) for s in state.momentum]
        base = [w.flatten(0, 1) for w in state.initial_weights]
        held = [w.flatten(0, 1) for w in state.chunk_weights]
        start = where_rows(opened, held, weights)
        last_chunk = torch.where(
            self.count > 0, (self.offset + self.count - 1) // self.chunk_size, -1
        ).repeat_interleave(heads)
        outputs: list[Tensor] = []
        traces: list[Trace] = []
        begin, chunk = 0, 0
        while begin < width:
            size = min(self.chunk_size - (first if chunk == 0 and aligned else 0), width - begin)
            part = [to_rows(t[:, begin : begin + size]) for t in tokens]
            acts = to_rows(active[:, begin : begin + size])
            if chunk:
                start = weights
            output, trace, weights, momentum = self._chunk(
                part, acts, weights, momentum, start, base
            )
            ends = last_chunk == chunk
            held = where_rows(ends, start, held)
            outputs.append(output)
            traces.append(trace.map(lambda t: from_rows(t, state.batch)))
            begin, chunk = begin + size, chunk + 1
        closed = (self.count > 0) & ((self.offset + self.count) % self.chunk_size == 0)
        closed = closed.repeat_interleave(heads)
        batch = state.batch
        state = MemoryState(
            weights=_rows(weights, batch),
            momentum=_rows(momentum, batch) if self.options.momentum else state.momentum,
            chunk_weights=_rows(where_rows(closed, weights, held), batch),
            initial_weights=state.initial_weights,
            position=state.position + self.count,
        )
        return from_rows(torch.cat(outputs, dim=1), batch), state, Trace.join(traces)

    def _chunk(
        self,
        part: list[Tensor],
        active: Tensor,
        weights: list[Tensor],
        momentum: list[Tensor],
        start: list[Tensor],
        base: list[Tensor],
    ) -> tuple[Tensor, Trace, list[Tensor], list[Tensor]]:
        queries, keys, values, alpha, eta, theta = part
        options = self.options
        gradients, loss, error = self._gradients(keys, values, start)
        flat = [g.detach().flatten(2) for g in gradients]
        norm = torch.linalg.vector_norm(torch.cat(flat, dim=-1), dim=-1)
        decision = decide(active, loss.detach(), norm, options)
        assert decision.active is not None and decision.factor is not None
        added = decision.active
        alpha, eta = acting_gates(alpha, eta, added)
        theta = theta * decision.factor
        if options.step_limit is not None:
            memory = constant((weights, momentum, start, base))
            gates = constant((alpha, eta, theta, added))
            stable = self._stabilise(gates, torch.cat(flat, dim=-1), norm, error, memory)
            decision = decision._replace(factor=product(decision.factor, stable))
            theta = theta * stable
        trace = make_trace(Surprise(loss, norm), decision)

        steps, states, momenta = [], [], []
        for w, s, w0, g in zip(weights, momentum, base, gradients, strict=True):
            shape = (*alpha.shape, *[1] * (w.ndim - 1))
            per_time = [x.reshape(shape).transpose(0, 1) for x in (alpha, eta, theta, added)]
            a, e, t, m = per_time
            pushed = associative_scan(
                e.expand_as(g.transpose(0, 1)), -t * g.transpose(0, 1), initial=s
            )
            terms = m * pushed
            if options.forget_towards == "initial":
                terms = terms + a * w0
            moved = associative_scan((1 - a).expand_as(terms), terms, initial=w)
            states.append(moved[-1])
            momenta.append(pushed[-1])
            if options.read == "before":
                moved = torch.cat([w[None], moved[:-1]])
            steps.append(moved.transpose(0, 1))
        output = vmap(vmap(self.network.apply))(tuple(steps), queries)
        if options.residual:
            output = output + queries
        return output, trace, states, momenta

    def _gradients(
        self, keys: Tensor, values: Tensor, start: list[Tensor]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """Per-token gradients at the chunk's start, losses, and the loss's slope by the output."""
        options = self.options

        def surprise(parameters: tuple[Tensor, ...], key: Tensor, value: Tensor) -> Tensor:
            output = self.network.apply(parameters, key)
            residue = output + key - value if options.residual else output - value
            return loss_value(residue, options)

        at = tuple(w.detach() for w in start) if options.gradient == "truncated" else tuple(start)
        per_token = vmap(grad_and_value(surprise), in_dims=(None, 0, 0))
        gradients, loss = vmap(per_token)(at, keys, values)
        weights, key, value = constant((list(at), keys, values))
        output = vmap(self.network.apply)(tuple(weights), key)
        residue = output - value + (key if options.residual else 0)
        return gradients, loss, loss_slope(residue, options)

    def _stabilise(
        self,
        gates: tuple[Tensor, Tensor, Tensor, Tensor],
        gradient: Tensor,
        norm: Tensor,
        error: Tensor,
        memory: tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]],
    ) -> Tensor:
        """The stabiliser's factor on theta, token by token (`ops.reference_options` defines it)."""
        alpha, eta, theta, added = gates
        tiny = torch.finfo(theta.dtype).tiny
        w, s, start, base = (torch.cat([t.flatten(1) for t in part], dim=-1) for part in memory)
        rest = base if self.options.forget_towards == "initial" else torch.zeros_like(base)
        size = torch.linalg.vector_norm(error, dim=-1).clamp_min(tiny)
        limit, _ = stable_step(eta, theta, 2 * (norm / size).square(), self.options)
        in_the_end = eta * (1 + momentum_to_come(eta))
        factors = []
        for t in range(theta.shape[1]):
            keep, hold = 1 - alpha[:, t, None], eta[:, t, None]
            before = rest + keep * (w - rest) + in_the_end[:, t, None] * s
            by_size = 1 / size[:, t]
            moved = (gradient[:, t] * by_size[:, None] * (before - start)).sum(-1)
            factors.append(limit[:, t] * (1 + 2 * moved * by_size))
            s = hold * s - (theta[:, t] * factors[-1])[:, None] * gradient[:, t]
            w = rest + keep * (w - rest) + added[:, t, None] * s
        return torch.stack(factors, dim=1)


def _rows(flat: Sequence[Tensor], batch: int) -> tuple[Tensor, ...]:
    return tuple(t.unflatten(0, (batch, -1)) for t in flat)


def associative_scan(
    factors: Float[Tensor, "time *dims"],
    terms: Float[Tensor, "time *dims"],
    initial: Float[Tensor, "*dims"] | None = None,
) -> Float[Tensor, "time *dims"]:
    """All x_t of `x_t = factors_t x_{t-1} + terms_t` in a logarithmic number of steps.

    Pairs (a, b) compose as (a2 a1, a2 b1 + b2), which is associative; neighbours are merged,
    the half as long sequence is solved, and the rest is filled in (Blelloch). Equal to
    the loop over time (tests/ops/test_associative.py).

    Args:
        initial: x before the first step; zero if not given.
    """
    if factors.shape != terms.shape:
        raise ValueError(
            f"factors and terms must have one shape, got {tuple(factors.shape)} and "
            f"{tuple(terms.shape)}"
        )
    if initial is not None and len(terms):
        terms = torch.cat([(terms[0] + factors[0] * initial)[None], terms[1:]])
    return _scan_pairs(factors, terms)


def _scan_pairs(factors: Tensor, terms: Tensor) -> Tensor:
    time = len(terms)
    if time < 2:
        return terms
    # Merge tokens (0, 1), (2, 3), ...; the scan of the merged ones gives every second x.
    even_factors, odd_factors = factors[0 : time - 1 : 2], factors[1::2]
    even_terms, odd_terms = terms[0 : time - 1 : 2], terms[1::2]
    odd = _scan_pairs(odd_factors * even_factors, torch.addcmul(odd_terms, odd_factors, even_terms))
    # The others follow from their left neighbour by one step.
    later = factors[2::2]
    even = torch.cat([terms[:1], torch.addcmul(terms[2::2], later, odd[: len(later)])])
    return _interleave(even, odd)


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """even[0], odd[0], even[1], odd[1], ..."""
    pairs = torch.stack([even[: len(odd)], odd], dim=1).flatten(0, 1)
    return pairs if len(even) == len(odd) else torch.cat([pairs, even[-1:]])
