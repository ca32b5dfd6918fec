"""Everything that training needs to know about its data, from one `DataConfig`.

Text is packed once and read as shuffled windows, or as documents in order with a state; tasks are
generated. All are functions of (seed, step, row); see `Stream`.
"""

import heapq
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase

from titans.data.batch import Stream, Window
from titans.data.config import DataConfig
from titans.data.corpus import Corpus, find_files
from titans.data.packing import PackedTokens, pack
from titans.data.synthetic import TOKEN_TASKS, synthetic_stream, synthetic_vocab_size
from titans.data.tokenizer import load_tokenizer, pad_token
from titans.errors import ConfigError, DataError
from titans.tasks.tokens import IGNORED

ORDER_STREAM, LANE_STREAM = 1, 2
"""Set the random numbers of the two kinds of stream apart under one seed."""


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


class ShuffledWindows:
    """Every window of the corpus once per epoch, in an order of its own each epoch.

    Windows follow the tokens wall to wall, so one may hold the end of a document and the
    beginning of the next, with the end-of-document token between them.
    """

    def __init__(self, packed: PackedTokens, sequence_len: int, batch_size: int, seed: int) -> None:
        self.packed, self.sequence_len = packed, sequence_len
        self.batch_size, self.seed = batch_size, seed
        # The last token of a window needs a successor to predict.
        self.num_windows = (len(packed.tokens) - 1) // sequence_len
        if self.num_windows < 1:
            raise DataError(too_short(packed, sequence_len))
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_order"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def windows(self, step: int, rows: range) -> list[Window]:
        """The given rows of step `step`."""
        return [self._window(step, row) for row in rows]

    def _window(self, step: int, row: int) -> Window:
        epoch, index = divmod(step * self.batch_size + row, self.num_windows)
        begin = int(self._order(epoch)[index]) * self.sequence_len
        piece = np.asarray(self.packed.tokens[begin : begin + self.sequence_len + 1], np.int64)
        return Window(piece[:-1], piece[1:])

    def _shuffle(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, ORDER_STREAM, epoch]).permutation(self.num_windows)


class DocumentWindows:
    """Documents in order, window after window: row r of the batch reads lane r of the corpus.

    The documents are dealt to as many lanes as the batch has rows, the longest first, each to the
    shortest lane. A document longer than a lane's fair share is first cut into pieces of that
    size, so that one book can fill a batch. A lane reads its documents in an order of its own,
    new in each lap. `Window.fresh` marks where a document (or piece) begins.
    """

    def __init__(self, packed: PackedTokens, sequence_len: int, batch_size: int, seed: int) -> None:
        self.packed, self.sequence_len, self.seed = packed, sequence_len, seed
        share = -(-len(packed.tokens) // batch_size)
        share = max(sequence_len, share)
        pieces = _cut(packed.starts, share)
        if len(pieces) < batch_size:
            raise DataError(
                f"{too_short(packed, sequence_len)}, in {batch_size} lanes (train.batch_size)"
            )
        self.lanes = _deal(pieces, batch_size, sequence_len)
        self._plan = lru_cache(maxsize=2 * batch_size)(self._lap)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_plan"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._plan = lru_cache(maxsize=2 * len(self.lanes))(self._lap)

    def windows(self, step: int, rows: range) -> list[Window]:
        """The given rows of step `step`."""
        return [self._window(step, row) for row in rows]

    def _window(self, step: int, row: int) -> Window:
        lap, index = divmod(step, int(_num_windows(self.lanes[row], self.sequence_len).sum()))
        order, first_window = self._plan(row, lap)
        place = int(np.searchsorted(first_window, index, side="right")) - 1
        piece_begin, piece_end = self.lanes[row][order[place]]
        begin = piece_begin + (index - int(first_window[place])) * self.sequence_len
        end = min(begin + self.sequence_len, piece_end)
        tokens = np.asarray(self.packed.tokens[begin:end], np.int64)
        targets = np.full(len(tokens), IGNORED, np.int64)
        following = np.asarray(self.packed.tokens[begin + 1 : min(end + 1, piece_end)], np.int64)
        targets[: len(following)] = following
        return Window(tokens, targets, fresh=begin == piece_begin)

    def _lap(self, row: int, lap: int) -> tuple[np.ndarray, np.ndarray]:
        lane = self.lanes[row]
        order = np.random.default_rng([self.seed, LANE_STREAM, row, lap]).permutation(len(lane))
        counts = _num_windows(lane[order], self.sequence_len)
        return order, np.concatenate([[0], np.cumsum(counts)[:-1]])


def too_short(packed: PackedTokens, sequence_len: int) -> str:
    """What to say when a corpus does not fill one window."""
    return (
        f"{packed.name}: {len(packed.tokens)} tokens are too few for windows of {sequence_len}; "
        "give more text or lower data.sequence_len"
    )


def _cut(starts: np.ndarray, share: int) -> list[tuple[int, int]]:
    """Documents as (begin, end), those longer than `share` in pieces."""
    pieces: list[tuple[int, int]] = []
    for begin, end in pairwise(starts.tolist()):
        count = -(-(end - begin) // share)
        edges = np.linspace(begin, end, count + 1).astype(np.int64).tolist()
        # A single token has nothing to predict.
        pieces.extend((a, b) for a, b in pairwise(edges) if b - a > 1)
    return pieces


def _deal(pieces: list[tuple[int, int]], num_lanes: int, sequence_len: int) -> list[np.ndarray]:
    """Longest piece first, each to the lane that has the least to read."""
    heap = [(0, lane) for lane in range(num_lanes)]
    lanes: list[list[tuple[int, int]]] = [[] for _ in range(num_lanes)]
    for begin, end in sorted(pieces, key=lambda p: (p[0] - p[1], p[0])):
        load, lane = heapq.heappop(heap)
        lanes[lane].append((begin, end))
        heapq.heappush(heap, (load + -(-(end - begin) // sequence_len), lane))
    return [np.asarray(lane, dtype=np.int64) for lane in lanes]


def _num_windows(pieces: np.ndarray, sequence_len: int) -> np.ndarray:
    return -(-(pieces[:, 1] - pieces[:, 0]) // sequence_len)
