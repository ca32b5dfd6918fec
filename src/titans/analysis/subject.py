"""A checkpoint folder and a text file, read together: what `titans analyze` looks at."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from titans.analysis.records import Trace
from titans.analysis.text import read_text, tokenize, unknown_share
from titans.analysis.tracing import Limits, trace
from titans.errors import CheckpointError
from titans.models import TitansForCausalLM
from titans.models.checkpoint import find_checkpoint, load_model, load_tokenizer

WHOLE_TEXT = 4 << 20
"""Bytes; a smaller text is tokenized before it is read, so that its length is known."""
MANY_UNKNOWN = 0.05


@dataclass(frozen=True)
class Subject:
    """A model with its tokenizer."""

    name: str
    model: TitansForCausalLM
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def load(cls, folder: str | Path) -> "Subject":
        """A folder that `titans train` or `save_pretrained` wrote."""
        folder = find_checkpoint(folder)
        model = load_model(folder).eval()
        if not model.config.has_memory:
            raise CheckpointError(
                f"{folder} holds a {model.config.variant!r} model, a baseline without a neural "
                "memory: there is nothing to look at. Give a model of variant lmm, mac, mag or mal"
            )
        return cls(_name(folder), model, load_tokenizer(folder))

    def read(
        self,
        path: str | Path,
        *,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        on_read: Callable[[int], None] | None = None,
    ) -> Trace:
        """Trace the model over a text file."""
        path = Path(path)
        passages = tokenize(read_text(path), self.tokenizer)
        is_short = path.is_file() and path.stat().st_size <= WHOLE_TEXT
        found = trace(
            self.model,
            list(passages) if is_short else passages,
            name=f"{self.name} reads {path.name}",
            limits=limits,
            on_read=on_read,
        )
        unknown = unknown_share(found.ids.tolist(), self.tokenizer)
        if unknown < MANY_UNKNOWN:
            return found
        note = (
            f"{100 * unknown:.0f} % of the tokens are words that this model's tokenizer does not "
            "know. It sees one and the same unknown word in their place."
        )
        return replace(found, notes=(*found.notes, note))


def _name(folder: Path) -> str:
    """`mag/last` for runs/mag/checkpoints/last, else the folder's own name."""
    folder = folder.absolute()
    is_step = folder.name in ("last", "best") or folder.name.startswith("step-")
    if is_step and folder.parent.name == "checkpoints":
        return f"{folder.parent.parent.name}/{folder.name}"
    return folder.name
