"""Softmax attention: projections, and three ways to attend at the cost each model can afford.

Full causal attention over a growing cache (the Transformer baseline), sliding-window attention of
linear cost (block-local, no time x time mask), and attention inside a segment (MAC). All go through
`scaled_dot_product_attention`. Persistent vectors stand before everything, are always visible and
never rotated. Layout outside: `[batch, time, heads, dim]`.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from titans.layers.rows import Rows, last_columns
from titans.ops.derivatives import is_transformed


class KeyValues(NamedTuple):
    """What a token can look back at."""

    keys: Float[Tensor, "batch time heads dim"]
    values: Float[Tensor, "batch time heads dim"]


class Attention(nn.Module):
    """The projections of multi-head attention. How tokens attend is the caller's choice.

    Args:
        init_std: where values and outputs start.
        sharpness: how surely each token finds itself and its like at the start.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        rope_theta: float = 10_000.0,
        init_std: float = 0.02,
        sharpness: float = 1.0,
    ) -> None:
        super().__init__()
        if dim % num_heads or (dim // num_heads) % 2:
            raise ValueError(
                f"dim ({dim}) must be num_heads ({num_heads}) times an even head size: "
                "rotary positions turn pairs of channels"
            )
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.rope_theta = rope_theta
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        for linear in (self.v_proj, self.o_proj):
            nn.init.normal_(linear.weight, std=init_std)
        # Keys start as the queries: each token finds itself and its like, not the average of all.
        nn.init.normal_(self.q_proj.weight, std=sharpness * dim**-0.5)
        with torch.no_grad():
            self.k_proj.weight.copy_(self.q_proj.weight)

    def queries(
        self, x: Float[Tensor, "batch time dim"], positions: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time heads head_dim"]:
        """Queries, rotated to their positions."""
        return rotate(self._heads(self.q_proj(x)), positions, self.rope_theta)

    def key_values(
        self,
        x: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "batch time"] | None = None,
    ) -> KeyValues:
        """Keys and values; keys are rotated unless `positions` is None (persistent vectors)."""
        keys = self._heads(self.k_proj(x))
        if positions is not None:
            keys = rotate(keys, positions, self.rope_theta)
        return KeyValues(keys, self._heads(self.v_proj(x)))

    def output(
        self, attended: Float[Tensor, "batch time heads head_dim"]
    ) -> Float[Tensor, "batch time dim"]:
        """Join the heads."""
        return self.o_proj(attended.flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim))


def attend(
    queries: Float[Tensor, "batch time heads dim"],
    context: KeyValues,
    mask: Bool[Tensor, "#batch #time seen"] | None = None,
    *,
    is_causal: bool = False,
) -> Float[Tensor, "batch time heads dim"]:
    """Softmax attention; `mask` is True where a query sees a key.

    The fused kernels have one derivative: for the derivative of a derivative, call the model under
    `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`. Under `torch.func` this is done here.
    """
    with sdpa_kernel(SDPBackend.MATH) if is_transformed() else nullcontext():
        out = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            context.keys.transpose(1, 2),
            context.values.transpose(1, 2),
            attn_mask=None if mask is None else mask[:, None],
            is_causal=is_causal,
        )
    return out.transpose(1, 2)


def join(*parts: KeyValues | None) -> KeyValues:
    """One context out of several, in order; None is left out."""
    given = [part for part in parts if part is not None]
    if len(given) == 1:
        return given[0]
    return KeyValues(
        torch.cat([part.keys for part in given], dim=1),
        torch.cat([part.values for part in given], dim=1),
    )


def window_attention(
    queries: Float[Tensor, "batch time heads dim"],
    new: KeyValues,
    rows: Rows,
    window: int,
    *,
    past: KeyValues | None = None,
    prefix: KeyValues | None = None,
) -> Float[Tensor, "batch time heads dim"]:
    """Each token sees the prefix, itself and the `window - 1` tokens before it.

    The first `window` queries look at the past (the row's last `window` tokens, right-aligned; None
    at the start of a stream) and at each other; after that, blocks of `window` queries look at two
    blocks of keys each. Work and memory grow linearly with time.
    """
    time = queries.shape[1]
    head = min(window, time)
    context = join(prefix, past, _slice(new, 0, head))
    mask = _first_mask(head, window, rows, past, prefix)
    first = attend(queries[:, :head], context, mask)
    if time <= window:
        return first
    return torch.cat((first, _block_attention(queries, new, window, prefix)), dim=1)


def slide(past: KeyValues, new: KeyValues, rows: Rows) -> KeyValues:
    """The window after `new` was read: the row's last `window` keys and values."""
    return KeyValues(
        last_columns(past.keys, new.keys, rows), last_columns(past.values, new.values, rows)
    )


def full_attention(
    queries: Float[Tensor, "batch time heads dim"],
    new: KeyValues,
    rows: Rows,
    past: KeyValues | None,
) -> Float[Tensor, "batch time heads dim"]:
    """Each token sees itself and all before it. `past` already holds `new` (see `append`)."""
    if past is None or rows.start == 0:
        return attend(queries, new, is_causal=True)
    if rows.is_uniform and rows.time == 1:
        seen = rows.start + 1  # type: ignore[operator]
        return attend(queries, _slice(past, 0, seen))
    slots = torch.arange(past.keys.shape[1], device=queries.device)
    return attend(queries, past, slots[None, None] <= rows.positions[:, :, None])


def append(past: KeyValues, new: KeyValues, rows: Rows) -> KeyValues:
    """Write `new` behind each row's own tokens, in a buffer that doubles when it is full.

    Without autograd the buffer is written in place: the caller owns it (`BlockState`).
    """
    needed = int(rows.after().max()) if rows.start is None else rows.start + rows.time
    slots = rows.positions
    if rows.mask is not None:
        # Padding is parked behind the last token; the next real token overwrites it.
        needed = max(needed, int(slots.max()) + 1)
    return KeyValues(
        _write(past.keys, new.keys, slots, needed), _write(past.values, new.values, slots, needed)
    )


def _write(buffer: Tensor, new: Tensor, slots: Tensor, needed: int) -> Tensor:
    if needed > buffer.shape[1]:
        room = max(needed, 2 * buffer.shape[1]) - buffer.shape[1]
        empty = buffer.new_zeros(buffer.shape[0], room, *buffer.shape[2:])
        buffer = torch.cat((buffer, empty), dim=1)
    index = slots[:, :, None, None].expand_as(new)
    new = new.to(buffer.dtype)
    if torch.is_grad_enabled():
        return buffer.scatter(1, index, new)
    return buffer.scatter_(1, index, new)


def _first_mask(
    head: int, window: int, rows: Rows, past: KeyValues | None, prefix: KeyValues | None
) -> Tensor:
    """Who sees what among the first `head` queries: `[rows or 1, head, prefix + past + head]`."""
    device = rows.position.device
    query = torch.arange(head, device=device)[:, None]
    if past is None:
        seen = (torch.arange(head, device=device) <= query)[None]
    else:
        size = past.keys.shape[1]
        # Index of each key relative to the first query: the past lies at -size..-1.
        key = torch.arange(-size, head, device=device)[None]
        inside = (key <= query) & (key > query - window)
        exists = key >= -rows.position[:, None]
        seen = inside[None] & exists[:, None]
    return _with_prefix(seen, prefix)


def _block_attention(
    queries: Tensor, new: KeyValues, window: int, prefix: KeyValues | None
) -> Tensor:
    """Queries from `window` on, in blocks: block b looks at the keys of blocks b - 1 and b."""
    batch, time = queries.shape[:2]
    missing = -time % window
    blocks = (time + missing) // window

    def split(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, 0, 0, missing)).unflatten(1, (blocks, window))

    def pairs(x: Tensor) -> Tensor:
        parts = split(x)
        return torch.cat((parts[:, :-1], parts[:, 1:]), dim=2).flatten(0, 1)

    context = KeyValues(pairs(new.keys), pairs(new.values))
    if prefix is not None:
        context = join(_repeat(prefix, blocks - 1), context)
    query = torch.arange(window, device=queries.device)[:, None]
    key = torch.arange(-window, window, device=queries.device)[None]
    mask = _with_prefix(((key <= query) & (key > query - window))[None], prefix)
    out = attend(split(queries)[:, 1:].flatten(0, 1), context, mask)
    return out.unflatten(0, (batch, blocks - 1)).flatten(1, 2)[:, : time - window]


def _repeat(prefix: KeyValues, times: int) -> KeyValues:
    return KeyValues(
        prefix.keys.repeat_interleave(times, dim=0), prefix.values.repeat_interleave(times, dim=0)
    )


def _slice(context: KeyValues, start: int, stop: int) -> KeyValues:
    return KeyValues(context.keys[:, start:stop], context.values[:, start:stop])


def _with_prefix(seen: Tensor, prefix: KeyValues | None) -> Tensor:
    """Prepend columns that every query sees."""
    if prefix is None:
        return seen
    return F.pad(seen, (prefix.keys.shape[1], 0), value=True)


def rotate(
    x: Float[Tensor, "batch time heads dim"],
    positions: Int[Tensor, "batch time"],
    theta: float = 10_000.0,
) -> Float[Tensor, "batch time heads dim"]:
    """Turn each pair (x_i, x_{i + dim/2}) by `position * theta^(-2 i / dim)` (RoPE).

    Dot products of two rotated vectors depend only on the difference of their positions. Angles are
    float64 until cos and sin: in float32 that of position 10^6 is wrong in its second decimal.
    """
    cos, sin = _angles(positions, x.shape[-1], theta, x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _angles(positions: Tensor, dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    steps = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.double()[:, :, None, None] * theta ** (-steps / dim)
    return angles.cos().to(dtype), angles.sin().to(dtype)
