"""The unit of training: a batch of windows, and the interface of everything that makes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from titans.tasks.tokens import IGNORED


@dataclass(frozen=True)
class Batch:
    """Windows of tokens with the token that follows each."""

    tokens: Int[Tensor, "batch time"]
    targets: Int[Tensor, "batch time"]
    """The next token at each place, `IGNORED` where there is nothing to predict."""
    mask: Bool[Tensor, "batch time"] | None
    """False at padding; None if there is none."""
    fresh: Bool[Tensor, " batch"]
    """True where the row begins a document: a carried state is reset before it."""

    def rows(self, begin: int, end: int) -> "Batch":
        """Some of the rows."""
        return Batch(
            tokens=self.tokens[begin:end],
            targets=self.targets[begin:end],
            mask=None if self.mask is None else self.mask[begin:end],
            fresh=self.fresh[begin:end],
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        if device.type == "cpu":
            return self
        return Batch(
            tokens=self.tokens.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            mask=None if self.mask is None else self.mask.to(device, non_blocking=True),
            fresh=self.fresh.to(device, non_blocking=True),
        )

    @property
    def num_targets(self) -> int:
        """How many tokens there are to predict."""
        return int((self.targets != IGNORED).sum())


@dataclass(frozen=True)
class Window:
    """One row of a batch: tokens, their targets, and whether a document begins here."""

    tokens: np.ndarray
    targets: np.ndarray
    fresh: bool = True


class Stream(Protocol):
    """A source of windows with random access: a row of a step is always the same.

    Nothing else decides what a batch holds, so a run may be resumed at any step, spread over any
    number of processes and loaded by any number of workers without changing it.
    """

    def windows(self, step: int, rows: range) -> list[Window]:
        """Some rows of the global batch of one step."""
        ...


def collate(windows: list[Window], pad_token: int) -> Batch:
    """Stack windows, shorter ones padded at the end."""
    longest = max(len(w.tokens) for w in windows)
    tokens = np.full((len(windows), longest), pad_token, dtype=np.int64)
    targets = np.full((len(windows), longest), IGNORED, dtype=np.int64)
    mask = np.zeros((len(windows), longest), dtype=bool)
    for row, window in enumerate(windows):
        size = len(window.tokens)
        tokens[row, :size] = window.tokens
        targets[row, :size] = window.targets
        mask[row, :size] = True
    return Batch(
        tokens=torch.from_numpy(tokens),
        targets=torch.from_numpy(targets),
        mask=None if mask.all() else torch.from_numpy(mask),
        fresh=torch.tensor([w.fresh for w in windows]),
    )


class StepDataset(torch.utils.data.Dataset[Batch]):
    """Some rows of every step of a stream, one item per step. Picklable for workers."""

    def __init__(self, stream: Stream, rows: range, pad_token: int, first: int, last: int) -> None:
        self.stream, self.rows, self.pad_token = stream, rows, pad_token
        self.first, self.last = first, last

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> Batch:
        step = self.first + index
        return collate(self.stream.windows(step, self.rows), self.pad_token)


def load_batches(dataset: StepDataset, num_workers: int) -> Iterator[Batch]:
    """The batches in order; `num_workers` processes prepare them ahead."""
    if num_workers == 0:
        return (dataset[index] for index in range(len(dataset)))
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=num_workers, prefetch_factor=4
    )
    return iter(loader)
