"""The outer loss: `L = L_lm + lambda L_memory`, summed so that any split of a batch adds up."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from titans.data.batch import IGNORED, Batch


@dataclass(frozen=True)
class LanguageLoss:
    """The next-token loss of some rows, summed: divide by the count of the whole batch."""

    total: Tensor
    """Sum of the cross-entropy over targets, in nats. Differentiable."""
    num_targets: int
    num_correct: int
    """Targets that have the largest logit."""


def language_loss(logits: Tensor, batch: Batch) -> LanguageLoss:
    """Cross-entropy in float32, whatever the model computed in."""
    flat, targets = logits.flatten(0, 1), batch.targets.flatten()
    wanted = targets != IGNORED
    num_targets = int(wanted.sum())
    if 2 * num_targets < len(targets):
        # Recall tasks ask at a few places only: leave the others' softmax out.
        flat, targets = flat[wanted], targets[wanted]
    total = functional.cross_entropy(flat.float(), targets, ignore_index=IGNORED, reduction="sum")
    with torch.no_grad():
        num_correct = int((flat.argmax(-1) == targets).sum())
    return LanguageLoss(total, num_targets, num_correct)
