"""Sections of docs/results.md that sort or join rows: throughput, MQAR and BABILong."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from evaluation.report_records import accuracies, named, record, rows_of, speeds
from titans.evaluation import paper
from titans.evaluation.records import Record, Value, accuracy_score, mean_score
from titans.evaluation.report_depths import depth_caption, depth_section
from titans.evaluation.report_mqar import mqar_section
from titans.evaluation.report_questions import babilong_section
from titans.evaluation.report_throughput import throughput_section


def test_records_of_one_model_share_a_row_and_the_first_one_wins() -> None:
    records = [
        speeds({512: 100, 2_048: 200}, phase="train"),
        speeds({2_048: 999, 16_384: 300}, phase="train"),
        speeds({512: 50}, phase="decode"),
        named(speeds({2_048: 7}, phase="train"), "other"),
    ]
    assert rows_of(throughput_section(records)) == [
        ["`stand-in`", "train", "own", "100", "200", "300"],
        ["`stand-in`", "decode", "own", "50", "-", "-"],
        ["`other`", "train", "own", "-", "7", "-"],
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_own_depth_is_never_filled_from_a_given_depth(order: int) -> None:
    records = [
        speeds({512: 11}, phase="train", depth=1),
        speeds({512: 22}, phase="train", depth=2),
        speeds({2_048: 33}, phase="train"),
    ]
    rows = rows_of(throughput_section(records[::order]))
    assert rows[::order] == [
        ["`stand-in`", "train", "1", "11", "-"],
        ["`stand-in`", "train", "2", "22", "-"],
        ["`stand-in`", "train", "own", "-", "33"],
    ]


def test_own_depth_has_its_number_and_two_readings_of_it_are_held_together() -> None:
    own = speeds({512: 100, 2_048: 100, 4_096: 7}, phase="train")
    given = speeds({512: 120, 2_048: 80}, phase="train", depth=2)
    other = speeds({512: 500}, phase="train", depth=1)
    records = [named(r, "lmm", memory_depth=2) for r in (own, given, other)]
    section = throughput_section(records)
    assert [row[2] for row in rows_of(section)] == ["own (2)", "2", "1"]
    assert "`lmm` was read twice at depth 2" in section
    assert "lie apart by 20 to 25 % (train);" in section
    assert "read twice" not in throughput_section([records[0], records[2]])
    attention = dataclasses.replace(own, model=dataclasses.replace(own.model, variant="swa"))
    assert rows_of(throughput_section([attention]))[0][2] == "-"


def test_the_share_is_of_the_record_that_has_the_speed() -> None:
    share = mean_score([0.25], "memory_share", length=512, detail={"phase": "train"})
    records = [speeds({512: 100}, phase="train"), record("throughput", [share])]
    assert rows_of(throughput_section(records))[0][-1] == "100"
    both = record("throughput", [*records[0].scores, share])
    assert rows_of(throughput_section([both]))[0][-1] == "100 (25 %)"


def test_speeds_have_intervals_where_they_were_repeated() -> None:
    detail: dict[str, Value] = {"phase": "train"}
    repeated = mean_score([90.0, 100.0, 110.0], "tokens_per_second", length=512, detail=detail)
    share = mean_score([0.25], "memory_share", length=512, detail=detail)
    section = throughput_section([record("throughput", [repeated, share])])
    assert rows_of(section)[0][-1] == "100 [89, 111] (25 %)"
    assert "means of 3 repetitions" in section


def test_the_papers_figures_stand_below_ours() -> None:
    section = throughput_section([speeds({512: 100}, phase="train")])
    assert "| *1* | *44.3* |" in section and "figure 8" in section
    assert "| *Titans MAC* | *36.05* | *36.05* | *35.95* | *35.85* |" in section
    assert section.index("figure 8") < section.index("figure 9") < section.index("*Transformer++*")


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        (paper.THROUGHPUT, paper.THROUGHPUT_LENGTHS),
        (paper.DEPTH_THROUGHPUT, paper.DEPTH_THROUGHPUT_LENGTHS),
    ],
)
def test_the_papers_rows_have_a_value_per_length(
    values: dict[object, Sequence[float]], lengths: Sequence[int]
) -> None:
    assert {len(row) for row in values.values()} == {len(lengths)}


def recall(name: str, accuracy: float, **settings: object) -> Record:
    score = accuracy_score([accuracy] * 4, length=64, detail={"pairs": 4, "updates": 0})
    return named(record("mqar", [score], setting="b", vocab_size=8_192), name, **settings)


def test_recall_is_sorted_by_state_then_by_mean() -> None:
    records = [
        recall("unknown", 1.0),
        recall("wide", 0.9, state_numbers=16_384, learning_rate=3e-3, tokens=1_000, minutes=4.0),
        recall("worse", 0.2, state_numbers=4_096, learning_rate=3e-3),
        recall("better", 0.5, state_numbers=4_096, learning_rate=1e-3),
    ]
    rows = [[row[0], *row[2:7]] for row in rows_of(mqar_section(records))]
    assert rows == [
        ["`better`", "4,096", "0.001", "-", "-", "50.0"],
        ["`worse`", "4,096", "0.003", "-", "-", "20.0"],
        ["`wide`", "16,384", "0.003", "1,000", "4.0", "90.0"],
        ["`unknown`", "-", "-", "-", "-", "100.0"],
    ]
    section = mqar_section(records)
    size = records[0].model.num_parameters
    assert f"| `wide` | {size:,} | 16,384 |" in section
    units = "parameters | state (numbers) | learning rate | training tokens | CPU minutes"
    assert f"| model | {units} | mean |" in section, (
        "numbers are not to be read as the published bytes"
    )
    assert "vocabulary 8192, 4 examples per segment:" in section
    assert "4 per number" in section and "3 d numbers of the convolution" in section


def test_recall_tells_what_not_all_rows_have() -> None:
    records = [
        recall("plain", 0.5, memory_key_lag=None, decorrelate=0.0, memory_step_max=1.0),
        recall(
            "ours",
            0.6,
            memory_written="first",
            memory_init="zero_first",
            memory_key_lag=1,
            decorrelate=0.02,
        ),
    ]
    section = mqar_section(records)
    assert (
        "- `ours`: of its layers the first alone is written; its first weights are not learned "
        "(zero_first); keys start with what stands 1 token before; a loss that keeps keys, and "
        "values, apart in training, weight 0.02.\n"
    ) in section
    assert "- `plain`" not in section
    assert "Chosen for single rows" not in mqar_section(records[:1])


def test_the_mean_of_five_tasks_is_of_one_model_that_was_asked_them_all() -> None:
    five = [
        accuracies("babilong", {1_024: value, 2_048: 1}, task=f"qa{number}")
        for number, value in enumerate((1.0, 0.5, 0.0, 0.25, 0.5), start=1)
    ]
    five[4] = accuracies("babilong", {1_024: 0.5}, task="qa5")
    rows = rows_of(babilong_section(five))
    assert rows[-1] == ["`stand-in`", "mean qa1-5", "45.0", "-"]
    assert "Our means" in babilong_section(five)
    split = [*five[:4], named(five[4], "other")]
    assert not any("mean" in row[1] for row in rows_of(babilong_section(split)))
    assert "Our means" not in babilong_section(split)


def by_depth(values: Sequence[float]) -> Record:
    scores = [
        accuracy_score([value] * 4, length=2_048, detail={"kind": "n", "depth": depth / 2})
        for depth, value in enumerate(values)
    ]
    terms = {"answer_tokens": 40, "words": None, "haystack": "essays@1"}
    return named(record("s-niah", scores, **terms), "lmm", write_threshold=0.5)


def test_a_map_says_what_it_is_of_and_where_it_is_worst(tmp_path: Path) -> None:
    assert depth_caption(by_depth([0.25, 1, 0.75])) == (
        "`lmm`, threshold 0.5. S-NIAH-N: 4 samples per cell, answer tokens 40, key words built in, "
        "haystack `essays`. Worst: 25.0 [4.6, 69.9] at 2K, depth 0 %; 2 of 3 cells are below 100. "
        "Made by `titans eval s-niah`, commit abc."
    )
    tie = depth_caption(by_depth([0.5, 1, 0.5]))
    assert "at 2K, depth 0 % and at 2K, depth 100 %; 2 of 3 cells" in tie
    assert "No cell of 2 is below 100." in depth_caption(by_depth([1, 1]))
    section = depth_section([by_depth([1, 1])], tmp_path / "figures")
    link = section.index("![lmm, depth and length](figures/s-niah-lmm.png)")
    assert link < section.index("No cell of 2") and (tmp_path / "figures/s-niah-lmm.png").exists()
    assert not depth_section([recall("plain", 1.0)], tmp_path)
