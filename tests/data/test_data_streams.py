"""Streams: what a batch holds depends on (seed, step, row) and nothing else."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from titans.data.batch import IGNORED, StepDataset, Window, collate, load_batches
from titans.data.config import DataConfig
from titans.data.packing import PackedTokens
from titans.data.streams import DocumentWindows, ShuffledWindows, TrainingData, load_data
from titans.data.synthetic import synthetic_vocab_size
from titans.errors import ConfigError, DataError


def packed(*lengths: int) -> PackedTokens:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return PackedTokens(np.arange(starts[-1]), starts, 1.0, "numbers")


def test_every_window_once_per_epoch_in_another_order() -> None:
    stream = ShuffledWindows(packed(101), sequence_len=10, batch_size=5, seed=3)
    epochs = []
    for epoch in range(2):
        steps = range(2 * epoch, 2 * epoch + 2)
        windows = [w for step in steps for w in stream.windows(step, range(5))]
        assert all((w.targets == w.tokens + 1).all() for w in windows)
        epochs.append([int(w.tokens[0]) for w in windows])
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(0, 100, 10))
    assert epochs[0] != epochs[1]


def test_documents_are_read_in_order_and_nothing_is_lost() -> None:
    lengths = (23, 5, 40, 12, 31, 8)
    source = packed(*lengths)
    stream = DocumentWindows(source, sequence_len=8, batch_size=3, seed=0)
    seen: set[int] = set()
    for row in range(3):
        step, last = 0, None
        lap = sum(-(-(int(b) - int(a)) // 8) for a, b in stream.lanes[row])
        for step in range(lap):
            (window,) = stream.windows(step, range(row, row + 1))
            first = int(window.tokens[0])
            begins = first in source.starts[:-1] or any(first == a for a, _ in stream.lanes[row])
            assert window.fresh == begins
            if not window.fresh:
                assert first == last, "a window goes on where the one before it ended"
            inside = window.targets != IGNORED
            assert (window.targets[inside] == window.tokens[inside] + 1).all()
            last = int(window.tokens[-1]) + 1
            assert seen.isdisjoint(window.tokens.tolist())
            seen |= set(window.tokens.tolist())
    assert seen == set(range(sum(lengths)))


def test_targets_stop_at_the_end_of_a_document() -> None:
    stream = DocumentWindows(packed(6, 6), sequence_len=4, batch_size=2, seed=0)
    (first,) = stream.windows(0, range(0, 1))
    (second,) = stream.windows(1, range(0, 1))
    assert first.fresh and not second.fresh
    assert (first.targets == first.tokens + 1).all(), "the target may lie in the next window"
    assert second.targets.tolist() == [int(second.tokens[1]), IGNORED]


def test_one_book_fills_all_lanes() -> None:
    stream = DocumentWindows(packed(1000), sequence_len=10, batch_size=4, seed=0)
    begins = [int(w.tokens[0]) for w in stream.windows(0, range(4))]
    assert sorted(begins) == [0, 250, 500, 750]


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(DataError, match="9 tokens are too few for windows of 16"):
        ShuffledWindows(packed(9), sequence_len=16, batch_size=1, seed=0)
    with pytest.raises(DataError, match=r"too few.*in 8 lanes"):
        DocumentWindows(packed(20), sequence_len=16, batch_size=8, seed=0)


def test_padding_is_masked() -> None:
    windows = [Window(np.arange(3), np.arange(3)), Window(np.arange(5), np.arange(5), False)]
    batch = collate(windows, pad_token=99)
    assert batch.tokens[0].tolist() == [0, 1, 2, 99, 99]
    assert batch.targets[0].tolist() == [0, 1, 2, IGNORED, IGNORED]
    assert batch.mask is not None and batch.mask.sum(1).tolist() == [3, 5]
    assert batch.fresh.tolist() == [True, False]
    assert collate(windows[1:], 99).mask is None


CASES = {
    "text": DataConfig(sequence_len=16),
    "documents": DataConfig(sequence_len=16, carry_state=True),
    "mqar": DataConfig(
        source="mqar",
        task={"vocab_size": 64},
        mixture=({"length": 16, "num_pairs": 2}, {"length": 32, "weight": 2, "from_step": 3}),
    ),
    "needle": DataConfig(source="needle", task={"length": 32}),
    "niah": DataConfig(source="niah", sequence_len=512, task={"answer_tokens": 20}),
    "state_tracking": DataConfig(source="state_tracking", task={"length": 8}),
}


def load(name: str, folder: Path, seed: int = 7) -> TrainingData:
    config = CASES[name]
    if config.source == "text":
        (folder / "t.jsonl").write_text(
            "".join(f'{{"text": "this is document {i}"}}\n' for i in range(80))
        )
        cache = str(folder / "cache")
        config = dataclasses.replace(config, path=str(folder / "t.jsonl"), cache_dir=cache)
    return load_data(config, batch_size=4, seed=seed)


def batches(data: TrainingData, rows: range, workers: int, first: int, last: int):
    return list(load_batches(StepDataset(data.train, rows, data.pad_token, first, last), workers))


@pytest.mark.parametrize("name", CASES)
def test_batches_do_not_depend_on_workers_processes_or_where_one_starts(
    name: str, tmp_path: Path
) -> None:
    data = load(name, tmp_path)
    whole = batches(data, range(4), 0, 0, 8)
    again = batches(load(name, tmp_path), range(4), 0, 0, 8)
    workers = batches(data, range(4), 2, 0, 8)
    resumed = batches(data, range(4), 0, 5, 8)
    halves = [batches(data, rows, 0, 0, 8) for rows in (range(2), range(2, 4))]
    for step, batch in enumerate(whole):
        for other in (again[step], workers[step], *([resumed[step - 5]] if step >= 5 else [])):
            assert torch.equal(batch.tokens, other.tokens)
            assert torch.equal(batch.targets, other.targets)
            assert torch.equal(batch.fresh, other.fresh)
        for half, begin in ((halves[0][step], 0), (halves[1][step], 2)):
            width = half.tokens.shape[1]
            assert torch.equal(batch.tokens[begin : begin + 2, :width], half.tokens)


@pytest.mark.parametrize("name", CASES)
def test_another_seed_gives_other_batches(name: str, tmp_path: Path) -> None:
    # Documents are dealt to lanes without chance; their order is shuffled.
    first, second = (batches(load(name, tmp_path, seed), range(4), 0, 0, 60) for seed in (1, 2))
    assert any(not torch.equal(a.tokens, b.tokens) for a, b in zip(first, second, strict=True))


def test_held_out_batches_are_not_trained_on() -> None:
    data = load_data(CASES["needle"], batch_size=4, seed=0)
    held_out = data.held_out.windows(0, range(4))[0].tokens
    assert all(
        not np.array_equal(held_out, w.tokens)
        for step in range(20)
        for w in data.train.windows(step, range(4))
    )


def test_curriculum_starts_when_it_should() -> None:
    data = load_data(CASES["mqar"], batch_size=2, seed=0)
    lengths = [len(data.train.windows(step, range(1))[0].tokens) for step in range(40)]
    assert lengths[:3] == [16, 16, 16]
    assert set(lengths[3:]) == {16, 32}
    assert lengths.count(32) > lengths[3:].count(16)
    held_out = [len(data.held_out.windows(step, range(1))[0].tokens) for step in range(4)]
    assert held_out == [16, 32, 16, 32]


def test_only_the_answer_is_asked_for() -> None:
    data = load_data(CASES["niah"], batch_size=2, seed=0)
    assert data.tokenizer is not None
    (window,) = data.train.windows(0, range(1))
    asked = window.targets[window.targets != IGNORED]
    text = data.tokenizer.decode(asked)
    assert text.startswith(" ") and text.endswith(".<|eos|>")
    number = text[1:].split(".")[0]
    assert number.isdigit() and len(number) == 7
    assert f"is: {number}." in data.tokenizer.decode(window.tokens)


def test_a_haystack_begins_anywhere_in_training(tmp_path: Path) -> None:
    essay = tmp_path / "essay.txt"
    essay.write_text(" ".join(f"Sentence number {n} is here." for n in range(500)))
    config = DataConfig(
        source="niah", path=str(essay), sequence_len=640, task={"kind": "n", "answer_tokens": 20}
    )
    data = load_data(config, batch_size=8, seed=0)
    assert data.tokenizer is not None
    windows = data.train.windows(0, range(8))
    begins = {data.tokenizer.decode(w.tokens[:180])[-30:] for w in windows}
    assert len(begins) == 8


@pytest.mark.parametrize("share", [2, 1])
def test_training_looks_elsewhere_where_a_haystack_does_not_fit(share: int, tmp_path: Path) -> None:
    """A word longer than the sample, as addresses of web pages are, at every second sentence."""
    essay = tmp_path / "essay.txt"
    words = ["x" * 900 if n % share == 0 else "Here" for n in range(500)]
    essay.write_text(" ".join(f"{word} is sentence {n}." for n, word in enumerate(words)))
    config = DataConfig(
        source="niah", path=str(essay), sequence_len=640, task={"kind": "n", "answer_tokens": 20}
    )
    data = load_data(config, batch_size=8, seed=0)
    if share == 2:
        assert all(len(w.tokens) <= 640 for w in data.train.windows(0, range(8)))
    else:
        with pytest.raises(DataError, match="does not fit in 640 tokens"):
            data.train.windows(0, range(8))


def test_babilong_stream(tmp_path: Path) -> None:
    babi, books = tmp_path / "babi", tmp_path / "books"
    babi.mkdir()
    books.mkdir()
    story = "1 Mary moved to the {0}.\n2 John went to the hallway.\n3 Where is Mary? \t{0}\t1\n"
    places = ["kitchen", "garden", "office", "bedroom"] * 10
    (babi / "qa1_single-supporting-fact_train.txt").write_text("".join(map(story.format, places)))
    (books / "b.txt").write_text("It was a long day in the old house, and it rained. " * 200)
    config = DataConfig(
        source="babilong",
        path=str(books),
        task={"babi_path": str(babi), "length": 300, "prompt_tokens": 100},
    )
    data = load_data(config, batch_size=2, seed=0)
    (window,) = data.train.windows(0, range(1))
    assert data.tokenizer is not None
    text = data.tokenizer.decode(window.tokens)
    answer = data.tokenizer.decode(window.targets[window.targets != IGNORED])
    assert f"Mary moved to the {answer[1:].split('.')[0]}" in text
    assert "\nQuestion: Where is Mary?\nAnswer:" in text
    with pytest.raises(ConfigError, match="babi_path"):
        load_data(DataConfig(source="babilong"), batch_size=1, seed=0)


def test_whole_stories_ask_every_question_where_it_stood(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "b.txt").write_text("It was a long day in the old house. " * 200)
    story = (
        "1 Mary moved to the {0}.\n2 Where is Mary? \t{0}\t1\n"
        "3 Mary went to the {1}.\n4 Where is Mary? \t{1}\t3\n"
    )
    places = ["kitchen", "garden", "office", "bedroom"]
    lines = [story.format(a, b) for a in places for b in places if a != b] * 3
    (tmp_path / "qa1_single-supporting-fact_train.txt").write_text("".join(lines))
    config = DataConfig(
        source="babilong",
        path=str(tmp_path / "books"),
        task={"babi_path": str(tmp_path), "length": 300, "prompt_tokens": 100},
        mixture=({"whole_stories": True},),
    )
    data = load_data(config, batch_size=4, seed=0)
    assert data.tokenizer is not None
    for window in data.train.windows(0, range(4)):
        text = data.tokenizer.decode(window.tokens)
        first, second = re.findall(r"Mary (?:moved|went) to the (\w+)\.", text)
        asked = data.tokenizer.decode(window.targets[window.targets != IGNORED])
        assert asked == f" {first}. {second}.<|eos|>"
        order = [text.index(part) for part in (f"moved to the {first}", f"Answer: {first}")]
        order += [text.index(f"went to the {second}"), text.index(f"Answer: {second}")]
        assert order == sorted(order)


def test_task_options_are_checked() -> None:
    bad = DataConfig(source="mqar", task={"num_pair": 3})
    with pytest.raises(ConfigError, match=r"did you mean data\.task\.num_pairs"):
        synthetic_vocab_size(bad)
    with pytest.raises(ConfigError, match="length must be even"):
        load_data(DataConfig(source="mqar", task={"length": 63}), batch_size=1, seed=0)
    with pytest.raises(ConfigError, match="needs a haystack"):
        load_data(DataConfig(source="niah", task={"kind": "n"}), batch_size=1, seed=0)
    with pytest.raises(ConfigError, match="one variation must start at step 0"):
        load_data(DataConfig(source="needle", mixture=({"from_step": 5},)), batch_size=1, seed=0)


def test_nothing_to_train_on_and_short_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data PATH"):
        load_data(DataConfig(), batch_size=1, seed=0)
    path = tmp_path / "short.txt"
    path.write_text("too short")
    config = DataConfig(path=str(path), cache_dir=str(tmp_path / "c"), sequence_len=64)
    with pytest.raises(DataError, match="too few for windows of 64"):
        load_data(config, batch_size=1, seed=0)


def test_validation_path(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a" * 100)
    (tmp_path / "valid.txt").write_text("b" * 100)
    config = DataConfig(
        path=str(tmp_path / "train.txt"),
        validation_path=str(tmp_path / "valid.txt"),
        cache_dir=str(tmp_path / "c"),
        sequence_len=10,
    )
    data = load_data(config, batch_size=2, seed=0)
    assert set(data.held_out.windows(0, range(1))[0].tokens.tolist()) == {ord("b")}
    assert set(data.train.windows(0, range(1))[0].tokens.tolist()) == {ord("a")}
