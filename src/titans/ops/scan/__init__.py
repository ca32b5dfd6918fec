"""Chunk-parallel memory scan: the path used for training and for reading long inputs.

Equal to `ops.reference_options.scan_memory`; tests/ops/test_scan.py compares outputs, final
state, trace and every gradient. Pure: no parameters, no globals. Derivation: ops/README.md.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from titans.ops import reference_options
from titans.ops.checks import check_scan
from titans.ops.derivatives import by_hand, is_mapped
from titans.ops.nonfinite import contained
from titans.ops.operator import as_operator
from titans.ops.options import ScanOptions
from titans.ops.scan.layout import bias_pattern, from_rows, pack, stack, to_rows, unpack, unstack
from titans.ops.scan.loop import ChunkScan, plain_scan
from titans.ops.scan.plan import Plan, RaggedRows, align_rows
from titans.ops.state import Gates, MemoryState, Surprise, Trace
from titans.ops.tree import where_rows
from titans.ops.writes import Decision, make_trace, may_act


@as_operator
@contained
def scan_memory(
    queries: Float[Tensor, "batch time heads key_dim"],
    keys: Float[Tensor, "batch time heads key_dim"],
    values: Float[Tensor, "batch time heads value_dim"],
    gates: Gates,
    state: MemoryState,
    *,
    chunk_size: int,
    mask: Bool[Tensor, "batch time"] | None = None,
    write_mask: Bool[Tensor, "batch time"] | None = None,
    options: ScanOptions | None = None,
) -> tuple[Float[Tensor, "batch time heads value_dim"], MemoryState, Trace]:
    """Write `keys -> values` into the memory, token by token, and read it with `queries`.

        S_t = eta_t S_{t-1} - theta_t grad loss(M_c; k_t, v_t)      momentum
        M_t = (1 - alpha_t) M_{t-1} + S_t                           weights
        y_t = M_t(q_t)                                              read

    Args:
        state: the memory before the first token; it is not changed.
        chunk_size: gradients in a chunk are taken at M_c, the weights at its start;
            1 is the exact online rule, larger is faster and coarser.
        mask: False marks padding: it changes nothing, takes no position, and reads zero.
        write_mask: False marks tokens that read but do not write (and forget nothing).
        options: everything beyond the plain recurrence.

    Returns:
        The reads, a state from which a later call continues exactly, and what was done with each
        token: its surprise, whether it was written, and how strongly.
    """
    options = options or ScanOptions()
    check_scan(queries, keys, values, gates, state, chunk_size, mask, write_mask, options)
    if any(map(is_mapped, (mask, write_mask, state.position))):
        # Where a row stands is not known under vmap: token by token that does not matter.
        return reference_options.scan_memory(
            queries,
            keys,
            values,
            gates,
            state,
            chunk_size=chunk_size,
            mask=mask,
            write_mask=write_mask,
            options=options,
        )
    result_dtype = values.dtype
    with torch.autocast(device_type=keys.device.type, enabled=False):
        dtype = state.dtype
        tokens = [t.to(dtype) for t in (queries, keys, values, *gates)]
        if not options.momentum:
            tokens[4] = torch.zeros_like(tokens[4])
        active = may_act(tokens[5], options, write_mask=write_mask)
        active = None if active is None else active.to(dtype)
        run = ChunkRun(chunk_size, options)
        rows = align_rows(mask, keys.shape[1], state.position, chunk_size)
        if rows is None:
            outputs, state, trace = run.uniform(tokens, active, state)
        else:
            outputs, state, trace = run.ragged(tokens, active, state, rows)
    return outputs.to(result_dtype), state, trace


class ChunkRun:
    """One call of a scan in chunks: brings rows to common borders, and runs them in pieces."""

    def __init__(self, chunk_size: int, options: ScanOptions) -> None:
        self.chunk_size = chunk_size
        self.options = options

    def uniform(
        self, tokens: list[Tensor], active: Tensor | None, state: MemoryState
    ) -> tuple[Tensor, MemoryState, Trace]:
        """All rows stand at the same place in their chunk, and no token is masked."""
        time = tokens[0].shape[1]
        offset = int(state.position[0]) % self.chunk_size
        pieces = cut(time, offset, self.chunk_size)
        outputs, state, trace, start = self._scan(tokens, active, state, pieces, offset > 0)
        closed = (offset + time) % self.chunk_size == 0
        state = state.replace(
            chunk_weights=state.weights if closed else start,
            position=state.position + time,
        )
        return outputs, state, trace

    def ragged(
        self, tokens: list[Tensor], active: Tensor | None, state: MemoryState, rows: RaggedRows
    ) -> tuple[Tensor, MemoryState, Trace]:
        """Rows stand at different places, or have padding: shift them so that borders align."""
        aligned = [rows.align(t) for t in tokens]
        valid = rows.valid[..., None].to(tokens[0].dtype)
        active = valid.expand_as(aligned[3]) if active is None else rows.align(active) * valid
        open_rows = rows.offset > 0
        final_start = state.chunk_weights
        current = state.replace(
            chunk_weights=where_rows(open_rows, state.chunk_weights, state.weights)
        )
        outputs: list[Tensor] = []
        traces: list[Trace] = []
        for chunk, begin in enumerate(range(0, rows.width, self.chunk_size)):
            end = min(begin + self.chunk_size, rows.width)
            part = [t[:, begin:end] for t in aligned]
            resumed = chunk == 0 and bool(open_rows.any())
            output, current, trace, start = self._scan(
                part, active[:, begin:end], current, (end - begin,), resumed
            )
            ends_here = rows.last_chunk == chunk
            final_start = where_rows(ends_here, start, final_start)
            outputs.append(output)
            traces.append(trace)
        closed = rows.closed
        state = current.replace(
            chunk_weights=where_rows(closed, current.weights, final_start),
            position=state.position + rows.count,
        )
        trace = Trace.join(traces).map(rows.restore)
        return rows.restore(torch.cat(outputs, dim=1)), state, trace

    def _scan(
        self,
        tokens: list[Tensor],
        active: Tensor | None,
        state: MemoryState,
        pieces: tuple[int, ...],
        resumed: bool,
    ) -> tuple[Tensor, MemoryState, Trace, tuple[Tensor, ...]]:
        """Run pieces of aligned rows; also give the weights at the start of the last one."""
        batch, biased = state.batch, bias_pattern(state.weights)
        base = stack(state.initial_weights) if self.options.forget_towards == "initial" else None
        plan = Plan(pieces, biased, resumed, self.options)
        arguments = [to_rows(t) for t in tokens]
        arguments.append(None if active is None else to_rows(active))  # type: ignore[arg-type]
        arguments += pack(state, base, self.options.momentum)
        arguments += stack(state.chunk_weights) if resumed else []
        arguments += base or []
        scan = ChunkScan.apply if by_hand() else plain_scan
        output, loss, norm, written, factor, *memory = scan(plan, *arguments)  # type: ignore[misc]
        weights, momentum = unpack(memory[: len(biased)], base, self.options.momentum)
        start = unstack(memory[len(biased) :], biased, batch)
        state = state.replace(weights=unstack(weights, biased, batch))
        if momentum is not None:
            state = state.replace(momentum=unstack(momentum, biased, batch))
        surprise = Surprise(from_rows(loss, batch), from_rows(norm, batch))
        written = from_rows(written, batch) if written.numel() else active
        factor = from_rows(factor, batch) if factor.numel() else None
        active = written if self.options.skip_unsurprising else active
        trace = make_trace(surprise, Decision(active, written, factor))
        return from_rows(output, batch), state, trace, start


def cut(time: int, offset: int, chunk_size: int) -> tuple[int, ...]:
    """Lengths of the chunks of a sequence that begins `offset` tokens into one."""
    pieces = []
    while time > 0:
        piece = min(chunk_size - offset, time)
        pieces.append(piece)
        time, offset = time - piece, 0
    return tuple(pieces)
