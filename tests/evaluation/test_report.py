"""docs/results.md: exactly what the records give, and no number of ours that no record has."""

import dataclasses
import json
import re
import statistics
from pathlib import Path

import pytest

from evaluation.report_records import named, record
from titans.evaluation import paper
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, accuracy_score, load_records, mean_score
from titans.evaluation.report import main, render
from titans.evaluation.report_cells import percent

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "results"


def everything() -> list[Record]:
    some = [1, 1, 0, 1]
    bits = mean_score([1.5, 1.75], "bits_per_byte", length=256)
    speed = {"length": 512, "detail": {"phase": "train", "depth": 2}}
    return [
        record("needle", [accuracy_score(some, length=64)]),
        record("s-niah", [accuracy_score(some, length=2_048, detail={"kind": "pk"})]),
        record(
            "mqar",
            [accuracy_score(some, length=64, detail={"pairs": 4, "updates": 0})],
            setting="b",
            vocab_size=8_192,
        ),
        record("babilong", [accuracy_score(some, length=1_024, detail={"task": "qa1"})]),
        record("permutations", [accuracy_score(some, metric="last_accuracy", length=32)], degree=3),
        record("lm", [bits], text="book.txt@123"),
        record(
            "throughput",
            [
                mean_score([1_000.0], "tokens_per_second", **speed),
                mean_score([0.25], "memory_share", **speed),
            ],
        ),
    ]


def test_every_task_has_a_section_with_ours_and_the_papers() -> None:
    page = render(everything())
    for shown in (
        "75.0 [30.1, 95.4]",
        "*98.4*",
        "*0.96* at 34k",
        "*99*",
        "1.6250",
        "| 1000 (25 %) |",
    ):
        assert shown in page
    assert page.count("75.0 [30.1, 95.4]") == 5 and "| - | - | - | 75.0 |" in page


def test_a_missing_number_is_a_dash() -> None:
    assert percent(None) == "-"
    ours = [
        record("needle", [accuracy_score([1], length=64)]),
        record("needle", [accuracy_score([1], length=128)]),
    ]
    assert "| - |" in render(ours)


def test_the_page_is_what_the_records_give(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    words = {"results": RESULTS, "page": page, "figures": tmp_path / "figures", "root": ROOT}
    main([word for name, path in words.items() for word in (f"--{name}", str(path))])
    assert page.read_text() == PAGE.read_text(), "docs/results.md is stale: run `make results`"
    drawn = {file.name for file in (tmp_path / "figures").glob("*.png")}
    assert drawn == {file.name for file in (ROOT / "docs" / "figures").glob("*.png")}


def shown_numbers(page: str) -> set[str]:
    """Numbers in rows of targets and in those that begin with a model's name in code style,
    provenance left out. The first cell of a row, what it is about, is not a measurement."""
    made = re.compile(r"`(titans eval|python benchmarks)")
    targets = page.partition("## Targets")[2].partition("\n## ")[0].splitlines()
    rows = [line for line in page.splitlines() if line.startswith("| `") and not made.search(line)]
    rows += [re.sub("`[^`]*`", "", line) for line in targets if line.startswith("| ")]
    cells = [cell for row in rows for cell in row.split("|")[2:]]
    return {number for cell in cells for number in re.findall(r"\d+\.\d+|\d{3,}", cell)}


def known_numbers(records: list[Record]) -> set[str]:
    """Every way in which the page may write a number of a record."""
    known = set()
    for found in records:
        for score in found.scores:
            for value in (score.value, score.low, score.high):
                known |= {
                    f"{100 * value:.1f}",
                    f"{value:.4f}",
                    f"{value:.2f}",
                    f"{value:.0f}",
                    f"{100 * value:.0f}",
                }
            known |= {str(score.length), str(score.samples)}
            known |= set(re.findall(r"\d+", format_length(score.length or 0)))
            # Positions in a text are shown with their last one, records have the one behind it.
            known |= {str(score.detail.get("from")), str(int(str(score.detail.get("to", 1))) - 1)}
        known |= {str(found.options.get("answer_tokens"))}
        for length in {s.length for s in found.scores if found.task == "babilong"}:
            tasks = [s.value for s in found.scores if s.matches("accuracy", length)]
            known.add(f"{100 * statistics.fmean(tasks):.1f}")
        known.add(str(found.model.settings.get("write_threshold")))
        if found.task == "mqar":
            known |= set(f"{found.model.num_parameters:,}".split(","))
            known.add(f"{100 * statistics.fmean(s.value for s in found.scores):.1f}")
            for name in ("state_numbers", "learning_rate", "tokens", "minutes"):
                value = found.model.settings.get(name)
                known |= set() if value is None else set(f"{value:,}".split(","))
    return known | known_means(records)


def known_means(records: list[Record]) -> set[str]:
    """Means and spreads over the seeds of a sweep's rows, worked out here anew."""
    values: dict[tuple, list[float]] = {}
    trainings: dict[tuple, list[float]] = {}
    known = set()
    for found in records:
        if found.sweep:
            known |= set(f"{found.model.num_parameters:,}".split(","))
            row = found.model.name.rsplit("-seed", 1)[0]
            if "trained_tokens" in found.model.settings:
                known |= set(f"{found.model.settings['trained_tokens']:,}".split(","))
                minutes = float(str(found.model.settings["trained_seconds"])) / 60
                trainings.setdefault((found.sweep, row, found.options.get("text")), []).append(
                    minutes
                )
            if found.task == "mqar":
                mean = statistics.fmean(s.value for s in found.scores if s.metric == "accuracy")
                segments = (found.sweep, row, found.options.get("setting"), "over segments")
                values.setdefault(segments, []).append(mean)
            for score in found.scores:
                options = [str(found.options.get(name)) for name in ("setting", "text")]
                cell = (found.sweep, row, found.task, *options)
                key = (*cell, score.metric, score.length, str(score.detail))
                values.setdefault(key, []).append(score.value)
    known |= {f"{statistics.fmean(minutes):.1f}" for minutes in trainings.values()}
    for same in values.values():
        mean, spread = statistics.fmean(same), statistics.stdev(same) if len(same) > 1 else 0.0
        known |= {f"{mean:.4f}", f"{spread:.4f}", f"{100 * mean:.1f}", f"{100 * spread:.1f}"}
    return known


def known_costs() -> set[str]:
    """What the trainings of shipped checkpoints took, and the tokens that sweeps plan."""
    known = set()
    for folder in (ROOT / "checkpoints").iterdir():
        ends, minutes = [], 0.0
        for log in folder.rglob("log.jsonl"):
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            lines = [line for line in lines if line["kind"] == "train"]
            ends.append(lines[-1])
            minutes += sum(line["seconds"] for line in lines) / 60
        for name in ("step", "tokens"):
            known |= set(f"{sum(end[name] for end in ends):,}".split(","))
        known.add(f"{minutes:.0f}")
        text = "".join(file.read_text() for file in folder.rglob("config.yaml"))
        lengths = re.findall(r"(?:length|sequence_len): (\d+)", text)
        known |= {format_length(int(length)) for length in lengths}
    # Steps, sequences and length of the ablation, language (two texts) and recall sweeps.
    for steps, sequences, length in ((150, 8, 256), (300, 8, 256), (600, 8, 256), (400, 64, 64)):
        known |= set(f"{steps * sequences * length:,}".split(","))
    return known


def test_a_sweep_shows_mean_and_spread_over_its_seeds() -> None:
    rows = [
        dataclasses.replace(
            record("mqar", [accuracy_score([value] * 4, length=64, detail={"pairs": 4})]),
            sweep="ablation",
            command="titans sweep sweeps/ablation.yaml",
        )
        for value in (0.5, 1.0)
    ]
    rows = [
        dataclasses.replace(r, model=dataclasses.replace(r.model, name=f"full-seed{seed}"))
        for seed, r in enumerate(rows)
    ]
    page = render(rows)
    assert "## Sweep: ablation" in page and "| `full` | 2 |" in page
    assert "75.0 ± 35.4" in page and "*85.34*" in page
    assert "titans sweep sweeps/ablation.yaml" in page
    assert "## Associative recall" not in page, "a sweep's rows stand in its own table only"
    assert not shown_numbers(page) - known_numbers(rows)


def test_a_sweep_shows_what_its_rows_were_trained_with_where_records_know_it() -> None:
    score = accuracy_score([1.0], length=64, detail={"pairs": 4})
    old = dataclasses.replace(record("mqar", [score]), sweep="recall")
    page = render([named(old, "full-seed0")])
    assert "equal tuning effort: none" in page
    budget = {"trained_tokens": 1_234_567}
    rows = [
        named(old, "full-seed0"),
        named(old, "ttt-seed0", trained_seconds=90.0, **budget),
        named(old, "ttt-seed1", trained_seconds=120.0, **budget),
    ]
    page = render(rows)
    assert "| row | seeds | parameters | training tokens | minutes | mqar, 64, 4 pairs |" in page
    assert "| `full` | 1 | 0 | not recorded | not recorded | 100.0 [20.7, 100.0] |" in page
    assert "| `ttt` | 2 | 0 | 1,234,567 | 1.8 | 100.0 ± 0.0 |" in page
    assert not shown_numbers(page) - known_numbers(rows)


def test_a_sweep_on_two_texts_has_two_tables() -> None:
    rows = [
        dataclasses.replace(
            record("lm", [mean_score([value] * 4, "bits_per_byte", length=256)]),
            sweep="language",
            options={"text": f"{name}.txt@0"},
        )
        for name, value in (("one", 2.0), ("two", 3.0))
    ]
    page = render(rows)
    first, second = page.split("## Sweep: language, on ")[1:]
    assert "| *Titans MAC* | *25.43* | *28.13* |" in first and "*RetNet* | *32.50*" in first
    assert "32K" in first, "what differs from ours is said"
    assert "*25.43*" not in second, "the paper's table stands once"
    assert first.startswith("one") and "2.0000" in first and "3.0000" not in first
    assert second.startswith("two") and "3.0000" in second and "2.0000" not in second
    assert not shown_numbers(page) - known_numbers(rows)


def test_no_number_of_ours_is_shown_that_no_record_has() -> None:
    records = load_records(RESULTS)
    assert records, "there are records to show"
    unknown = shown_numbers(PAGE.read_text()) - known_numbers(records) - known_costs()
    assert not unknown, f"docs/results.md shows numbers that are in no record: {sorted(unknown)}"


def test_the_check_notices_an_invented_number() -> None:
    page = render(everything()) + "\n| `stand-in` | 99.9 |\n"
    assert shown_numbers(page) - known_numbers(everything()) == {"99.9"}
    typed = render(everything()).replace("| no record |", "| `a 128` 98.7 |", 1)
    assert shown_numbers(typed) - known_numbers(everything()) == {"98.7"}


@pytest.mark.parametrize("values", [paper.S_NIAH["Titans MAC"], paper.S_NIAH["TTT"]])
def test_the_papers_table_has_four_lengths(values: dict[str, tuple[float, ...]]) -> None:
    assert {len(row) for row in values.values()} == {len(paper.S_NIAH_LENGTHS)}


def test_the_papers_ablation_agrees_with_its_own_tables() -> None:
    """Table 5's long-context column is the mean of table 2's twelve cells (LMM)."""
    cells = [value for row in paper.S_NIAH["Titans LMM"].values() for value in row]
    assert paper.ABLATION["LMM"][2] == pytest.approx(sum(cells) / 12, abs=0.01)
