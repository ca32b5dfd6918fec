"""Inputs for a memory scan, and the comparison of two implementations of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from titans.ops import Gates, MemoryState, ScanOptions


@dataclass
class Inputs:
    """Everything that a scan takes; `leaves()` gives fresh copies that want gradients."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    gates: tuple[Tensor, Tensor, Tensor]
    layers: list[Tensor | tuple[Tensor, Tensor]]
    mask: Tensor | None = None
    write_mask: Tensor | None = None
    options: ScanOptions = field(default_factory=ScanOptions)


def memory_inputs(
    *,
    batch: int = 2,
    time: int = 20,
    heads: int = 2,
    key_dim: int = 4,
    hidden: int = 6,
    value_dim: int = 5,
    depth: int = 2,
    bias: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    largest_step: float = 0.02,
    options: ScanOptions | None = None,
) -> Inputs:
    """Random tokens and weights; some gates are exactly 0 or 1."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    def uniform() -> Tensor:
        return torch.rand(batch, time, heads, generator=g, dtype=dtype)

    widths = [key_dim, *[hidden] * (depth - 1), value_dim]
    layers: list[Tensor | tuple[Tensor, Tensor]] = []
    for fan_in, fan_out in zip(widths[:-1], widths[1:], strict=True):
        weight = normal(heads, fan_out, fan_in) * 0.5
        layers.append((weight, normal(heads, fan_out) * 0.3) if bias else weight)
    alpha, eta, theta = uniform() * 0.3, uniform(), uniform() * largest_step
    alpha[uniform() < 0.05] = 1.0
    alpha[uniform() < 0.1] = 0.0
    eta[uniform() < 0.1] = 0.0
    eta[uniform() < 0.1] = 1.0
    theta[uniform() < 0.1] = 0.0
    return Inputs(
        normal(batch, time, heads, key_dim),
        torch.nn.functional.normalize(normal(batch, time, heads, key_dim), dim=-1),
        normal(batch, time, heads, value_dim),
        (alpha, eta, theta),
        layers,
        options=options or ScanOptions(),
    )


def random_mask(batch: int, time: int, seed: int = 1, share: float = 0.7) -> Tensor:
    """True for about `share` of the tokens."""
    return torch.rand(batch, time, generator=torch.Generator().manual_seed(seed)) < share


def run(
    scan: Callable[..., tuple], inputs: Inputs, chunk_size: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, final state and trace by name; and the gradient of a random projection of them
    by every input, gate and initial weight."""
    leaves = {
        name: t.clone().requires_grad_()
        for name, t in zip(
            ("queries", "keys", "values", "alpha", "eta", "theta"),
            (inputs.queries, inputs.keys, inputs.values, *inputs.gates),
            strict=True,
        )
    }
    layers: list[Tensor | tuple[Tensor, Tensor]] = []
    for number, layer in enumerate(inputs.layers):
        parts = layer if isinstance(layer, tuple) else (layer,)
        fresh = tuple(p.clone().requires_grad_() for p in parts)
        leaves.update({f"layer{number}.{i}": p for i, p in enumerate(fresh)})
        layers.append(fresh if isinstance(layer, tuple) else fresh[0])  # type: ignore[arg-type]
    output, state, trace = scan(
        leaves["queries"],
        leaves["keys"],
        leaves["values"],
        Gates(leaves["alpha"], leaves["eta"], leaves["theta"]),
        MemoryState.initial(layers, inputs.queries.shape[0]),
        chunk_size=chunk_size,
        mask=inputs.mask,
        write_mask=inputs.write_mask,
        options=inputs.options,
    )
    found = {"output": output, **trace.surprise._asdict()}
    found |= {"active": trace.active, "written": trace.written, "factor": trace.factor}
    found |= state.named_tensors()
    g = torch.Generator().manual_seed(7)
    total = torch.zeros((), dtype=torch.float64)
    for tensor in found.values():
        if tensor.is_floating_point():
            weight = torch.randn(tensor.shape, generator=g, dtype=torch.float64)
            if tensor.requires_grad:
                total = total + (tensor.double() * weight).sum()
    names = list(leaves)
    grads = torch.autograd.grad(total, [leaves[n] for n in names], allow_unused=True)
    gradients = {
        n: torch.zeros_like(leaves[n]) if g is None else g
        for n, g in zip(names, grads, strict=True)
    }
    return {n: t.detach() for n, t in found.items()}, gradients


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Equal to `tolerance` times the largest magnitude of each tensor.

    A tensor that is zero but for rounding is held against a thousandth of the largest of all.
    """
    peaks = {n: t.double().abs().max().item() if t.numel() else 0.0 for n, t in expected.items()}
    floor = max(peaks.values()) * 1e-3
    for name, wanted in expected.items():
        assert actual[name].shape == wanted.shape, name
        assert torch.isfinite(wanted.double()).all(), f"{name}: the expectation is not finite"
        if not wanted.numel():
            continue
        error = (actual[name].double() - wanted.double()).abs().max().item()
        assert error <= tolerance * max(peaks[name], floor), f"{name}: off by {error:.1e}"


def assert_parity(
    fast: Callable[..., tuple],
    reference: Callable[..., tuple],
    inputs: Inputs,
    *,
    chunk_size: int,
    tolerance: float = 1e-10,
) -> None:
    """The same outputs, final state, trace and gradients."""
    values, gradients = run(fast, inputs, chunk_size)
    expected_values, expected_gradients = run(reference, inputs, chunk_size)
    assert_close(values, expected_values, tolerance)
    assert_close(gradients, expected_gradients, tolerance)


OPTIONS = {
    "huber": ScanOptions(loss="huber", huber_delta=0.5),
    "lp": ScanOptions(loss="lp", lp_power=3.0),
    "lp1.5": ScanOptions(loss="lp", lp_power=1.5),
    "towards_initial": ScanOptions(forget_towards="initial"),
    "first_layer": ScanOptions(written="first"),
    "last_layer": ScanOptions(written="last", forget_towards="initial"),
    "first_layer_stable": ScanOptions(written="first", forget_towards="initial", step_limit=0.3),
    "no_momentum": ScanOptions(momentum=False),
    "no_momentum_first_layer": ScanOptions(
        momentum=False, written="first", forget_towards="initial", step_limit=0.3
    ),
    "clip": ScanOptions(max_grad_norm=0.5),
    "surprise_loss": ScanOptions(surprise_threshold=3.0),
    "surprise_norm": ScanOptions(surprise_threshold=3.0, surprise_measure="grad_norm"),
    "skip_unsurprising": ScanOptions(surprise_threshold=3.0, skip_unsurprising=True),
    "write_threshold": ScanOptions(write_threshold=0.01),
    "step_limit": ScanOptions(step_limit=0.3),
    "read_before": ScanOptions(read="before"),
    "truncated": ScanOptions(gradient="truncated"),
    "many": ScanOptions(
        loss="huber",
        forget_towards="initial",
        max_grad_norm=1.0,
        step_limit=0.5,
        write_threshold=0.005,
        surprise_threshold=2.0,
        skip_unsurprising=True,
        read="before",
    ),
}
"""Every option of a scan, alone, and many together."""
