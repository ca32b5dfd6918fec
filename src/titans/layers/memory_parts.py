"""What stands around the memory in its layer: section 4.4 of the paper, part by part."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts around the memory; each can be switched off, as the ablations do."""

    conv_size: int = 4
    """Width of the causal convolutions after the projections; 0 is none."""
    key_lag: int | None = None
    """1: keys start as the token before, queries and values as their own, so that the memory binds
    each token to its predecessor; 0: all start as their own. None: their own, with so much of the
    tokens before that a memory binds neighbours of any kind. All of it is learned further."""
    activation: bool = True
    """SiLU on queries, keys and values."""
    normalize: bool = True
    """L2 norm of queries and keys, per head."""
    value_norm: float | None = 4.0
    """Length that every value is brought to, per head; None leaves it as projected (the paper).
    What is read is normalised, so nothing else keeps values from growing in training without end,
    and with them the memory's loss and its gradients (docs/decisions/0003-stabiliser.md). 4 is
    four times what an untrained memory answers. Halved for every layer of an `MLP` beyond two."""
    output_norm: bool = True
    """RMS norm of what is read, per head."""
    output_gate: bool = True
    """Multiply what is read by a sigmoid of a projection of the input."""
    output_proj: bool = True
    """Project the heads back to `dim`."""
    bias: bool = False
    """Biases in the query, key and value projections."""

    def __post_init__(self) -> None:
        if self.key_lag is not None and not 0 <= self.key_lag < self.conv_size:
            raise ValueError(
                f"key_lag must lie below conv_size ({self.conv_size}), which is how far keys can "
                f"look back; got {self.key_lag}"
            )
        if self.value_norm is not None and not self.value_norm > 0:
            raise ValueError(
                f"value_norm must be above 0, or None to leave values as they are; "
                f"got {self.value_norm}"
            )
