"""States carried from one window of a document to the next (truncated BPTT)."""

from pathlib import Path

import torch
from torch import Tensor

from titans.data.batch import Batch
from titans.models.cache import TitansCache


class CarriedStates:
    """One cache per micro-batch of this process; None before its first window."""

    def __init__(self, num_micro_batches: int) -> None:
        self.caches: list[TitansCache | None] = [None] * num_micro_batches

    def before(self, index: int, batch: Batch) -> TitansCache | None:
        """The state to start micro-batch `index` from: rows that begin a document start again."""
        cache = self.caches[index]
        if cache is not None and bool(batch.fresh.any()):
            cache.reset(batch.fresh)
        return cache

    def after(self, index: int, cache: TitansCache) -> None:
        """Keep the state, cut from the graph.

        A copy: parts of a state may be views of parameters, which the optimizer changes in place.
        """
        kept = cache.map(_copy)
        # A checkpoint holds states and weights together, each with a checksum.
        kept.model = None
        self.caches[index] = kept

    def drop(self) -> None:
        """Forget everything: the next windows start from the initial memory."""
        self.caches = [None] * len(self.caches)

    def save(self, folder: Path, first: int) -> None:
        """Write this process's states; `first` is the global number of its first micro-batch."""
        folder.mkdir(exist_ok=True)
        for offset, cache in enumerate(self.caches):
            if cache is not None:
                cache.save(folder / f"{first + offset:05d}.safetensors")

    def load(self, folder: Path, first: int, device: torch.device) -> None:
        """Read what `save` wrote. A micro-batch has no file if its state was dropped."""
        for offset in range(len(self.caches)):
            path = folder / f"{first + offset:05d}.safetensors"
            self.caches[offset] = TitansCache.load(path).to(device) if path.is_file() else None


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
