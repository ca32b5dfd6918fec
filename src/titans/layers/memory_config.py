"""`MemoryConfig`: every setting of a neural memory, under one name each.

The names are the same in `NeuralMemory(dim, depth=1)`, in `TitansConfig.memory`, in YAML
(`model.memory.depth: 1`), on the command line (`--set model.memory.depth=1`) and in `config.json`.
docs/notation.md has the table of symbols.
"""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal, TypedDict

from titans.errors import ConfigError
from titans.ops import ScanOptions
from titans.ops.options import (
    ForgetTowards,
    GradientMode,
    InnerLoss,
    ReadOrder,
    SurpriseMeasure,
    WrittenLayers,
)
from titans.settings import (
    Count,
    NotNegative,
    Positive,
    Range,
    Share,
    Whole,
    check_ranges,
    normalise,
)

NetworkKind = Literal["mlp", "gated", "swiglu", "factorised"]
MemoryInit = Literal["learned", "random", "zero_first", "zero_last"]
Rule = Literal["chunk", "online", "least_squares", "ttt", "delta", "gated_delta", "kda"]
GateKind = Literal["token", "chunk", "constant"]
Power = Annotated[float, Range(1)]

DELTA_RULES = ("delta", "gated_delta", "kda")
"""Rules of one matrix that starts at zero, whose gradients are taken at every token:

    delta        M_t = M_{t-1} - beta_t (M_{t-1} k - v) k^T                          DeltaNet
    gated_delta  M_t = a_t M_{t-1} - beta_t (a_t M_{t-1} k - v) k^T, a = 1 - alpha   Gated DeltaNet
    kda          the same with M diag(a_t), one a per channel of the key       Kimi Delta Attention
"""
OWN_RULES = ("chunk", "online", "least_squares")
"""Rules that leave every setting to the user; the others are baselines."""
EXACT_RULES = ("online", "least_squares")
"""Of these, the rules that take each token's error at that token."""
LARGEST_STEP = 1.5
"""Of `rule: online`. The memory is a contraction up to 1.6 (docs/decisions/0006-online-rule.md)."""
NUM_HEADS = 4
"""Memories side by side in a layer of its own, unless another number is given."""


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """Settings of a `NeuralMemory`. Every field has a default that works."""

    num_heads: Count | None = None
    """Memories side by side; None: as many as the model has attention heads, 4 without a model."""
    head_dim: Count | None = None
    """Width of a head's queries and keys; None: the layer's width divided by `num_heads`."""
    value_dim: Count | None = None
    """Width of a head's values; None: `head_dim`."""
    features: Count | None = None
    """The memory reads this many learned products of its key, `unit((A k) * (B k))`, in place of
    the key: a larger state that reads more sharply, for recall of many pairs. None: the key."""
    chunk_size: Count = 16
    """Tokens whose gradients are taken at the same weights; 1 is the exact online rule, larger is
    faster."""

    network: NetworkKind = "mlp"
    """The network that is written: an MLP, or a gated, SwiGLU or low-rank (factorised) one."""
    depth: Count = 1
    """Layers of an MLP; 1 is a matrix."""
    expansion: Positive = 2.0
    """Hidden width, or rank, as a multiple of `head_dim`."""
    bias: bool = False
    """Give each layer of an MLP a bias, a part of the memory like its weight."""
    residual: bool = False
    """An MLP answers `M(k) + k` instead of `M(k)`."""
    init: MemoryInit | None = None
    """The initial weights: learned; random and fixed; learned with a last layer of zeros
    (zero_last); or fixed with a first layer of zeros and orthogonal ones after it (zero_first), so
    that writes go into the first, nearly as into a matrix. With either of the last two an empty
    memory reads zero. None: learned, and random for an MLP of three layers or more, which otherwise
    grow in training until a write overshoots (docs/decisions/0003-stabiliser.md)."""
    written: WrittenLayers = "all"
    """Which layers of an MLP are written: all (the paper), or only the first or the last. The
    others are ordinary weights, learned or fixed by `init`."""

    rule: Rule | None = None
    """How a write changes the memory, with momentum and forgetting (Titans). online: each token
    corrects the error that the memory makes at that token, in a form that no gates can make run
    away (docs/decisions/0006-online-rule.md); `chunk_size` matters only from depth 2 on. chunk:
    gradients at the start of each chunk. least_squares: a matrix that fits all pairs seen, for keys
    that resemble each other; without momentum (docs/decisions/0008-least-squares.md). Or a
    published rule as a baseline, which sets most of the fields below itself: ttt, delta,
    gated_delta, kda. None: online, and chunk with a setting that only chunk has (another network,
    biases, `surprise_threshold`, ...)."""
    loss: InnerLoss = "l2"
    """What the memory minimises at each token: squared error, Huber, or the sum of |error|^p."""
    huber_delta: Positive = 1.0
    """Errors beyond this count linearly (`loss: huber`)."""
    lp_power: Power = 3.0
    """The power p of `loss: lp`."""
    forget_towards: ForgetTowards = "initial"
    """What forgetting pulls the weights to: the initial weights, or zero (the paper). A deep memory
    at zero never learns again (docs/decisions/0004-forgetting.md)."""
    step_limit: Positive | None = 1.0
    """Stabiliser of `rule: chunk`: the largest share of its own error that a write may undo; None:
    off (the paper).
    It keeps a memory stable at every chunk size (docs/decisions/0003-stabiliser.md)."""
    max_grad_norm: Positive | None = None
    """Clip each token's gradient to this norm; None: off."""
    skip_nonfinite: bool = False
    """Leave out a token with NaN or infinity, as if it were padding; false: its row is lost from
    there on (NaN), so that nobody takes it for an answer."""
    read: ReadOrder = "after"
    """Read each token after its own write (eq. 15) or before it."""
    gradient: GradientMode = "full"
    """The outer gradient through the writes: full (second order) or truncated."""
    compiled: bool = False
    """Run the chunk step through `torch.compile`: the first call is slow, later ones are faster."""

    gates: GateKind = "token"
    """Gates from each token; from the first token of a chunk, held for the whole chunk; or constant
    at their initial values."""
    gate_conv_size: Whole = 0
    """Width of a causal convolution through which gates see the tokens before; 0: a gate sees only
    its own token, and cannot tell the same token in two places apart (docs/log/memory.md)."""
    step_init: NotNegative | None = None
    """Initial step, what a write comes to with the momentum that repeats it: theta / (1 - eta), or
    with `rule: online` the share of the largest safe rate, or with `rule: least_squares` the weight
    of a token. None: 0.4 online, 1 for least squares, 0.1 otherwise."""
    step_max: NotNegative | None = None
    """Largest step. None: 1.5 online, 10 for least squares, 1 otherwise."""
    forgetting: bool = True
    """Forgetting (alpha in eq. 13); false: alpha = 0."""
    forget_init: Share = 5e-4
    """Initial alpha. Keep 1 / alpha above the lengths trained on: faster forgetting than that is
    never unlearned."""
    momentum: bool = True
    """Past surprise carries on (eta in eq. 14); false: eta = 0."""
    momentum_init: Share = 0.5
    """Initial eta."""

    surprise_threshold: NotNegative | None = None
    """Surprise-gated writing: a token that surprises no more than this is not written, and nothing
    is forgotten; None: off."""
    surprise_measure: SurpriseMeasure = "loss"
    """What `surprise_threshold` is compared with: the token's loss or its gradient's norm."""
    write_threshold: NotNegative | None = None
    """Outside training, a token whose step size (theta) is below this is not written, and nothing
    is forgotten; None: off."""
    train_with_threshold: bool = False
    """`write_threshold` holds in training, too: for gates that are trained already."""

    conv_size: Whole = 4
    """Width of the causal convolutions on queries, keys and values; 0: none."""
    key_lag: Whole | None = None
    """Which token the convolution of the keys reads before training: 0 the present one, 1 the one
    before (the memory then maps each token to its successor). None: the present one, and enough of
    earlier tokens to bind neighbours of any kind. Training changes it."""
    value_norm: Positive | None = 4.0
    """Length that every value is brought to, halved for every layer of an MLP beyond two; None: as
    projected (the paper). What is read is normalised, so nothing else keeps values from growing in
    training (docs/decisions/0003-stabiliser.md). 4 is four times what an untrained memory
    answers."""

    def __post_init__(self) -> None:
        normalise(self)
        check_ranges(self)
        if self.key_lag is not None and self.key_lag >= self.conv_size:
            raise ConfigError(
                f"key_lag must be below conv_size ({self.conv_size}), which is how far keys can "
                f"look back; got {self.key_lag}"
            )
        self._check_steps()
        if self.gate_conv_size and self.gates == "constant":
            raise ConfigError(
                f"gate_conv_size={self.gate_conv_size} has no effect with gates='constant'; "
                "choose token or chunk"
            )
        if self.network != "mlp":
            self.check_network(f"network={self.network!r}")
        if self.init == "zero_first" and self.depth < 2:
            raise ConfigError("init='zero_first' needs a depth of 2 or more, got 1")
        if self.rule in EXACT_RULES and (names := self._of_chunks()):
            raise ConfigError(
                f"{names[0]}={getattr(self, names[0])!r} needs rule='chunk'; got rule={self.rule!r}"
            )
        if self.rule == "least_squares" and self.depth > 1:
            raise ConfigError(f"rule='least_squares' needs a depth of 1, got {self.depth}")
        if self.written != "all" and self.rule not in ("chunk", None):
            raise ConfigError(
                f"written={self.written!r} has no effect with rule={self.rule!r}; use all"
            )
        # The one layer that is written is never reached: zeros before or after it stay zeros.
        unreached = (("first", "zero_last"), ("last", "zero_first"))
        if self.depth > 1 and (self.written, self.init) in unreached:
            raise ConfigError(
                f"written={self.written!r} with init={self.init!r}: no error reaches the layer "
                "that is written; choose another init"
            )

    def _check_steps(self) -> None:
        start, largest = self.steps
        if start > largest:
            raise ConfigError(f"step_init must be between 0 and step_max ({largest}), got {start}")
        if self.chosen_rule == "online" and largest > LARGEST_STEP:
            raise ConfigError(
                f"step_max must be at most {LARGEST_STEP} with rule='online', which is bounded up "
                f"to there; got {largest}"
            )

    @property
    def steps(self) -> tuple[float, float]:
        """`step_init` and `step_max`, with what None stands for."""
        by_rule = {"online": (0.4, LARGEST_STEP), "least_squares": (1.0, 10.0)}
        start, largest = by_rule.get(self.chosen_rule, (0.1, 1.0))
        largest = largest if self.step_max is None else self.step_max
        return min(start, largest) if self.step_init is None else self.step_init, largest

    def _of_chunks(self) -> list[str]:
        """Settings that are not at their defaults and that the online rule does not have."""
        defaults = {f.name: f.default for f in fields(self)}
        return [name for name in _OF_CHUNKS if getattr(self, name) != defaults[name]]

    @property
    def chosen_rule(self) -> Rule:
        """The rule, with what None stands for."""
        return self.rule or ("chunk" if self._of_chunks() else "online")

    def check_network(self, network: str) -> None:
        """Refuse settings of an MLP for another network."""
        if self.rule in EXACT_RULES:
            raise ConfigError(
                f"rule={self.rule!r} needs an MLP, and there is {network}; use 'chunk'"
            )
        defaults = {f.name: f.default for f in fields(self)}
        for name in ("depth", "bias", "residual", "written"):
            if getattr(self, name) != defaults[name]:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} needs an MLP, and there is {network}; "
                    f"leave it at {defaults[name]!r}"
                )
        if self.init == "zero_first":
            raise ConfigError(f"init='zero_first' needs an MLP, and there is {network}")

    def resolve(self, dim: int, num_heads: int = NUM_HEADS) -> "MemoryConfig":
        """With the sizes and the start that None stands for, in a layer of width `dim`."""
        heads = self.num_heads or num_heads
        if self.head_dim is None and dim % heads:
            raise ConfigError(
                f"the width ({dim}) is no multiple of the memory's num_heads ({heads}): "
                "give another num_heads, or head_dim"
            )
        init = self.init or ("learned" if self.depth <= 2 else "random")
        start, largest = self.steps
        chosen = replace(
            self,
            rule=self.chosen_rule,
            num_heads=heads,
            head_dim=self.head_dim or dim // heads,
            init=init,
            step_init=start,
            step_max=largest,
            momentum=self.momentum and self.rule != "least_squares",
        )
        value_dim = chosen.value_dim or chosen.head_dim
        if value_dim != chosen.head_dim and (self.residual or self.network != "mlp"):
            what = "a residual memory" if self.residual else f"network={self.network!r}"
            raise ConfigError(
                f"{what} needs values as wide as keys: head_dim is {chosen.head_dim}, value_dim "
                f"{value_dim}"
            )
        return chosen

    def as_published(self) -> "MemoryConfig":
        """With what the rule itself sets, if it is one of the published rules."""
        if self.rule in (*OWN_RULES, None):
            return self
        kept = {name: getattr(self, name) for name in _LEFT_OPEN}
        # The published rates: beta = 2 theta is a sigmoid; TTT-MLP's is 0.1 times a sigmoid.
        if self.rule == "ttt":
            kept |= {"step_init": 0.05, "step_max": 0.1, "forgetting": False}
        else:  # DELTA_RULES
            kept |= {"depth": 1, "chunk_size": 1, "init": "zero_last"}
            kept |= {"step_init": 0.25, "step_max": 0.5, "forgetting": self.rule != "delta"}
        return MemoryConfig(**kept, **_PLAIN)

    def scan_options(self, *, training: bool) -> ScanOptions:
        """What `titans.ops` is asked to do, in training or outside it."""
        holds = self.train_with_threshold or not training
        return ScanOptions(
            loss=self.loss,
            huber_delta=self.huber_delta,
            lp_power=self.lp_power,
            residual=self.residual,
            written=self.written,
            momentum=self.momentum,
            forget_towards=self.forget_towards,
            max_grad_norm=self.max_grad_norm,
            surprise_threshold=self.surprise_threshold,
            surprise_measure=self.surprise_measure,
            skip_unsurprising=self.surprise_threshold is not None,
            write_threshold=self.write_threshold if holds else None,
            step_limit=None if self.chosen_rule in EXACT_RULES else self.step_limit,
            skip_nonfinite=self.skip_nonfinite,
            read=self.read,
            gradient=self.gradient,
            compiled=self.compiled,
        )


_LEFT_OPEN = (
    "rule num_heads head_dim value_dim features chunk_size depth expansion conv_size key_lag "
    "gate_conv_size write_threshold train_with_threshold skip_nonfinite compiled"
).split()
"""What a published rule leaves to the user."""
_OF_CHUNKS = (
    "network bias residual written loss step_limit max_grad_norm gradient compiled "
    "surprise_threshold"
).split()
"""Settings of `rule: chunk` alone."""
_PLAIN = {"momentum": False, "forget_towards": "zero", "step_limit": None, "value_norm": None}


class MemorySettings(TypedDict, total=False):
    """The fields of `MemoryConfig` as keyword arguments, for type checkers and editors."""

    num_heads: Count | None
    head_dim: Count | None
    value_dim: Count | None
    features: Count | None
    chunk_size: Count
    network: NetworkKind
    depth: Count
    expansion: Positive
    bias: bool
    residual: bool
    init: MemoryInit | None
    written: WrittenLayers
    rule: Rule | None
    loss: InnerLoss
    huber_delta: Positive
    lp_power: Power
    forget_towards: ForgetTowards
    step_limit: Positive | None
    max_grad_norm: Positive | None
    skip_nonfinite: bool
    read: ReadOrder
    gradient: GradientMode
    compiled: bool
    gates: GateKind
    gate_conv_size: Whole
    step_init: NotNegative | None
    step_max: NotNegative | None
    forgetting: bool
    forget_init: Share
    momentum: bool
    momentum_init: Share
    surprise_threshold: NotNegative | None
    surprise_measure: SurpriseMeasure
    write_threshold: NotNegative | None
    train_with_threshold: bool
    conv_size: Whole
    key_lag: Whole | None
    value_norm: Positive | None
