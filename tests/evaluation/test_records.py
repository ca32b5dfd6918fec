"""Records, intervals, lengths and the runner: exact, resumable, without paths of a machine."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluation.subjects import CARD, Scripted, needle_in_tokens
from titans.errors import DataError
from titans.evaluation.heatmap import draw_heat_map
from titans.evaluation.lengths import format_length, parse_length, parse_lengths
from titans.evaluation.record import Record, load_records, machine_name
from titans.evaluation.runner import Stopped, run_task
from titans.files import describe_path
from titans.tasks.needle import Needle
from titans.tasks.score import Score, accuracy_score, mean_score, wilson_interval


def test_lengths_are_powers_of_two() -> None:
    assert parse_lengths("2k,16K,2M,500") == (2_048, 16_384, 2_097_152, 500)
    assert [format_length(n) for n in (2_048, 2_097_152, 500, 0)] == ["2K", "2M", "500", "0"]
    for text in ("2.5k", "k", "", "-1", "2g"):
        with pytest.raises(ValueError, match="a length is written"):
            parse_length(text)


@pytest.mark.parametrize(
    ("mean", "samples", "low", "high"),
    [(0.5, 10, 0.2366, 0.7634), (1.0, 20, 0.8389, 1.0), (0.0, 500, 0.0, 0.00762)],
)
def test_wilson_matches_published_values(
    mean: float, samples: int, low: float, high: float
) -> None:
    assert wilson_interval(mean, samples) == pytest.approx((low, high), abs=1e-4)


def test_wilson_covers_the_truth_95_times_in_100() -> None:
    # Averaged over many truths: for one of them the coverage of any interval jumps with it.
    rng = np.random.default_rng(0)
    truths = rng.uniform(0.05, 0.95, 4_000)
    intervals = [wilson_interval(rng.binomial(100, truth) / 100, 100) for truth in truths]
    covered = [low <= p <= high for p, (low, high) in zip(truths, intervals, strict=True)]
    assert 0.94 < np.mean(covered) < 0.96
    with pytest.raises(ValueError, match="at least one sample"):
        wilson_interval(0.5, 0)


def test_scores_of_means() -> None:
    score = mean_score([1.0, 2.0, 3.0], "x", length=8, detail={"depth": 2})
    assert score.value == 2 and score.high - score.value == pytest.approx(1.959964 / 3**0.5)
    assert mean_score([5.0], "x").low == 5
    assert accuracy_score([1, 0, 1, 1]).value == 0.75
    assert score.matches("x", 8, depth=2) and not score.matches("x", 8, depth=3)


def make_record(**changes: object) -> Record:
    fields = {
        "task": "needle",
        "model": CARD,
        "options": {"a": 1},
        "seed": 1,
        "scores": (Score(metric="accuracy", value=0.5, low=0.4, high=0.6, samples=9, length=64),),
        "seconds": 1.5,
        "commit": "abc",
        "version": "0",
        "machine": "m",
    }
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def test_records_survive_the_disk(tmp_path: Path) -> None:
    record = make_record()
    record.save(tmp_path / "deep" / "r.json")
    assert Record.load(tmp_path / "deep" / "r.json") == record
    assert load_records(tmp_path) == [record]
    (tmp_path / "bad.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match=r"bad\.json is not an evaluation record"):
        load_records(tmp_path)
    with pytest.raises(DataError, match="another format"):
        Record.from_json('{"format": 99}')


def test_paths_are_named_by_content_not_by_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "text.txt").write_text("same")
    first, second = (describe_path(tmp_path / p / "text.txt") for p in ("one", "two"))
    assert (
        first == second and str(first).startswith("text.txt@") and str(tmp_path) not in str(first)
    )
    (tmp_path / "two" / "text.txt").write_text("other")
    assert describe_path(tmp_path / "two" / "text.txt") != first


class Failing(Scripted):
    """Answers rightly until it has been asked `after` times."""

    def __init__(self, after: int) -> None:
        super().__init__(predict=needle_in_tokens)
        self.left = after

    def predict(self, tokens):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().predict(tokens)


def test_a_stopped_run_goes_on_and_ends_with_the_same_record(tmp_path: Path) -> None:
    task = Needle(lengths=(64, 2_048), samples=40)
    whole = run_task(task, Failing(99), CARD, path=tmp_path / "whole.json")
    with pytest.raises(Stopped) as stopped:
        run_task(task, Failing(2), CARD, path=tmp_path / "part.json")
    journal = tmp_path / "part.json.partial.jsonl"
    assert stopped.value.journal == journal
    known = [(s.length, s.samples) for s in stopped.value.record.scores if s.metric == "accuracy"]
    assert known == [(64, 40), (2_048, 16)]
    assert journal.exists() and not (tmp_path / "part.json").exists()
    with journal.open("a") as stream:
        stream.write('{"cell": "2048", "sam')
    subject = Failing(99)
    record = run_task(task, subject, CARD, path=tmp_path / "part.json")
    assert record.scores == whole.scores and not journal.exists()
    assert 99 - subject.left < 99 - 94


def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    lengths, path = (64, 128), tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        run_task(Needle(lengths=lengths, samples=4), Failing(1), CARD, path=path)
    other = Needle(lengths=lengths, samples=4, num_needles=2)
    with pytest.raises(DataError, match="belongs to another run"):
        run_task(other, Failing(9), CARD, path=path)
    # The weights are the same, but the model reads otherwise.
    changed = dataclasses.replace(CARD, settings={"write_threshold": 0.5})
    with pytest.raises(DataError, match="belongs to another run"):
        run_task(Needle(lengths=lengths, samples=4), Failing(9), changed, path=path)


def test_a_run_that_failed_before_its_first_sample_does_not_block_its_correction(
    tmp_path: Path,
) -> None:
    task, path = Needle(lengths=(64,), samples=4), tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        run_task(task, Failing(0), CARD, path=path)
    corrected = Needle(lengths=(64,), samples=4, num_needles=2)
    assert run_task(corrected, Failing(9), CARD, path=path).options["num_needles"] == 2


def test_a_run_that_was_killed_twice_while_writing_loses_only_those_lines(tmp_path: Path) -> None:
    task, path = Needle(lengths=(64, 2_048), samples=40), tmp_path / "r.json"
    journal = tmp_path / "r.json.partial.jsonl"
    for asked in (1, 1):
        with pytest.raises(KeyboardInterrupt):
            run_task(task, Failing(asked), CARD, path=path)
        with journal.open("a") as stream:
            stream.write('{"cell": "2048", "sam')
    whole = [line for line in journal.read_text().splitlines()[1:] if line.endswith("}")]
    assert all("outcome" in json.loads(line) for line in whole) and len(whole) == 40 + 16


def test_without_a_path_each_measurement_has_its_own_record_in_the_folder(tmp_path: Path) -> None:
    said: list[str] = []
    for samples, depths in ((4, 0), (4, 0), (4, 2), (8, 0)):
        task = Needle(lengths=(64, 128), samples=samples, depths=depths)
        run_task(task, Failing(99), CARD, folder=tmp_path / "runs", say=said.append)
    names = {path.name for path in (tmp_path / "runs").iterdir()}
    assert len(names) == 2 and all(name.startswith("needle-stand-in-") for name in names)
    assert "about " in said[0] and " for 512 tok" in said[0] and said[1].startswith("wrote ")


def test_a_machine_is_named_with_the_threads_in_use() -> None:
    assert f", {torch.get_num_threads()} thread" in machine_name()


def test_results_do_not_depend_on_the_batch_size() -> None:
    task = Needle(lengths=(64,), samples=10)
    (cell,) = task.cells()
    subject = Scripted(predict=lambda tokens: tokens % 40)
    together = task.measure(subject, cell, 3, range(10))
    apart = [task.measure(subject, cell, 3, [sample])[0] for sample in range(10)]
    assert together == apart


def test_a_heat_map_is_the_same_file_for_the_same_record(tmp_path: Path) -> None:
    record = run_task(
        Needle(lengths=(64, 128), samples=2, depths=3), Scripted(predict=needle_in_tokens), CARD
    )
    draw_heat_map(record, tmp_path / "a.png")
    draw_heat_map(record, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with pytest.raises(DataError, match="no accuracy by depth"):
        draw_heat_map(make_record(), tmp_path / "c.png")


def test_json_is_plain(tmp_path: Path) -> None:
    content = json.loads(make_record().to_json())
    assert content["format"] == 1 and content["scores"][0]["samples"] == 9
