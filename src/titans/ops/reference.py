"""The specification: eq. 12 to 15 of the paper, token by token, with gradients from autograd.

Slow and plain, to be read beside the paper, line by line. It has no options: those are in
`ops.reference_options`, which is built on it. Both share no code with `ops.scan`, which is tested
against them; they are themselves tested against a two-step example computed by hand, and by
finite differences (tests/ops/test_reference.py). Symbols: docs/notation.md.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from titans.ops.state import Gates, MemoryState, Surprise

Tensors = tuple[Tensor, ...]


def scan_memory(
    queries: Float[Tensor, "batch time heads key_dim"],
    keys: Float[Tensor, "batch time heads key_dim"],
    values: Float[Tensor, "batch time heads value_dim"],
    gates: Gates,
    state: MemoryState,
    *,
    chunk_size: int,
) -> tuple[Float[Tensor, "batch time heads value_dim"], MemoryState, Surprise]:
    """Write `keys -> values` into the memory, token by token, and read it with `queries`.

        l_t = || M_c(k_t) - v_t ||^2                             eq. 12, at the chunk's start
        S_t = eta_t S_{t-1} - theta_t grad l_t                   eq. 14, past surprise
        M_t = (1 - alpha_t) M_{t-1} + S_t                        eq. 13, the memory
        y_t = M_t(q_t)                                           eq. 15, the read

    Returns:
        The reads y, the state after the last token, and each token's l_t and |grad l_t|.
    """
    outputs, losses, norms = [], [], []
    for t in range(keys.shape[1]):
        query, key, value = queries[:, t], keys[:, t], values[:, t]
        alpha, eta, theta = (gate[:, t] for gate in gates)

        opens = state.position % chunk_size == 0
        start = choose(opens, state.weights, state.chunk_weights)  # M_c
        loss, gradient = surprise(key, value, start)  # eq. 12
        momentum = push(state.momentum, gradient, eta, theta)  # eq. 14
        weights = move(state.weights, momentum, alpha)  # eq. 13
        outputs.append(answer(query, weights))  # eq. 15

        losses.append(loss)
        norms.append(norm_of(gradient))
        closes = (state.position + 1) % chunk_size == 0
        state = MemoryState(
            weights=weights,
            momentum=momentum,
            # A full chunk is closed at once: its place is taken by where the next one begins.
            chunk_weights=choose(closes, weights, start),
            initial_weights=state.initial_weights,
            position=state.position + 1,
        )
    found = Surprise(torch.stack(losses, dim=1), torch.stack(norms, dim=1))
    return torch.stack(outputs, dim=1), state, found


def answer(x: Tensor, weights: Tensors) -> Tensor:
    """M(x) for `x` `[batch heads dim]`: an MLP with SiLU between its layers."""
    hidden, is_first = x, True
    for weight in weights:
        if weight.ndim == 3:  # a bias
            hidden = hidden + weight
            continue
        hidden = hidden if is_first else torch.nn.functional.silu(hidden)
        hidden = torch.einsum("bhoi,bhi->bho", weight, hidden)
        is_first = False
    return hidden


def squared_error(error: Tensor) -> Tensor:
    """The paper's inner loss, summed over features."""
    return error.square().sum(-1)


def surprise(
    key: Tensor,
    value: Tensor,
    weights: Tensors,
    network: Callable[[Tensor, Tensors], Tensor] = answer,
    inner_loss: Callable[[Tensor], Tensor] = squared_error,
) -> tuple[Tensor, Tensors]:
    """The loss of every row and head, and its gradient by the weights."""

    def total(at: Tensors) -> tuple[Tensor, Tensor]:
        loss = inner_loss(network(key, at) - value)
        return loss.sum(), loss

    gradient, loss = torch.func.grad(total, has_aux=True)(weights)
    return loss, gradient


def push(momentum: Tensors, gradient: Tensors, eta: Tensor, theta: Tensor) -> Tensors:
    """S_t, from S_{t-1} and the gradient."""
    pairs = zip(momentum, gradient, strict=True)
    return tuple(per_weight(eta, s) * s - per_weight(theta, g) * g for s, g in pairs)


def move(weights: Tensors, momentum: Tensors, alpha: Tensor) -> Tensors:
    """M_t, from M_{t-1} and S_t."""
    pairs = zip(weights, momentum, strict=True)
    return tuple((1 - per_weight(alpha, w)) * w + s for w, s in pairs)


def norm_of(gradient: Tensors) -> Tensor:
    """The norm over all weights of a head, a constant for the outer gradient."""
    return torch.stack([g.flatten(2).norm(dim=-1) for g in gradient]).norm(dim=0).detach()


def per_weight(gate: Tensor, weight: Tensor) -> Tensor:
    """Shape `[batch]` or `[batch heads]` so that it multiplies a weight `[batch heads ...]`."""
    return gate.reshape(*gate.shape, *[1] * (weight.ndim - gate.ndim))


def choose(condition: Tensor, yes: Tensors, no: Tensors) -> Tensors:
    """Weights row by row, or head by head."""
    pairs = zip(yes, no, strict=True)
    return tuple(torch.where(per_weight(condition, y), y, n) for y, n in pairs)
