"""Language modelling on the results page: intervals, positions, and how much text was read."""

import dataclasses
import math

import pytest

from evaluation.report_records import named, record, rows_of
from titans.evaluation.records import Record, Score, mean_score
from titans.evaluation.report import render
from titans.evaluation.report_language import covered_text, language_section
from titans.evaluation.report_targets_sweeps import language_targets


def reading(
    values: list[float], length: int, *, bytes_per_token: float = 1.0, **detail: int
) -> list[Score]:
    """Both metrics of windows with these bits per byte."""
    bits = mean_score(values, "bits_per_byte", length=length, detail=dict(detail))
    whole = mean_score([2 ** (bits.value * bytes_per_token)], "perplexity", length=length)
    return [bits, dataclasses.replace(whole, detail=dict(detail), samples=len(values))]


def lm(scores: list[Score], **options: object) -> Record:
    return record("lm", scores, text="book.txt@1", **options)


def test_lengths_and_positions_have_both_metrics_with_intervals() -> None:
    scores = [
        *reading([1.0, 3.0], 4),
        *reading([3.0, 3.0], 4, **{"from": 1, "to": 2}),
        *reading([1.0, 1.0], 4, **{"from": 2, "to": 4}),
    ]
    assert rows_of(language_section([lm(scores)])) == [
        ["`stand-in`", "bits per byte", "2.0000 [0.0400, 3.9600]"],
        ["`stand-in`", "perplexity per token", "4.00 [4.00, 4.00]"],
        ["`stand-in`", "1", "3.0000 [3.0000, 3.0000]", "8.00 [8.00, 8.00]"],
        ["`stand-in`", "2 to 3", "1.0000 [1.0000, 1.0000]", "2.00 [2.00, 2.00]"],
    ]


@pytest.mark.parametrize(
    ("bytes_per_token", "options", "expected"),
    [
        (1.0, {}, "the first 768 bytes of the test text,"),
        (2.5, {}, "the first 768 tokens of the test text,"),
        (1.0, {"tail_bytes": 5_000}, "the first 768 bytes of the last 5,000 bytes of the test"),
    ],
)
def test_the_page_tells_how_much_text_was_read(
    bytes_per_token: float, options: dict[str, object], expected: str
) -> None:
    scores = reading([2.0, 2.0, 2.0], 256, bytes_per_token=bytes_per_token)
    assert expected in covered_text([lm(scores, **options)])
    assert covered_text([lm(scores)] * 2).count("Bits per byte are of") == 1
    assert covered_text([record("mqar", [])]) == ""


def row(name: str, values: list[float], seed: int = 0) -> Record:
    """A row of the sweep, the same at the training length and at eight times that."""
    scores = [*reading(values, 256), *reading(values, 2_048)]
    found = named(record("lm", scores, text="enwik8-test.txt@1"), f"{name}-seed{seed}")
    return dataclasses.replace(found, sweep="language", command="titans sweep sweeps/none.yaml")


def test_one_seed_stands_with_its_interval_several_with_their_spread() -> None:
    page = render([row("mac", [1.0, 3.0]), row("mag", [2.0], 0), row("mag", [4.0], 1)])
    assert page.count("| 2.0000 [0.0400, 3.9600] | 2.0000 [0.0400, 3.9600] |") == 1
    assert page.count("| 3.0000 ± 1.4142 | 3.0000 ± 1.4142 |") == 1
    assert "Bits per byte are of the first 512 bytes of the test text" in page


def sweep(mal: list[float]) -> list[Record]:
    """Three variants that are surely below both baselines, and one that is given."""
    ours = [row(name, [1.0, 1.0]) for name in ("lmm", "mac", "mag")]
    return [
        *ours,
        row("mal", mal),
        row("transformer", [3.0, 3.0]),
        row("sliding-window", [3.5] * 2),
    ]


def test_a_difference_within_overlapping_intervals_is_said_to_be_so() -> None:
    sure = language_targets(sweep([2.0, 2.2]))[0]
    assert sure.verdict == "met" and "within" not in sure.measured
    # The mean is 2.5, the interval reaches 3.48: above one baseline and short of the other.
    unsure = language_targets(sweep([2.0, 3.0]))[0]
    assert unsure.verdict == "met, 2 of the 16 within the interval"
    assert "within the interval: `mal` below `transformer` at 256, " in unsure.measured
    assert "`mal` below `sliding-window`" not in unsure.measured
    missed = language_targets(sweep([3.1, 3.3]))[0]
    assert missed.verdict == "partly, 14 of 16", "3.2 is surely below 3.5, and not below 3"


def test_with_several_seeds_the_spread_takes_the_place_of_the_interval() -> None:
    def verdict(*seeds: float) -> str:
        others = [record for record in sweep([0.0]) if not record.model.name.startswith("mal")]
        ours = [row("mal", [value] * 2, seed) for seed, value in enumerate(seeds)]
        return language_targets([*others, *ours])[0].verdict

    assert verdict(2.0, 2.2) == "met"
    spread = 0.5 * math.sqrt(2)
    assert 2.5 + spread > 3.0
    assert verdict(2.0, 3.0) == "met, 2 of the 16 within the interval"
