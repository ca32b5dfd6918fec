"""Reading long prompts and generating token by token, with the state in the open.

`model.generate()` is Hugging Face's and does beams and batches; this is the plain loop for one
stream whose cache is kept: read a book piece by piece, save, go on later.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from titans.models.cache import TitansCache
from titans.models.lm import TitansForCausalLM, check_logits


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 0.8
    """0 takes the most likely token."""
    top_k: int = 0
    """Choose among the k most likely; 0: among all."""
    top_p: float = 1.0
    """Choose among the most likely that together reach this probability."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")


@torch.no_grad()
def read(
    model: TitansForCausalLM,
    ids: Int[Tensor, "batch time"],
    cache: TitansCache,
    *,
    piece: int = 2_048,
    on_piece: Callable[[int], None] | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Move `cache` past `ids`, a piece at a time, and return the logits of the next token.

    Args:
        on_piece: called with the number of tokens of every piece read.
    """
    logits = None
    for part in ids.split(piece, dim=1):
        logits = model(part, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        if on_piece is not None:
            on_piece(part.shape[1])
    if logits is None:
        raise ValueError("nothing to read: ids is empty")
    return logits


@torch.no_grad()
def continue_from(
    model: TitansForCausalLM,
    cache: TitansCache,
    logits: Float[Tensor, "1 vocab"],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop_ids: frozenset[int] = frozenset(),
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """Generate tokens one by one; the cache has read each of them before the next comes out."""
    for _ in range(max_new_tokens):
        token = choose(logits, sampling, generator)
        if token in stop_ids:
            return
        ids = torch.tensor([[token]], device=logits.device)
        logits = model(ids, past_key_values=cache).logits[:, -1]
        yield token


def choose(
    logits: Float[Tensor, "1 vocab"], sampling: Sampling, generator: torch.Generator | None = None
) -> int:
    """One token from the distribution that `sampling` describes."""
    check_logits(logits)
    row = logits[0].float()
    if sampling.temperature == 0:
        return int(row.argmax())
    probabilities = (row / sampling.temperature).softmax(-1)
    ranked, order = probabilities.sort(descending=True)
    if sampling.top_k:
        ranked[sampling.top_k :] = 0
    # A token stays if those above it do not reach top_p yet; the first always stays.
    ranked[ranked.cumsum(0) - ranked >= sampling.top_p] = 0
    return int(order[torch.multinomial(ranked, 1, generator=generator)])


class TextStream:
    """Turns tokens into text as they come; holds back what is not a whole character yet."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = 0
        """Characters of the current `_ids` that were handed out."""

    def push(self, token: int) -> str:
        """The text that this token completes, often one piece of a word, sometimes nothing."""
        self._ids.append(token)
        text = self._decode()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        new, self._given = text[self._given :], len(text)
        if text.endswith("\n"):
            # Nothing before a line break changes what comes after it: forget it.
            self._ids, self._given = [], 0
        return new

    def finish(self) -> str:
        """What was held back."""
        return self._decode()[self._given :]

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._ids, clean_up_tokenization_spaces=False))
