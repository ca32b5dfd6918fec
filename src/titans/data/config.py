"""What to train on: the `data` section of a run's configuration."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from titans.errors import ConfigError
from titans.settings import Count, Range, Whole, check_ranges

Source = Literal["text", "mqar", "needle", "niah", "babilong", "state_tracking"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the tokens come from and how they are cut into windows."""

    source: Source = "text"
    """`text` (files, folders or a Hugging Face dataset) or the name of a synthetic task."""
    path: str | None = None
    """A text or JSONL file (also .gz), or a folder of them. Synthetic text tasks: the haystack."""
    dataset: str | None = None
    """A Hugging Face dataset: a name, or a folder written by `save_to_disk`."""
    dataset_config: str | None = None
    """The dataset's configuration name, where it has several."""
    dataset_split: str = "train"
    """The dataset's split to train on."""
    text_field: str = "text"
    """The field that holds the text in JSONL lines and datasets."""
    document_separator: str | None = None
    """Cut text files into documents at this string. Default: a file is a document."""
    max_bytes: Count | None = None
    """Read no more than this many bytes of text in all."""
    validation_path: str | None = None
    """Held-out text. Default: the last `validation_fraction` of the training text."""
    validation_fraction: Annotated[float, Range(0, 0.5, above=True)] = 0.05
    """How much of the end of the text is held out when there is no `validation_path`."""
    tokenizer: str = "bytes"
    """`bytes`, or a Hugging Face tokenizer by folder, `tokenizer.json` file, or name."""
    sequence_len: Annotated[int, Range(2)] = 256
    """Tokens per window."""
    carry_state: bool = False
    """Read documents in order, window after window, and carry the memory's state along."""
    task: dict[str, object] = field(default_factory=dict)
    """Options of the synthetic task (docs/training.md lists them)."""
    mixture: tuple[dict[str, object], ...] = ()
    """Variations of the task: options that replace those in `task`, with `weight` (how often, a
    batch at a time) and `from_step` (a curriculum: not before this step)."""
    cache_dir: str | None = None
    """Where packed tokens are kept. Default: $TITANS_CACHE, or ~/.cache/titans."""
    num_workers: Whole = 0
    """Processes that prepare batches ahead. The batches do not depend on it."""

    def __post_init__(self) -> None:
        check_ranges(self, "data.")
        if self.source == "text":
            self._check_text()
        elif self.carry_state:
            raise ConfigError(
                f"data.carry_state is for long documents; each {self.source} sequence stands alone"
            )

    def _check_text(self) -> None:
        if self.path and self.dataset:
            raise ConfigError("data.path and data.dataset are both set: choose one")
        if self.task or self.mixture:
            raise ConfigError(
                "data.task and data.mixture are for synthetic tasks, data.source is 'text'"
            )

    @property
    def is_synthetic(self) -> bool:
        """Whether sequences are generated rather than read."""
        return self.source != "text"
