"""What a memory scan can be asked to do beyond the plain recurrence. Symbols: docs/notation.md."""

from dataclasses import dataclass
from typing import Literal, get_args

InnerLoss = Literal["l2", "huber", "lp"]
ForgetTowards = Literal["zero", "initial"]
ReadOrder = Literal["after", "before"]
GradientMode = Literal["full", "truncated"]
SurpriseMeasure = Literal["loss", "grad_norm"]
WrittenLayers = Literal["all", "first", "last"]
WRITTEN_LAYERS: tuple[WrittenLayers, ...] = get_args(WrittenLayers)


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """Options of `scan_memory`. The defaults add nothing to the paper's recurrence (eq. 12 to 15).

    Factors that scale a write (clipping, thresholds, the stabiliser) are constants for the outer
    gradient: it flows through the gates, keys and values that they scale, not through the norms
    and products that they are computed from.
    """

    loss: InnerLoss = "l2"
    """What the memory minimises at each token: squared error, Huber, or the sum of |error|^p."""
    huber_delta: float = 1.0
    """Errors beyond this count linearly (`loss="huber"`)."""
    lp_power: float = 3.0
    """The power p >= 1 of `loss="lp"`."""
    residual: bool = False
    """The memory computes `M(k) + k` instead of `M(k)`."""
    written: WrittenLayers = "all"
    """Which layers are the memory: all (the paper), or the first or the last alone. The others stay
    as they are, nothing is written to them and nothing forgotten; errors still pass through."""
    momentum: bool = True
    """False: eta is taken for zero, whatever it is, and the state's momentum stays as it is; the
    scan then carries half as many numbers."""
    forget_towards: ForgetTowards = "zero"
    """What forgetting pulls the weights to: zero (the paper) or the initial weights."""
    max_grad_norm: float | None = None
    """Clip each token's gradient (over all layers of a head) to this norm."""
    surprise_threshold: float | None = None
    """A token whose surprise is at or below this adds no gradient."""
    surprise_measure: SurpriseMeasure = "loss"
    """What `surprise_threshold` is compared with."""
    skip_unsurprising: bool = False
    """A token below `surprise_threshold` is a full no-op: nothing is forgotten either."""
    write_threshold: float | None = None
    """A token whose step size (theta) is below this is a full no-op."""
    step_limit: float | None = None
    """Stabiliser. A write undoes at most this share of its own error, and only what the writes
    before it in its chunk have left of that error (docs/decisions/0003-stabiliser.md). This is
    first order: exact for one layer. Layers multiply, so that a deep memory can still overshoot if
    values are far from what it answers (1e4 at depth 4 was read back as 1e12; in float32 a row
    is lost if its loss overflows: values of 1e12 at depth 2, 1e6 at depth 4). Keep values near the
    size of a first answer, as the layer's `value_norm` does."""
    skip_nonfinite: bool = False
    """Leave out a token with NaN or infinity, as if it were padding. Otherwise its row is lost from
    there on: outputs and state are NaN, so that nobody takes them for answers. Outputs before the
    token are the same either way."""
    read: ReadOrder = "after"
    """Read each token after its own write (eq. 15) or before it."""
    gradient: GradientMode = "full"
    """`truncated` takes inner gradients at detached weights: no second order through them."""
    compiled: bool = False
    """Run the chunk step through `torch.compile` (first call is slow, later ones faster)."""

    def __post_init__(self) -> None:
        _one_of("loss", self.loss, ("l2", "huber", "lp"))
        _one_of("written", self.written, WRITTEN_LAYERS)
        _one_of("forget_towards", self.forget_towards, ("zero", "initial"))
        _one_of("read", self.read, ("after", "before"))
        _one_of("gradient", self.gradient, ("full", "truncated"))
        _one_of("surprise_measure", self.surprise_measure, ("loss", "grad_norm"))
        _positive("huber_delta", self.huber_delta)
        _positive("max_grad_norm", self.max_grad_norm)
        _positive("step_limit", self.step_limit)
        if self.lp_power < 1:
            raise ValueError(f"lp_power must be at least 1, got {self.lp_power}")
        if self.skip_unsurprising and self.surprise_threshold is None:
            raise ValueError("skip_unsurprising=True needs a surprise_threshold")

    def written_layers(self, depth: int) -> tuple[bool, ...]:
        """Per layer of a memory of so many: is it written?"""
        only = {"first": 0, "last": depth - 1}.get(self.written)
        return tuple(only is None or layer == only for layer in range(depth))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"{name} must be above 0, or None to switch it off; got {value}")
