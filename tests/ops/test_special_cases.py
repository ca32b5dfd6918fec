"""Known rules as special cases, each against code written from its own definition."""

import pytest
import torch
from torch import Tensor

from titans.ops import Gates, MemoryState, ScanOptions, scan_memory

TIME, DIM = 24, 5


def tokens(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(TIME, DIM, generator=g, dtype=torch.float64) for _ in range(3))
    return q, torch.nn.functional.normalize(k, dim=-1), v


def constant_gates(alpha: float, eta: float, theta: Tensor | float) -> Gates:
    ones = torch.ones(1, TIME, 1, dtype=torch.float64)
    return Gates(ones * alpha, ones * eta, ones * theta)


def titans(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    layers: list[Tensor],
    chunk_size: int = 1,
    options: ScanOptions | None = None,
) -> tuple[Tensor, MemoryState]:
    state = MemoryState.initial([w[None] for w in layers], 1)
    batched = [t[None, :, None, :] for t in (q, k, v)]
    output, state, _ = scan_memory(*batched, gates, state, chunk_size=chunk_size, options=options)
    return output[0, :, 0], state


def test_delta_rule() -> None:
    """Widrow-Hoff: W += beta (v - W k) k^T with beta = 2 theta."""
    q, k, v = tokens()
    weight = torch.zeros(DIM, DIM, dtype=torch.float64)
    expected = []
    for t in range(TIME):
        weight = weight + 0.6 * torch.outer(v[t] - weight @ k[t], k[t])
        expected.append(weight @ q[t])
    output, state = titans(
        q, k, v, constant_gates(0, 0, 0.3), [torch.zeros(DIM, DIM, dtype=torch.float64)]
    )
    torch.testing.assert_close(output, torch.stack(expected))
    torch.testing.assert_close(state.weights[0][0, 0], weight)


def test_gated_delta_rule_as_published() -> None:
    """S_t = S_{t-1} g (I - beta k k^T) + beta v k^T, with beta = 2 theta / (1 - alpha) and values
    scaled by (1 - alpha): the published rule takes its error at the decayed memory."""
    alpha, theta = 0.1, 0.25
    q, k, v = tokens()
    keep, beta = 1 - alpha, 2 * theta / (1 - alpha)
    eye = torch.eye(DIM, dtype=torch.float64)
    memory = torch.zeros(DIM, DIM, dtype=torch.float64)
    expected = []
    for t in range(TIME):
        outer = torch.outer(k[t], k[t])
        memory = keep * memory @ (eye - beta * outer) + beta * torch.outer(keep * v[t], k[t])
        expected.append(memory @ q[t])
    output, _ = titans(
        q, k, v, constant_gates(alpha, 0, theta), [torch.zeros(DIM, DIM, dtype=torch.float64)]
    )
    torch.testing.assert_close(output, torch.stack(expected))


@pytest.mark.parametrize("batch_size", [1, 8])
def test_ttt_mlp(batch_size: int) -> None:
    """Test-time training of a two-layer MLP by plain mini-batch SGD, with torch's own optimiser."""
    q, k, v = tokens()
    g = torch.Generator().manual_seed(3)
    first = torch.randn(7, DIM, generator=g, dtype=torch.float64) * 0.5
    second = torch.randn(DIM, 7, generator=g, dtype=torch.float64) * 0.5
    net = torch.nn.Sequential(
        torch.nn.Linear(DIM, 7, bias=False, dtype=torch.float64),
        torch.nn.SiLU(),
        torch.nn.Linear(7, DIM, bias=False, dtype=torch.float64),
    )
    with torch.no_grad():
        net[0].weight.copy_(first)
        net[2].weight.copy_(second)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.02)
    ends = []
    for begin in range(0, TIME, batch_size):
        end = begin + batch_size
        optimiser.zero_grad()
        (net(k[begin:end]) - v[begin:end]).square().sum().backward()
        optimiser.step()
        ends.append(net(q[end - 1]).detach())
    output, _ = titans(q, k, v, constant_gates(0, 0, 0.02), [first, second], batch_size)
    torch.testing.assert_close(output[batch_size - 1 :: batch_size], torch.stack(ends))


def test_momentum_is_heavy_ball() -> None:
    """Chunk 1 with constant eta and theta is torch's SGD with momentum, one token a step."""
    q, k, v = tokens()
    weight = torch.nn.Parameter(torch.zeros(DIM, DIM, dtype=torch.float64))
    optimiser = torch.optim.SGD([weight], lr=0.05, momentum=0.7)
    expected = []
    for t in range(TIME):
        optimiser.zero_grad()
        (weight @ k[t] - v[t]).square().sum().backward()
        optimiser.step()
        expected.append((weight @ q[t]).detach())
    output, _ = titans(
        q, k, v, constant_gates(0, 0.7, 0.05), [torch.zeros(DIM, DIM, dtype=torch.float64)]
    )
    torch.testing.assert_close(output, torch.stack(expected))


@pytest.mark.parametrize("chunk_size", [1, 8])
def test_erase_everything(chunk_size: int) -> None:
    """alpha = 1, eta = 0: only the present token's gradient is left, M_t = -theta_t G_t."""
    q, k, v = tokens()
    start = torch.randn(DIM, DIM, dtype=torch.float64)
    output, state = titans(q, k, v, constant_gates(1, 0, 0.3), [start], chunk_size)
    weight, expected = start, []
    for t in range(TIME):
        if t % chunk_size == 0:
            chunk_start = weight
        weight = -0.3 * 2 * torch.outer(chunk_start @ k[t] - v[t], k[t])
        expected.append(weight @ q[t])
    torch.testing.assert_close(output, torch.stack(expected))
    torch.testing.assert_close(state.weights[0][0, 0], weight)


def test_linear_attention_when_one_chunk_starts_at_zero() -> None:
    """One chunk, M_0 = 0, no forgetting, no momentum: all errors are -v, so the memory is the
    unnormalised linear attention sum_i 2 theta v_i k_i^T."""
    q, k, v = tokens()
    output, _ = titans(
        q, k, v, constant_gates(0, 0, 0.5), [torch.zeros(DIM, DIM, dtype=torch.float64)], TIME
    )
    expected = torch.tril(q @ k.T) @ v
    torch.testing.assert_close(output, expected)
