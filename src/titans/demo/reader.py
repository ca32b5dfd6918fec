"""A model that reads the book once, keeps its state, and answers from the state alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from titans.analysis.watching import memories, watching
from titans.models import TitansCache, TitansForCausalLM
from titans.models.checkpoint import load
from titans.models.generation import Sampling, continue_from, read

PIECE = 1_024
"""Tokens read at a time."""
ANSWER_TOKENS = 5


@dataclass
class Reader:
    """What a model is, and what it noted while it read."""

    model: TitansForCausalLM
    tokenizer: PreTrainedTokenizerBase
    cache: TitansCache
    state_bytes: list[int] = field(default_factory=list)
    """After each piece."""
    surprise: Tensor = field(default_factory=lambda: torch.zeros(0))
    """`[time]`: the loss of the last layer's memory at each token; empty without a memory."""
    writes: Tensor = field(default_factory=lambda: torch.zeros(0))
    """`[time]`: how strongly it wrote the token, 0 if it did not."""

    @classmethod
    def load(cls, folder: Path) -> "Reader":
        """A reader who has read nothing yet."""
        model, tokenizer = load(folder)
        return cls(model, tokenizer, model.new_cache(1))

    @property
    def num_parameters(self) -> int:
        """Trained numbers of the model."""
        return sum(p.numel() for p in self.model.parameters())

    def encode(self, text: str) -> list[int]:
        """Text as tokens, without marks around it."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def read(self, ids: list[int], on_piece: Callable[[int], object]) -> None:
        """Read from the first token to the last, once."""
        found = memories(self.model)[-1:]
        surprise, writes = [], []
        with torch.no_grad(), watching(found):
            for piece in torch.tensor([ids]).split(PIECE, dim=1):
                read(self.model, piece, self.cache)
                self.state_bytes.append(self.cache.num_bytes)
                for watched in found:
                    calls, _ = watched.take()
                    surprise += [call.trace.surprise.loss.mean((0, 2)) for call in calls]
                    writes += [call.write_size.sum((0, 2)) for call in calls]
                on_piece(piece.shape[1])
        if found:
            self.surprise, self.writes = torch.cat(surprise), torch.cat(writes)

    def answer(self, question: str) -> str:
        """The first word of the answer; the state of what was read stays as it is."""
        cache = self.cache.fork()
        ids = torch.tensor([self.encode(f"\nQuestion: {question}\nAnswer:")])
        with torch.no_grad():
            logits = read(self.model, ids, cache)
            tokens = continue_from(
                self.model,
                cache,
                logits,
                max_new_tokens=ANSWER_TOKENS,
                sampling=Sampling(temperature=0),
            )
            text = str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))
        return text.split(".")[0].strip() or "(nothing)"
