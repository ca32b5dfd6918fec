"""The specification: the memory's recurrence token by token, its gradients taken by autograd.

Slow and plain, to be read beside the paper (eq. 12 to 15). It shares no code with
`ops.chunkwise`, which is tested against it; it is itself tested against a two-step example
computed by hand, and by `gradcheck` (tests/ops/test_reference.py). Symbols: docs/notation.md.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from titans.ops.options import ScanOptions
from titans.ops.state import Gates, MemoryState, Surprise


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

        l_t = || M_c(k_t) - v_t ||^2                             loss, at the chunk's start
        S_t = eta_t S_{t-1} - theta_t grad l_t                   momentum of surprise
        M_t = (1 - alpha_t) M_{t-1} + S_t                        memory
        y_t = M_t(q_t)                                           read

    The arguments are those of `ops.scan_memory`, which describes them.
    """
    options = options or ScanOptions()
    batch, time = keys.shape[:2]
    everywhere = torch.ones(batch, time, dtype=torch.bool, device=keys.device)
    mask = everywhere if mask is None else mask
    write_mask = everywhere if write_mask is None else write_mask

    outputs, losses, norms = [], [], []
    for t in range(time):
        token = (queries[:, t], keys[:, t], values[:, t], *(gate[:, t] for gate in gates))
        output, loss, norm, state = _absorb(
            token, state, chunk_size, mask[:, t], write_mask[:, t], options
        )
        outputs.append(output)
        losses.append(loss)
        norms.append(norm)
    output = torch.stack(outputs, dim=1)
    if return_surprise:
        return output, state, Surprise(torch.stack(losses, dim=1), torch.stack(norms, dim=1))
    return output, state


def _absorb(
    token: tuple[Tensor, ...],
    state: MemoryState,
    chunk_size: int,
    real: Tensor,
    may_write: Tensor,
    options: ScanOptions,
) -> tuple[Tensor, Tensor, Tensor, MemoryState]:
    """One token of every row: surprise, write, read."""
    query, key, value, alpha, eta, theta = token
    if not options.momentum:
        eta = torch.zeros_like(eta)

    # A real token that stands on a chunk border opens a new chunk.
    opens = real & (state.position % chunk_size == 0)
    start = _where(opens, state.weights, state.chunk_weights)

    loss, gradient, error = _surprise(key, value, start, options)
    written = _written(state.weights, options)
    gradient = tuple(
        g if is_written else torch.zeros_like(g)
        for g, is_written in zip(gradient, written, strict=True)
    )
    norm = torch.stack([g.flatten(2).norm(dim=-1) for g in gradient]).norm(dim=0).detach()

    # Which tokens write, and how strongly.
    active = (real & may_write)[:, None].expand_as(theta)
    if options.write_threshold is not None:
        active = active & (theta >= options.write_threshold)
    if options.surprise_threshold is not None:
        measure = loss.detach() if options.surprise_measure == "loss" else norm
        surprised = measure > options.surprise_threshold
        theta = torch.where(surprised, theta, torch.zeros_like(theta))
        if options.skip_unsurprising:
            active = active & surprised
    if options.max_grad_norm is not None:
        tiny = torch.finfo(norm.dtype).tiny
        theta = theta * (options.max_grad_norm / norm.clamp_min(tiny)).clamp_max(1.0)
    if options.step_limit is not None:
        theta = theta * _stabilise(theta, alpha, eta, state, start, gradient, error, options)

    momentum = tuple(
        _per_weight(eta, s) * s - _per_weight(theta, g) * g
        for s, g in zip(state.momentum, gradient, strict=True)
    )
    weights = tuple(
        (1 - _per_weight(alpha, w)) * w + s for w, s in zip(state.weights, momentum, strict=True)
    )
    if options.forget_towards == "initial":
        weights = tuple(
            w + _per_weight(alpha, w) * w0
            for w, w0 in zip(weights, state.initial_weights, strict=True)
        )
    weights = _keep(written, _where(active, weights, state.weights), state.weights)
    momentum = _keep(written, _where(active, momentum, state.momentum), state.momentum)
    if not options.momentum:
        momentum = state.momentum

    read_from = weights if options.read == "after" else state.weights
    output = _memory(query, read_from, options.residual)
    shown = real[:, None, None]
    return (
        torch.where(shown, output, torch.zeros_like(output)),
        torch.where(real[:, None], loss, torch.zeros_like(loss)),
        torch.where(real[:, None], norm, torch.zeros_like(norm)),
        MemoryState(
            weights=weights,
            momentum=momentum,
            # A full chunk is closed at once: what is kept is where the next one begins.
            chunk_weights=_where(real & ((state.position + 1) % chunk_size == 0), weights, start),
            initial_weights=state.initial_weights,
            position=state.position + real.long(),
        ),
    )


def _written(weights: tuple[Tensor, ...], options: ScanOptions) -> list[bool]:
    """Per tensor: is it written? A bias belongs to the weight before it."""
    layers = options.written_layers(sum(w.ndim == 4 for w in weights))
    numbers = [sum(w.ndim == 4 for w in weights[: i + 1]) - 1 for i in range(len(weights))]
    return [layers[number] for number in numbers]


def _keep(
    written: list[bool], new: tuple[Tensor, ...], old: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The new tensors of written layers, the old ones of all others."""
    return tuple(n if w else o for w, n, o in zip(written, new, old, strict=True))


def _stabilise(
    theta: Tensor,
    alpha: Tensor,
    eta: Tensor,
    state: MemoryState,
    start: tuple[Tensor, ...],
    gradient: tuple[Tensor, ...],
    error: Tensor,
    options: ScanOptions,
) -> Tensor:
    """The factor on theta that keeps a chunk of stale gradients from overshooting.

    To first order, a write with step theta undoes `theta * gain` of its own error, and momentum
    repeats it, 1 / (1 - eta) times in the end. The chunk so far moves that error along the
    gradient by `<gradient, M_hat - M_c>`, where M_hat is where the memory would end without this
    write: all momentum added that is still to come, as if eta stayed as it is. What is written is
    the limited step times the share of the error that is left.
    """
    assert options.step_limit is not None
    with torch.no_grad():
        size = error.square().sum(-1).clamp_min(torch.finfo(error.dtype).tiny)
        gain = 2 * sum(g.flatten(2).square().sum(-1) for g in gradient) / size
        largest = options.step_limit * (1 - eta)
        limit = (largest / (theta * gain).clamp_min(torch.finfo(theta.dtype).tiny)).clamp(max=1.0)
        # eta (1 + eta + eta^2 + ...); momentum is followed for a hundred tokens.
        in_the_end = eta * (1 + eta / (1 - eta).clamp_min(0.01))
        moved = torch.zeros_like(theta)
        for w, s, w0, w_c, g in zip(
            state.weights, state.momentum, state.initial_weights, start, gradient, strict=True
        ):
            rest = w0 if options.forget_towards == "initial" else torch.zeros_like(w0)
            keep = 1 - _per_weight(alpha, w)
            before = rest + keep * (w - rest) + _per_weight(in_the_end, s) * s
            moved = moved + (g * (before - w_c)).flatten(2).sum(-1)
        return limit * (1 + 2 * moved / size)


def _surprise(
    key: Tensor, value: Tensor, weights: tuple[Tensor, ...], options: ScanOptions
) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """The loss at `weights`, its gradient by autograd, and its derivative by the output."""
    with torch.enable_grad():
        # Weights outside every graph get one of their own, so that autograd can differentiate.
        truncated = options.gradient == "truncated"
        at = tuple(
            w if w.requires_grad and not truncated else w.detach().requires_grad_() for w in weights
        )
        output = _memory(key, at, options.residual)
        loss = _inner_loss(output - value, options)
        *gradient, error = torch.autograd.grad(loss.sum(), (*at, output), create_graph=True)
    if not torch.is_grad_enabled():
        return loss.detach(), tuple(g.detach() for g in gradient), error.detach()
    return loss, tuple(gradient), error


def _memory(x: Tensor, weights: tuple[Tensor, ...], residual: bool) -> Tensor:
    """M(x): an MLP with SiLU between its layers; `x` is `[batch, heads, dim]`."""
    hidden, started = x, False
    for weight in weights:
        if weight.ndim == 3:
            hidden = hidden + weight
            continue
        if started:
            hidden = torch.nn.functional.silu(hidden)
        hidden = torch.einsum("bhoi,bhi->bho", weight, hidden)
        started = True
    return hidden + x if residual else hidden


def _inner_loss(error: Tensor, options: ScanOptions) -> Tensor:
    """l(M; k, v), summed over features."""
    size = error.abs()
    if options.loss == "huber":
        delta = options.huber_delta
        return torch.where(size <= delta, error.square(), 2 * delta * size - delta**2).sum(-1)
    if options.loss == "lp":
        return size.pow(options.lp_power).sum(-1)
    return error.square().sum(-1)


def _per_weight(gate: Tensor, weight: Tensor) -> Tensor:
    """Shape a gate `[batch, heads]` so that it multiplies a weight `[batch, heads, ...]`."""
    return gate.reshape(*gate.shape, *[1] * (weight.ndim - 2))


def _where(
    condition: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Choose weights row by row (`[batch]`) or head by head (`[batch, heads]`)."""
    return tuple(
        torch.where(condition.reshape(*condition.shape, *[1] * (n.ndim - condition.ndim)), n, o)
        for n, o in zip(new, old, strict=True)
    )
