"""Everything that training needs to know about its data, from one `DataConfig`."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from titans.data.batch import Stream
from titans.data.config import DataConfig
from titans.data.corpus import Corpus, find_files
from titans.data.packing import PackedTokens, pack
from titans.data.synthetic import TOKEN_TASKS, synthetic_stream, synthetic_vocab_size
from titans.data.tokenizer import load_tokenizer, pad_token
from titans.data.windows import DocumentWindows, ShuffledWindows, too_short
from titans.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Two streams and what belongs to them."""

    train: Stream
    held_out: Stream
    held_out_rows: int
    """Rows of a held-out batch: fewer than a training batch where there is little text."""
    tokenizer: PreTrainedTokenizerBase | None
    """None for tasks made of tokens."""
    vocab_size: int
    pad_token: int
    bytes_per_token: float | None
    """For bits per byte; None where there is no text."""


def load_data(config: DataConfig, *, batch_size: int, seed: int) -> TrainingData:
    """Read, pack or generate: the streams of `config`.

    Args:
        batch_size: rows of a global batch, over all processes.
        seed: decides the order of the text and the random numbers of a task.
    """
    if config.is_synthetic:
        return _synthetic(config, batch_size, seed)
    tokenizer = load_tokenizer(config.tokenizer)
    train, held_out = _packed(config, tokenizer)
    rows = min(batch_size, max(1, len(held_out.tokens) // config.sequence_len))
    kind = DocumentWindows if config.carry_state else ShuffledWindows
    try:
        held_out_stream = kind(held_out, config.sequence_len, rows, seed)
    except DataError:
        raise DataError(
            f"held-out text: {too_short(held_out, config.sequence_len)}, or raise "
            "data.validation_fraction"
        ) from None
    return TrainingData(
        train=kind(train, config.sequence_len, batch_size, seed),
        held_out=held_out_stream,
        held_out_rows=rows,
        tokenizer=tokenizer,
        vocab_size=len(tokenizer),
        pad_token=pad_token(tokenizer),
        bytes_per_token=held_out.bytes_per_token,
    )


def _synthetic(config: DataConfig, batch_size: int, seed: int) -> TrainingData:
    tokenizer = None if config.source in TOKEN_TASKS else load_tokenizer(config.tokenizer)
    train, held_out = (
        synthetic_stream(config, tokenizer, batch_size=batch_size, seed=seed, held_out=split)
        for split in (False, True)
    )
    vocab_size = synthetic_vocab_size(config) if tokenizer is None else len(tokenizer)
    assert vocab_size is not None
    return TrainingData(
        train=train,
        held_out=held_out,
        held_out_rows=batch_size,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        pad_token=0 if tokenizer is None else pad_token(tokenizer),
        bytes_per_token=None,
    )


def _packed(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[PackedTokens, PackedTokens]:
    if config.path is None and config.dataset is None:
        raise ConfigError(
            "nothing to train on: give a text or JSONL file or a folder of them with --data PATH "
            "(data.path), or the name of a Hugging Face dataset with --set data.dataset=NAME"
        )
    packed = pack(text_corpus(config), tokenizer, config.cache_dir)
    if config.validation_path is None:
        return packed.split(config.validation_fraction)
    held_out = Corpus(
        files=find_files(config.validation_path),
        text_field=config.text_field,
        separator=config.document_separator,
    )
    return packed, pack(held_out, tokenizer, config.cache_dir)


def text_corpus(config: DataConfig) -> Corpus:
    """The training text that `config` names."""
    return Corpus(
        files=find_files(config.path) if config.path else (),
        dataset=config.dataset,
        dataset_config=config.dataset_config,
        dataset_split=config.dataset_split,
        text_field=config.text_field,
        separator=config.document_separator,
        max_bytes=config.max_bytes,
    )
