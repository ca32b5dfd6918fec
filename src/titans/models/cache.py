"""The cache: all that a model remembers between two calls, in one object of constant size.

It holds each layer's memory, conv tails, attention window or open segment, and each row's position.
Read a long text once, `save`, and ask questions from it later, in another process; `fork` it to ask
several. Only the `transformer` baseline's cache grows with what it read.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ReferenceType

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.serialization import add_safe_globals

from titans.errors import StateError
from titans.files import read_tensors_and_notes, tensors_digest, write_tensors
from titans.layers.attention import KeyValues
from titans.layers.memory_state import NeuralMemoryState
from titans.models.config import TitansConfig
from titans.models.upgrade import is_flat, upgrade_config
from titans.ops.tree import TensorTree, where_rows

FORMAT = "titans.cache"
FORMAT_VERSION = 1
LAYOUT_FIELDS = (
    "variant",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "window",
    "segment_len",
    "num_persistent",
    "memory_layers",
    "mixer_conv_size",
    "has_predictor",
    "memory.rule",
    "memory.chunk_size",
    "memory.num_heads",
    "memory.features",
    "memory.head_dim",
    "memory.value_dim",
    "memory.network",
    "memory.depth",
    "memory.expansion",
    "memory.bias",
    "memory.conv_size",
    "memory.gate_conv_size",
)
"""Settings that a cache depends on: it fits a model only if all of them agree."""

# Odd, so that powers of it never vanish modulo 2^64.
_DIGEST_FACTOR = 6_364_136_223_846_793_005


@dataclass(frozen=True)
class BlockState(TensorTree):
    """What one layer carries on, None where it has no such part.

    Layers return a new one. Without autograd, a layer may reuse the key and value buffers of the
    old one, so a state is passed on once; `TitansCache.fork` copies.
    """

    PARTS = {  # noqa: RUF012
        "memory": NeuralMemoryState,
        **dict.fromkeys(("past", "prefix", "segment", "context"), KeyValues),
    }
    SAVED = {name: f"{name}.tensor" for name in ("last_input", "mixer_tail")}  # noqa: RUF012

    memory: NeuralMemoryState | None = None
    """The neural memory with its conv tails."""
    past: KeyValues | None = None
    """Attention: the last `window` tokens (swa, mag, mal), or all of them (transformer)."""
    prefix: KeyValues | None = None
    """MAL: keys and values of what the memory answered to the persistent vectors."""
    segment: KeyValues | None = None
    """MAC: the open segment's tokens, one slot each."""
    context: KeyValues | None = None
    """MAC: what the memory answered to the open segment's tokens, one slot each."""
    segment_weights: tuple[Tensor, ...] | None = None
    """MAC: the memory's weights before the open segment; they answer that segment's tokens."""
    last_input: Tensor | None = None
    """Predictive write gate: this layer's input at the last token, `[batch, 1, dim]`."""
    mixer_tail: Tensor | None = None
    """The last inputs of the convolution before the mixer, `[batch, past, dim]`."""


class _Progress(NamedTuple):
    """Bookkeeping per row, beside what the layers hold."""

    position: Int[Tensor, " batch"]
    digest: Int[Tensor, " batch"]
    pending: Bool[Tensor, " batch"]


class TitansCache(TensorTree):
    """State of a whole model between calls: `model(ids, past_key_values=cache)` moves it on."""

    is_compileable = False
    is_croppable = False

    def __init__(
        self, blocks: Sequence[BlockState], batch: int, layout: dict[str, object], device: object
    ) -> None:
        zeros = torch.zeros(batch, dtype=torch.long, device=device)  # type: ignore[arg-type]
        self.blocks = list(blocks)
        self.layout = layout
        self.position = zeros
        """Tokens that each row has read."""
        self.digest = zeros
        """A running hash of the tokens that each row has read."""
        self.pending = zeros.bool()
        """Rows that start again at the next call (`reset`)."""
        self.is_pending = False
        """Whether any row does."""
        self.start: int | None = 0
        """`position` of all rows, where it is the same; known without asking the device."""
        self.columns = 0
        """Columns of input seen, padding included: what Hugging Face calls the sequence length."""
        self.model: ReferenceType[nn.Module] | None = None
        """The model that makes this state; `save` notes which weights it has."""
        self.written_by: str | None = None
        """Digest of the model that wrote a loaded state, until a model has been checked against it;
        set it to None to go on with other weights on purpose."""

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.position.shape[0]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of input seen so far, padding included (Hugging Face's question)."""
        return self.columns

    def get_max_cache_shape(self) -> int | None:
        """No limit: the state does not grow."""
        return None

    def __getstate__(self) -> dict[str, object]:
        """For copies in other processes, which have the model at another place."""
        return {**self.__dict__, "model": None}

    def map(self, fn: Callable[..., Tensor], *others: Any) -> "TitansCache":
        """A new cache with `fn` applied to every tensor."""
        assert not others
        other = TitansCache.__new__(TitansCache)
        other.__dict__.update(self.__dict__)
        other.blocks = [block.map(fn) for block in self.blocks]
        other.position, other.digest = fn(self.position), fn(self.digest)
        other.pending = fn(self.pending)
        return other

    def fork(self, copies: int = 1) -> "TitansCache":
        """An independent copy with each row `copies` times over (row 0, row 0, ..., row 1, ...)."""
        return self.map(lambda tensor: tensor.repeat_interleave(copies, dim=0))

    def reorder(self, rows: Int[Tensor, " rows"] | Sequence[int]) -> None:
        """`select` in place (beam search)."""
        self.__dict__.update(self.select(rows).__dict__)

    reorder_cache = reorder

    def batch_repeat_interleave(self, repeats: int) -> None:
        """`fork(repeats)` in place."""
        self.__dict__.update(self.fork(repeats).__dict__)

    def reset(self, mask: Bool[Tensor, " batch"] | None = None) -> None:
        """Start the rows in `mask` (all of them by default) again at the next call."""
        if mask is None:
            mask = torch.ones_like(self.pending)
        if mask.shape != self.pending.shape:
            raise ValueError(f"mask must have shape ({self.batch},), got {tuple(mask.shape)}")
        mask = mask.to(self.pending.device)
        self.pending = self.pending | mask
        self.is_pending = self.is_pending or bool(mask.any())
        self.position = self.position.masked_fill(mask, 0)
        self.digest = self.digest.masked_fill(mask, 0)
        if bool(mask.all()):
            self.start, self.columns = 0, 0
        elif bool(mask.any()):
            self.start = None

    def restart_pending(self, fresh: Sequence[BlockState]) -> None:
        """Replace the rows that `reset` marked by those of `fresh`."""
        marked = self.pending

        def merge(old: Tensor, new: Tensor) -> Tensor:
            # The transformer's buffer may have grown since; what lies behind is never read.
            new = new if new.shape == old.shape else torch.zeros_like(old)
            return where_rows(marked, new, old)

        self.blocks = [old.map(merge, new) for old, new in zip(self.blocks, fresh, strict=True)]
        self.pending, self.is_pending = torch.zeros_like(marked), False

    def has_read(
        self, ids: Int[Tensor, "batch time"], mask: Bool[Tensor, "batch time"] | None
    ) -> bool:
        """Whether the first `columns` columns of `ids` are what this cache has read."""
        if self.columns == 0 or ids.shape[1] < self.columns or ids.shape[0] != self.batch:
            return False
        head = None if mask is None else mask[:, : self.columns]
        seen = extend_digest(torch.zeros_like(self.digest), ids[:, : self.columns], head)
        return bool((seen == self.digest).all())

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor under a flat name."""
        named = {"position": self.position, "digest": self.digest, "pending": self.pending}
        for number, block in enumerate(self.blocks):
            named |= {f"layers.{number}.{n}": t for n, t in block.named_tensors().items()}
        return named

    @classmethod
    def rebuild(cls, named: Mapping[str, Tensor], layout: dict[str, object]) -> "TitansCache":
        """The inverse of `named_tensors`, for a model of this layout (`layout_of(config)`).

        In a graph, rows that `reset` marked are not started anew.
        """
        rest = dict(named)
        progress = _Progress(*(rest.pop(name) for name in _Progress._fields))
        blocks = _blocks(rest, layout["num_hidden_layers"])
        cache = cls(blocks, progress.position.shape[0], layout, progress.position.device)
        cache.position, cache.digest, cache.pending = progress
        cache.start = None
        if not torch.compiler.is_compiling():
            cache.is_pending = bool(cache.pending.any())
            cache.start = int(cache.position[0]) if _all_equal(cache.position) else None
        return cache

    def save(self, path: str | Path) -> None:
        """Write a safetensors file from which any process can continue (`load`)."""
        notes = {"layout": json.dumps(self.layout), "columns": str(self.columns)}
        model = None if self.model is None else self.model()
        if model is not None:
            notes["model"] = tensors_digest(model.state_dict())
        write_tensors(path, self.named_tensors(), FORMAT, FORMAT_VERSION, notes)

    @classmethod
    def load(cls, path: str | Path) -> "TitansCache":
        """Read what `save` wrote."""
        named, notes = read_tensors_and_notes(path, FORMAT, FORMAT_VERSION)
        try:
            cache = cls.rebuild(named, _layout_of_today(json.loads(notes["layout"])))
            cache.columns = int(notes["columns"])
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise StateError(f"{path}: damaged cache file ({error})") from error
        cache.written_by = notes.get("model")
        return cache

    def check_fits(self, config: TitansConfig) -> None:
        """Raise `StateError` unless a model of this configuration can go on from here."""
        for name, wanted in layout_of(config).items():
            if self.layout.get(name) != wanted:
                raise StateError(
                    f"the cache was made with {name}={self.layout.get(name)!r}, this model has "
                    f"{wanted!r}: start a new cache, or load the model that made it"
                )

    def check_writer(self, model: nn.Module) -> None:
        """Raise `StateError` if a model with other weights wrote the file this comes from."""
        if self.written_by is None:
            return
        digest = tensors_digest(model.state_dict())
        if digest != self.written_by:
            raise StateError(
                f"the state was written by a model with other weights ({self.written_by[:12]}, "
                f"this model has {digest[:12]}): load the model that made it, or start again"
            )
        self.written_by = None


def _blocks(named: dict[str, Tensor], num_layers: object) -> list[BlockState]:
    """The layers' states from the tensors' full names."""
    groups: dict[int, dict[str, Tensor]] = {}
    for name, tensor in named.items():
        _, number, rest = name.split(".", 2)
        groups.setdefault(int(number), {})[rest] = tensor
    # Before anything is built: a damaged file may claim any number of layers.
    if num_layers != len(groups) or sorted(groups) != list(range(len(groups))):
        raise ValueError(f"{num_layers} layers are claimed, {len(groups)} are there")
    return [BlockState.from_named_tensors(groups[number]) for number in range(len(groups))]


def layout_of(config: TitansConfig) -> dict[str, object]:
    """The settings that a cache of this model depends on."""
    return {name: attrgetter(name)(config) for name in LAYOUT_FIELDS}


def _layout_of_today(saved: dict[str, Any]) -> dict[str, object]:
    """The layout in a file, also of one from before the memory's settings had a section."""
    if not is_flat(saved):
        return saved
    old = upgrade_config(saved)
    memory = {f"memory.{name}": value for name, value in old.pop("memory").items()}
    kept = {"memory.network": "mlp", "memory.bias": False, **old, **memory}
    kept["has_predictor"] = saved.get("write_gate") == "predictive"
    return {name: kept.get(name) for name in LAYOUT_FIELDS}


def extend_digest(
    digest: Int[Tensor, " batch"],
    ids: Int[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"] | None,
) -> Int[Tensor, " batch"]:
    """Hash of each row's tokens so far and `ids` (int64 arithmetic wraps); padding is left out."""
    factor = torch.full_like(ids, _DIGEST_FACTOR)
    if mask is not None:
        factor = torch.where(mask, factor, torch.ones_like(factor))
    # later[t]: the product of the factors after t.
    later = factor.flip(1).cumprod(1).flip(1)
    whole = later[:, 0] if ids.shape[1] else torch.ones_like(digest)
    later = torch.cat((later[:, 1:], torch.ones_like(later[:, :1])), dim=1)
    terms = (ids + 1) * later
    if mask is not None:
        terms = terms * mask
    return digest * whole + terms.sum(1)


def own_storage(tensor: Tensor) -> Tensor:
    """The tensor, contiguous, on storage of its own: a view would keep a whole call alive."""
    if torch.compiler.is_compiling():
        return tensor.contiguous()
    if tensor.untyped_storage().nbytes() > tensor.nbytes:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()


def _all_equal(position: Tensor) -> bool:
    return bool((position == position[0]).all())


# Data alone, so that `torch.load(weights_only=True)` may read it.
add_safe_globals([TitansCache, BlockState, KeyValues])
