"""Attention against plain loops written from the definition."""

import math

import pytest
import torch
from torch import Tensor

from titans.layers.attention import (
    Attention,
    KeyValues,
    append,
    attend,
    full_attention,
    rotate,
    slide,
    window_attention,
)
from titans.layers.rows import Rows

HEADS, DIM = 2, 4


def heads(batch: int, time: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, time, HEADS, DIM, generator=generator, dtype=torch.float64)


def tokens(batch: int, time: int) -> tuple[Tensor, KeyValues]:
    return heads(batch, time, 0), KeyValues(heads(batch, time, 1), heads(batch, time, 2))


def naive(queries: Tensor, context: KeyValues, sees: list[list[list[int]]]) -> Tensor:
    """`sees[row][t]`: indices of the keys that query t of the row sees."""
    out = torch.zeros_like(queries)
    for row in range(queries.shape[0]):
        for t in range(queries.shape[1]):
            seen = sees[row][t]
            scores = torch.einsum("hd,khd->hk", queries[row, t], context.keys[row, seen])
            weights = (scores / math.sqrt(DIM)).softmax(-1)
            out[row, t] = torch.einsum("hk,khd->hd", weights, context.values[row, seen])
    return out


def fresh_rows(batch: int, time: int) -> Rows:
    return Rows(torch.zeros(batch, dtype=torch.long), time, 0)


def window_sees(batch: int, time: int, window: int, prefix: int = 0) -> list[list[list[int]]]:
    row = [
        [*range(prefix), *(prefix + i for i in range(max(0, t - window + 1), t + 1))]
        for t in range(time)
    ]
    return [row] * batch


@pytest.mark.parametrize("prefix_size", [0, 3])
@pytest.mark.parametrize(
    ("time", "window"), [(1, 4), (4, 4), (5, 4), (8, 4), (23, 4), (9, 1), (6, 50)]
)
def test_window_attention_matches_definition(time: int, window: int, prefix_size: int) -> None:
    queries, new = tokens(2, time)
    prefix = KeyValues(heads(2, prefix_size, 3), heads(2, prefix_size, 4)) if prefix_size else None
    got = window_attention(queries, new, fresh_rows(2, time), window, prefix=prefix)
    context = new
    if prefix is not None:
        context = KeyValues(
            torch.cat((prefix.keys, new.keys), 1), torch.cat((prefix.values, new.values), 1)
        )
    want = naive(queries, context, window_sees(2, time, window, prefix_size))
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("sizes", [[1] * 23, [7, 1, 15], [3, 20], [22, 1]])
def test_window_in_pieces_equals_whole(sizes: list[int]) -> None:
    time, window = 23, 5
    queries, new = tokens(2, time)
    want = naive(queries, new, window_sees(2, time, window))
    past = KeyValues(*(torch.zeros(2, window, HEADS, DIM, dtype=torch.float64),) * 2)
    begin, parts = 0, []
    for size in sizes:
        piece = slice(begin, begin + size)
        rows = Rows(torch.full((2,), begin), size, begin)
        keys = KeyValues(new.keys[:, piece], new.values[:, piece])
        parts.append(
            window_attention(queries[:, piece], keys, rows, window, past=past if begin else None)
        )
        past = slide(past, keys, rows)
        begin += size
    torch.testing.assert_close(torch.cat(parts, 1), want, atol=1e-12, rtol=0)
    torch.testing.assert_close(past.keys, new.keys[:, -window:], atol=0, rtol=0)


def test_window_rows_of_different_length_keep_their_own_past() -> None:
    """Row 1 has two tokens in the first call, row 0 five; both then read four more."""
    window = 4
    queries, new = tokens(2, 9)
    want = naive(queries, new, window_sees(2, 9, window))
    lengths = torch.tensor([5, 2])
    past = KeyValues(*(torch.zeros(2, window, HEADS, DIM, dtype=torch.float64),) * 2)
    first = Rows(torch.zeros(2, dtype=torch.long), 5, 0, lengths)
    head = KeyValues(new.keys[:, :5], new.values[:, :5])
    past = slide(past, head, first)
    columns = lengths[:, None] + torch.arange(4)
    row = torch.arange(2)[:, None]
    second = Rows(lengths, 4, None)
    tail = KeyValues(new.keys[row, columns], new.values[row, columns])
    got = window_attention(queries[row, columns], tail, second, window, past=past)
    torch.testing.assert_close(got, want[row, columns], atol=1e-12, rtol=0)


def test_window_memory_is_linear_in_time() -> None:
    """A 64k-token call must not build anything of time x time (that would be 4 GB)."""
    biggest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal biggest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, Tensor):
                    biggest = max(biggest, tensor.numel())
            return out

    time, window = 65_536, 32
    x = torch.randn(1, time, 1, 4)
    with Watch(), torch.no_grad():
        window_attention(x, KeyValues(x, x), fresh_rows(1, time), window)
    assert biggest <= 4 * time * max(window, 4)


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 7], [4, 1, 1, 6]])
def test_full_attention_with_cache_matches_definition(sizes: list[int]) -> None:
    queries, new = tokens(2, 12)
    want = naive(queries, new, [[list(range(t + 1)) for t in range(12)]] * 2)
    past = KeyValues(*(torch.zeros(2, 2, HEADS, DIM, dtype=torch.float64) for _ in range(2)))
    begin, parts = 0, []
    with torch.no_grad():
        for size in sizes:
            piece = slice(begin, begin + size)
            rows = Rows(torch.full((2,), begin), size, begin)
            keys = KeyValues(new.keys[:, piece], new.values[:, piece])
            past = append(past, keys, rows)
            parts.append(full_attention(queries[:, piece], keys, rows, past))
            begin += size
    torch.testing.assert_close(torch.cat(parts, 1), want, atol=1e-12, rtol=0)


def test_attend_mask_hides_keys_exactly() -> None:
    queries, new = tokens(1, 3)
    mask = torch.tensor([[[True, False, False], [True, True, False], [True, True, True]]])
    changed = KeyValues(new.keys.clone(), new.values.clone())
    changed.keys[:, 2] += 100
    changed.values[:, 2] -= 7
    before, after = attend(queries, new, mask), attend(queries, changed, mask)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.equal(before[:, 2], after[:, 2])


def test_rotation_depends_on_distance_only_even_at_millions() -> None:
    query, key = heads(1, 1, 0).float(), heads(1, 1, 1).float()

    def score(at: int) -> Tensor:
        left = rotate(query, torch.tensor([[at + 7]]))
        return (left * rotate(key, torch.tensor([[at]]))).sum(-1)

    for at in (1_000, 1_000_000, 50_000_000):
        torch.testing.assert_close(score(at), score(0), atol=1e-5, rtol=0)


def test_rotation_matches_complex_product() -> None:
    x = heads(2, 5, 0)
    positions = torch.tensor([[0, 1, 2, 3, 4], [9, 11, 2, 0, 7]])
    got = rotate(x, positions, theta=100.0)
    pairs = torch.complex(x[..., : DIM // 2], x[..., DIM // 2 :])
    frequency = torch.tensor([1.0, 100.0**-0.5], dtype=torch.float64)
    angle = positions[:, :, None, None] * frequency
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(got, torch.cat((turned.real, turned.imag), -1), atol=1e-12, rtol=0)


def test_attention_refuses_odd_heads() -> None:
    with pytest.raises(ValueError, match="even head size"):
        Attention(dim=6, num_heads=2)
