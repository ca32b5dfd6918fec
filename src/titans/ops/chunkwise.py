"""Chunk-parallel memory scan: the path used for training and for reading long inputs.

Equal to `ops.reference.scan_memory`; tests/ops/test_chunkwise.py compares outputs, final state,
surprise and every gradient. Pure: no parameters, no globals. Derivation: ops/README.md.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from titans.ops.checks import check_scan
from titans.ops.chunk_scan import ChunkScan
from titans.ops.eager import eager
from titans.ops.layout import bias_pattern, from_rows, pack, stack, to_rows, unpack, unstack
from titans.ops.options import ScanOptions
from titans.ops.plan import Plan
from titans.ops.ragged import RaggedRows, align_rows
from titans.ops.state import Gates, MemoryState, Surprise


@eager
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
    return_surprise: bool = False,
) -> (
    tuple[Float[Tensor, "batch time heads value_dim"], MemoryState]
    | tuple[Float[Tensor, "batch time heads value_dim"], MemoryState, Surprise]
):
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
        return_surprise: also return each token's loss and gradient norm.

    Returns:
        The reads, a state from which a later call continues exactly, and (on request) the
        surprise.
    """
    options = options or ScanOptions()
    check_scan(queries, keys, values, gates, state, chunk_size, mask, write_mask, options)
    result_dtype = values.dtype
    with torch.autocast(device_type=keys.device.type, enabled=False):
        dtype = state.dtype
        tokens = [t.to(dtype) for t in (queries, keys, values, *gates)]
        if not options.momentum:
            tokens[4] = torch.zeros_like(tokens[4])
        active = _active(tokens[5], write_mask, options)
        run = _Run(chunk_size, options, return_surprise)
        rows = align_rows(mask, keys.shape[1], state.position, chunk_size)
        if rows is None:
            outputs, surprise, state = run.uniform(tokens, active, state)
        else:
            outputs, surprise, state = run.ragged(tokens, active, state, rows)
    outputs = outputs.to(result_dtype)
    return (outputs, state, surprise) if return_surprise else (outputs, state)


def _active(theta: Tensor, write_mask: Tensor | None, options: ScanOptions) -> Tensor | None:
    """One where a token may write, `[batch time heads]`; None if every token may."""
    active = None
    if write_mask is not None:
        active = write_mask[..., None].expand_as(theta)
    if options.write_threshold is not None:
        strong = theta >= options.write_threshold
        active = strong if active is None else active & strong
    return None if active is None else active.to(theta.dtype)


class _Run:
    """One call of `scan_memory`: the settings that its pieces share."""

    def __init__(self, chunk_size: int, options: ScanOptions, want_surprise: bool) -> None:
        self.chunk_size = chunk_size
        self.options = options
        self.want_surprise = want_surprise

    def uniform(
        self, tokens: list[Tensor], active: Tensor | None, state: MemoryState
    ) -> tuple[Tensor, Surprise, MemoryState]:
        """All rows stand at the same place in their chunk, and no token is masked."""
        time = tokens[0].shape[1]
        offset = int(state.position[0]) % self.chunk_size
        pieces = _cut(time, offset, self.chunk_size)
        outputs, surprise, state, start = self._scan(tokens, active, state, pieces, offset > 0)
        closed = (offset + time) % self.chunk_size == 0
        state = state.replace(
            chunk_weights=state.weights if closed else start,
            position=state.position + time,
        )
        return outputs, surprise, state

    def ragged(
        self, tokens: list[Tensor], active: Tensor | None, state: MemoryState, rows: RaggedRows
    ) -> tuple[Tensor, Surprise, MemoryState]:
        """Rows stand at different places, or have padding: shift them so that borders align."""
        aligned = [rows.align(t) for t in tokens]
        valid = rows.valid[..., None].to(tokens[0].dtype)
        active = valid.expand_as(aligned[3]) if active is None else rows.align(active) * valid
        open_rows = rows.offset > 0
        final_start = state.chunk_weights
        current = state.replace(
            chunk_weights=_rows_where(open_rows, state.chunk_weights, state.weights)
        )
        outputs, losses, norms = [], [], []
        for chunk, begin in enumerate(range(0, rows.width, self.chunk_size)):
            end = min(begin + self.chunk_size, rows.width)
            part = [t[:, begin:end] for t in aligned]
            resumed = chunk == 0 and bool(open_rows.any())
            output, surprise, current, start = self._scan(
                part, active[:, begin:end], current, (end - begin,), resumed
            )
            ends_here = rows.last_chunk == chunk
            final_start = _rows_where(ends_here, start, final_start)
            outputs.append(output)
            losses.append(surprise.loss)
            norms.append(surprise.grad_norm)
        closed = rows.closed
        state = current.replace(
            chunk_weights=_rows_where(closed, current.weights, final_start),
            position=state.position + rows.count,
        )
        surprise = Surprise(*(rows.restore(torch.cat(s, dim=1)) for s in (losses, norms)))
        return rows.restore(torch.cat(outputs, dim=1)), surprise, state

    def _scan(
        self,
        tokens: list[Tensor],
        active: Tensor | None,
        state: MemoryState,
        pieces: tuple[int, ...],
        resumed: bool,
    ) -> tuple[Tensor, Surprise, MemoryState, tuple[Tensor, ...]]:
        """Run pieces of aligned rows; also give the weights at the start of the last one."""
        batch, biased = state.batch, bias_pattern(state.weights)
        base = stack(state.initial_weights) if self.options.forget_towards == "initial" else None
        plan = Plan(pieces, biased, resumed, self.want_surprise, self.options)
        arguments = [to_rows(t) for t in tokens]
        arguments.append(None if active is None else to_rows(active))  # type: ignore[arg-type]
        arguments += pack(state, base, self.options.momentum)
        arguments += stack(state.chunk_weights) if resumed else []
        arguments += base or []
        output, loss, norm, *memory = ChunkScan.apply(plan, *arguments)  # type: ignore[misc]
        weights, momentum = unpack(memory[: len(biased)], base, self.options.momentum)
        start = unstack(memory[len(biased) :], biased, batch)
        state = state.replace(weights=unstack(weights, biased, batch))
        if momentum is not None:
            state = state.replace(momentum=unstack(momentum, biased, batch))
        if not self.want_surprise:
            loss = norm = output.new_zeros(output.shape[:2])
        surprise = Surprise(from_rows(loss, batch), from_rows(norm, batch))
        return from_rows(output, batch), surprise, state, start


def _cut(time: int, offset: int, chunk_size: int) -> tuple[int, ...]:
    """Lengths of the chunks of a sequence that begins `offset` tokens into one."""
    pieces = []
    while time > 0:
        piece = min(chunk_size - offset, time)
        pieces.append(piece)
        time, offset = time - piece, 0
    return tuple(pieces)


def _rows_where(
    rows: Tensor, yes: tuple[Tensor, ...], no: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    return tuple(
        torch.where(rows.view(-1, *[1] * (y.ndim - 1)), y, n) for y, n in zip(yes, no, strict=True)
    )
