"""docs/results.md: its numbers are the records', its verdicts follow from them."""

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from results.build import ROOT, about_memory, load_published, render
from results.figures import draw_mqar, draw_s_niah
from results.query import Number, all_numbers, best, values
from results.targets import judge
from titans.evaluation.record import ModelCard, Record, load_records
from titans.tasks.score import accuracy_score

PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def record(
    name: str,
    scores: Mapping[int, float],
    *,
    sweep: str = "",
    rule: str = "chunk",
    **options: object,
) -> Record:
    """A record of a task with an accuracy at each length."""
    card = ModelCard(
        name=name,
        variant="lmm",
        num_parameters=1,
        vocab_size=8,
        digest="-",
        settings={"memory": {"rule": rule}, "minutes": 1.0},
    )
    return Record(
        task="s-niah",
        model=card,
        options=options,
        seed=0,
        scores=tuple(
            accuracy_score([value, value], length=length, detail={"kind": "n"})
            for length, value in scores.items()
        ),
        seconds=1.0,
        commit=None,
        version="0",
        machine="-",
        sweep=sweep,
    )


def numbers(*records: Record) -> list[Number]:
    return all_numbers(records)


def test_the_committed_page_is_what_the_records_give() -> None:
    assert render() == PAGE, "run `make results`"


def test_every_picture_of_the_page_is_there() -> None:
    links = re.findall(r"!\[[^]]+\]\((.+?)\)", PAGE)
    assert len(links) == 10
    for link in links:
        assert (ROOT / "docs" / link).read_bytes().startswith(b"\x89PNG")


def test_the_template_has_no_measured_number() -> None:
    """Figures with decimals come out of records and of published.yaml only."""
    template = (ROOT / "results" / "page.md.j2").read_text(encoding="utf-8")
    prose = re.sub(r"\{\{.*?\}\}|\{#.*?#\}", "", template, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+", prose) == ["0.1", "1.1", "2.5"], "sizes of models and of a token"


def test_a_record_that_changes_changes_the_page(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    file = tmp_path / "results" / "babilong" / "babilong-mac.json"
    content = json.loads(file.read_text())
    score = next(s for s in content["scores"] if s["length"] == 16_384)
    score.update(value=0.123456, low=0.1, high=0.2)
    file.write_text(json.dumps(content))
    page = render(tmp_path)
    row = "| `babilong-mac` | qa1 | 32 to 100 | 14.8 | 100.0 | 100.0 | 100.0 | 100.0 | {} |"
    assert page.count(row.format("12.3")) == 1 and PAGE.count(row.format("100.0")) == 1
    assert "| 12.3; 90.6 | 1 of 2 |" in page and "| 100.0; 90.6 | met |" in PAGE


def test_of_several_texts_the_worst_counts_and_of_several_models_the_best() -> None:
    asked = {"task": "s-niah", "length": 512}
    found = values(
        numbers(
            record("a", {512: 0.9}, haystack="one"),
            record("a", {512: 0.5}, haystack="two"),
            record("b", {512: 0.75}),
        ),
        asked,
    )
    assert [(value.model, value.mean) for value in found] == [("b", 0.75), ("a", 0.5)]


def test_seeds_of_a_sweep_are_averaged() -> None:
    seeds = [record(f"full-seed{n}", {512: v}, sweep="recall") for n, v in enumerate((0.2, 0.4))]
    value = best(numbers(*seeds), {"task": "s-niah", "sweep": "recall"})
    assert value is not None and (value.model, value.seeds) == ("full", 2)
    assert value.mean == pytest.approx(0.3) and value.spread == pytest.approx(0.02**0.5)
    assert best(numbers(*seeds), {"task": "s-niah"}) is None, "sweeps must be asked for by name"


OURS = {"task": "s-niah", "model": "a"}


@pytest.mark.parametrize(
    "part, result",
    [
        ({"ours": OURS, "least": 0.5}, ("50.0", "met")),
        ({"ours": OURS, "least": 0.6}, ("50.0", "missed")),
        ({"ours": OURS, "than": {"model": "b"}}, ("50.0 against 25.0 (b)", "met (1 unclear)")),
        ({"ours": OURS, "than": {"model": "c"}}, ("50.0 against 75.0 (c)", "missed")),
        ({"ours": {**OURS, "model": "none"}, "least": 0}, ("no record", "missed")),
        (
            {"ours": OURS, "than": {"model": "b"}, "same": ["memory.rule"]},
            ("50.0, nothing to compare with", "missed"),
        ),
        (
            {"ours": {**OURS, "model": "$m"}, "each": {"m": ["a", "c"]}, "least": 0.6},
            ("50.0; 75.0", "1 of 2"),
        ),
    ],
)
def test_verdicts(part: Mapping[str, object], result: tuple[str, str]) -> None:
    records = [
        record("a", {512: 0.5}),
        record("b", {512: 0.25}, rule="ttt"),
        record("c", {512: 0.75}),
    ]
    assert judge({"target": "t", "parts": [part]}, numbers(*records))[1:] == result


def test_an_ablation_counts_beyond_the_spread_only() -> None:
    seeds = {"full": (0.5, 0.7), "near": (0.4, 0.6), "far": (0.1, 0.1)}
    records = [
        record(f"{row}-seed{n}", {512: value}, sweep="s")
        for row, found in seeds.items()
        for n, value in enumerate(found)
    ]
    ours = {"task": "s-niah", "sweep": "s", "row": "full"}
    parts = [{"ours": ours, "than": {"row": row}, "beyond": "spread"} for row in ("near", "far")]
    assert judge({"target": "t", "parts": parts}, numbers(*records)).result == "1 of 2"


def test_rows_of_mqar_say_what_their_memory_is() -> None:
    titans = next(r for r in load_records(ROOT / "results/mqar") if r.model.name == "titans 64")
    said = about_memory(titans)
    assert "of which only the first is written, no momentum, no forgetting" in said
    changed = {**titans.model.settings, "memory_momentum": True, "memory_written": "all"}
    card = dataclasses.replace(titans.model, settings=changed)
    other = about_memory(dataclasses.replace(titans, model=card))
    assert "momentum" not in other and "written" not in other


def test_pictures_show_the_records_beside_what_was_published(tmp_path: Path) -> None:
    records = [record("a", {2_048: 0.5, 16_384: 0.25}), record("b", {2_048: 0.125}, rule="ttt")]
    published = load_published(ROOT / "results" / "published.yaml")
    figure = draw_s_niah(numbers(*records), published, tmp_path / "a.png")
    lines = {str(line.get_label()): line for line in figure.axes[1].lines}
    assert list(lines["a"].get_ydata()) == [50, 25] and list(lines["b"].get_ydata()) == [12.5]
    paper = lines["Titans MAC (paper)"]
    assert list(paper.get_ydata()) == list(published["s_niah_n"]["Titans MAC"].values())
    before = (tmp_path / "a.png").read_bytes()
    draw_s_niah(numbers(*records), published, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == before


def test_a_picture_without_records_is_empty_and_no_error(tmp_path: Path) -> None:
    figure = draw_mqar([], {}, tmp_path / "a.png")
    assert [len(axis.lines) for axis in figure.axes] == [0, 0]
