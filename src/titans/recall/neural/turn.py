"""The learned part of the text memory: one turn of memory-as-context over one vector per text.

    1. s = normalise(W_proj pooled)        4. write k(y) -> v(y), surprise = its loss
    2. h = M(W_Q s)                        5. o = y * M(W_Q y)
    3. y = attention over [p | h | s], last position

`TurnNetwork` holds the parameters and computes each step; the memory M itself is a `MemoryState`
that the caller carries (neural.py writes it online, meta.py in episodes).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from titans import ops
from titans.layers.memory_networks import mlp_parameters
from titans.layers.persistent import PersistentMemory
from titans.ops import Gates, MemoryState
from titans.recall.config import NeuralConfig


class TurnNetwork(nn.Module):
    """Projections, attention, persistent vectors and the memory's initial weights.

    With `roles="associative"` nothing is trained: projections are the identity, the attention
    adds zero (y = s), the memory starts at zero. So out of the box no random matrix stands between
    the encoder and the search.
    """

    def __init__(self, encoder_dim: int, config: NeuralConfig) -> None:
        super().__init__()
        self.config = config
        self.dim = dim = config.dim or encoder_dim
        generator_state = torch.random.get_rng_state()
        torch.manual_seed(config.seed)
        trained = config.roles == "self"
        self.projection = _linear(encoder_dim, dim, config) if config.dim else nn.Identity()
        self.query = _linear(dim, dim, config) if trained else nn.Identity()
        self.key = _linear(dim, dim, config) if trained else nn.Identity()
        self.value = _linear(dim, dim, config) if trained else nn.Identity()
        self.persistent = PersistentMemory(config.num_persistent, dim)
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(
            dim, config.num_attention_heads, dropout=config.dropout, batch_first=True
        )
        initial = mlp_parameters(config.num_heads, [dim] * (config.depth + 1), config.bias)
        if not trained:
            initial[-1 - int(config.bias)] = torch.zeros_like(initial[-1 - int(config.bias)])
        self.initial_memory = nn.ParameterList(nn.Parameter(w) for w in initial)
        torch.random.set_rng_state(generator_state)

    def initial_state(self, batch: int = 1) -> MemoryState:
        """A memory that has seen nothing."""
        return MemoryState.from_parameters(list(self.initial_memory), batch)

    def embed(self, pooled: Float[Tensor, "batch encoder_dim"]) -> Float[Tensor, "batch dim"]:
        """Step 1: one vector of unit length per text."""
        return F.normalize(self.projection(pooled), dim=-1)

    def read(
        self, x: Float[Tensor, "batch dim"], state: MemoryState
    ) -> Float[Tensor, "batch heads dim"]:
        """Steps 2 and 5: what every head of the memory answers to W_Q x."""
        queries = self.query(x)[:, None, None].expand(-1, 1, self.config.num_heads, -1)
        return ops.read_memory(queries, state)[:, 0]

    def attend(
        self, s: Float[Tensor, "batch dim"], h: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch dim"]:
        """Step 3: pre-norm attention over [p | h | s] with a residual; y is its last position."""
        if self.config.roles == "associative":
            return s  # its attention would add exactly zero
        x = torch.cat([self.persistent(len(s)), h[:, None], s[:, None]], dim=1)  # [b p+2 d]
        normed = self.norm(x)
        mixed, _ = self.attention(normed[:, -1:], normed, normed, need_weights=False)
        return s + mixed[:, 0]

    def pairs(
        self, y: Float[Tensor, "batch dim"]
    ) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch dim"]]:
        """Step 4: the key and the value under which y is written by a memory of one head."""
        return self.key(y), self.value(y)

    def gates(self, batch: int, active: Float[Tensor, " heads"] | None = None) -> Gates:
        """The constant gates; a head that is not active neither writes nor forgets."""
        heads = self.config.num_heads
        on = torch.ones(heads) if active is None else active
        step = torch.tensor(self.config.step_size) * on
        eta = self.config.momentum_decay * on + (1 - on) * float(self.config.momentum_decay > 0)
        alpha = self.config.forget_gate * on
        return Gates(*(gate.expand(batch, heads) for gate in (alpha, eta, step)))

    @staticmethod
    def output(
        y: Float[Tensor, "batch dim"], m: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch dim"]:
        """Step 5: the search vector."""
        return y * m


def _linear(fan_in: int, fan_out: int, config: NeuralConfig) -> nn.Linear:
    return nn.Linear(fan_in, fan_out, bias=config.bias)
