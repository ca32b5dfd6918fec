"""Pictures of docs/results.md: what the records give, beside what the paper gives."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.report_records import accuracies, named, speeds
from titans.evaluation import paper
from titans.evaluation.figure_parts import choose_looks
from titans.evaluation.figures import (
    PICTURES,
    Picture,
    draw_babilong,
    draw_pictures,
    draw_s_niah,
    draw_speed_by_depth,
    draw_speed_by_length,
    draw_throughput,
)
from titans.evaluation.records import Record, load_records
from titans.evaluation.report import main, render

ROOT = Path(__file__).parents[2]


def lines_of(axis: Axes, *, dashed: bool) -> dict[str, dict[float, float]]:
    """The points of the paper's lines (dashed) or of ours, by label."""
    return {
        str(line.get_label()): dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axis.lines
        if (line.get_linestyle() == "--") == dashed
    }


def drawn(figure: Figure | None, path: Path) -> list[Axes]:
    assert figure is not None and path.read_bytes().startswith(b"\x89PNG")
    return figure.axes


def everything() -> list[Record]:
    return [
        accuracies("s-niah", {2_048: 0.5, 4_096: 1}, kind="pk"),
        accuracies("babilong", {1_024: 0.25}, task="qa1"),
        speeds({512: 100, 2_048: 50}, phase="train"),
        speeds({2_048: 40}, phase="train", depth=1),
        speeds({2_048: 30}, phase="train", depth=2),
    ]


def test_s_niah_has_a_panel_per_kind_that_was_measured(tmp_path: Path) -> None:
    records = [
        accuracies("s-niah", {2_048: 0.5, 4_096: 1}, kind="pk"),
        accuracies("s-niah", {2_048: 0, 16_384: 0.75}, kind="pk"),
        accuracies("s-niah", {2_048: 0.1}, kind="n", depth=0.5),
        named(accuracies("s-niah", {4_096: 0.25}, kind="w"), "other", write_threshold=0.5),
    ]
    file = tmp_path / "a.png"
    first, second = drawn(draw_s_niah(records, file), file)
    assert (first.get_title(), second.get_title()) == ("S-NIAH-PK", "S-NIAH-W")
    assert lines_of(first, dashed=False) == {"stand-in": {2_048: 50, 4_096: 100, 16_384: 75}}
    assert lines_of(second, dashed=False) == {"other, threshold 0.5": {4_096: 25}}
    published = lines_of(second, dashed=True)
    assert published.keys() == {"TTT (paper)"}
    assert list(published["TTT (paper)"].values()) == list(paper.S_NIAH["TTT"]["w"])


def test_s_niah_spans_the_papers_variants_with_a_grey_area(tmp_path: Path) -> None:
    records = [accuracies("s-niah", {2_048: 0.5}, kind="w")]
    file = tmp_path / "a.png"
    (axis,) = drawn(draw_s_niah(records, file), file)
    (area,) = axis.collections
    corners = np.asarray(area.get_paths()[0].vertices)
    titans = [values["w"] for name, values in paper.S_NIAH.items() if name.startswith("Titans")]
    assert len(titans) == 4
    for place, length in enumerate(paper.S_NIAH_LENGTHS):
        heights = {float(y) for x, y in corners if x == length}
        values = [row[place] for row in titans]
        assert heights == {min(values), max(values)}


def test_s_niah_draws_equal_models_side_by_side_and_names_each_once(tmp_path: Path) -> None:
    def asked(name: str, **options: object) -> Record:
        found = named(accuracies("s-niah", {2_048: 1, 4_096: 1}, kind="n"), name)
        return dataclasses.replace(found, options={"haystack": "essays@1", **options})

    records = [asked("a"), asked("a", each_file=True), asked("b"), asked("b", each_file=True)]
    figure = draw_s_niah(records, tmp_path / "a.png")
    assert figure is not None
    ours = [line for line in figure.axes[0].lines if line.get_linestyle() != "--"]
    places = [round(float(line.get_transform().transform((2_048, 100))[0]), 3) for line in ours]
    assert places[0] == places[1] < places[2] == places[3], "a model stands at one place"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "a",
        "b",
        "in essays",
        "in essays, each file",
        "TTT (paper)",
        "Titans LMM, MAC, MAG, MAL (paper)",
    ]


def test_lengths_are_written_as_in_the_tables(tmp_path: Path) -> None:
    records = [accuracies("babilong", {1_024: 0.5, 2_097_152: 0.5}, task="qa2")]
    file = tmp_path / "a.png"
    (axis,) = drawn(draw_babilong(records, file), file)
    assert axis.get_xscale() == "log"
    shown = [label.get_text() for label in axis.get_xticklabels()]
    assert shown == ["1K", "2K", "4K", "8K", "16K", "32K", "64K", "128K", "2M"]


def test_babilong_has_a_line_per_model_and_task(tmp_path: Path) -> None:
    records = [
        accuracies("babilong", {1_024: 0.5}, task="qa2"),
        accuracies("babilong", {1_024: 1}, task="qa1"),
        named(accuracies("babilong", {2_048: 0}, task="qa1"), "other"),
    ]
    file = tmp_path / "a.png"
    (axis,) = drawn(draw_babilong(records, file), file)
    assert lines_of(axis, dashed=False) == {
        "stand-in, qa1": {1_024: 100},
        "other, qa1": {2_048: 0},
        "stand-in, qa2": {1_024: 50},
    }
    assert len(lines_of(axis, dashed=True)) == len(paper.BABILONG)


def test_throughput_is_at_the_models_own_depth(tmp_path: Path) -> None:
    records = [
        speeds({512: 999}, phase="train", depth=1),
        speeds({512: 100, 2_048: 50}, phase="train"),
        speeds({512: 10}, phase="decode"),
    ]
    file = tmp_path / "a.png"
    train, decode = drawn(draw_throughput(records, file), file)
    assert (train.get_title(), decode.get_title()) == ("train", "decode")
    assert lines_of(train, dashed=False) == {"stand-in": {512: 100, 2_048: 50}}
    assert lines_of(decode, dashed=False) == {"stand-in": {512: 10}}


def test_speed_by_length_is_relative_to_the_papers_first_length(tmp_path: Path) -> None:
    records = [
        speeds({512: 100, 2_048: 50, 4_096: 25}, phase="train"),
        named(speeds({512: 100, 4_096: 50}, phase="train"), "without 2K"),
    ]
    file = tmp_path / "a.png"
    (axis,) = drawn(draw_speed_by_length(records, file), file)
    assert lines_of(axis, dashed=False) == {"stand-in": {512: 2, 2_048: 1, 4_096: 0.5}}
    falls = lines_of(axis, dashed=True)["Transformer++ (paper)"]
    assert falls[2_048] == 1 and falls[16_384] == pytest.approx(24.0 / 49.8)


def test_speed_by_depth_is_relative_to_depth_one(tmp_path: Path) -> None:
    records = [
        speeds({512: 40, 2_048: 80}, phase="train", depth=1),
        speeds({512: 30, 2_048: 20}, phase="train", depth=2),
        speeds({512: 999}, phase="train", depth=2),
        speeds({512: 999}, phase="prefill", depth=3),
        speeds({512: 999}, phase="train"),
    ]
    file = tmp_path / "a.png"
    (axis,) = drawn(draw_speed_by_depth(records, file), file)
    assert lines_of(axis, dashed=False) == {
        "stand-in, 512": {1: 1, 2: 0.75},
        "stand-in, 2K": {1: 1, 2: 0.25},
    }
    assert lines_of(axis, dashed=True)["Titans LMM, 2K (paper)"][4] == pytest.approx(23.6 / 44.3)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.file)
def test_a_picture_is_the_same_bytes_again_and_none_without_records(
    picture: Picture, tmp_path: Path
) -> None:
    chosen = [r for r in everything() if r.task == picture.task]
    for name in ("a.png", "b.png"):
        drawn(picture.draw(chosen, tmp_path / name), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert picture.draw([], tmp_path / "c.png") is None and not (tmp_path / "c.png").exists()


def test_the_page_links_what_was_drawn(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "results.md"
    for number, record in enumerate(everything()):
        record.save(results / f"{number}.json")
    figures = tmp_path / "figures"
    main(["--results", str(results), "--page", str(page), "--figures", str(figures)])
    text = page.read_text()
    for picture in PICTURES:
        link = f"![{picture.title}](figures/{picture.file})"
        assert link in text and (figures / picture.file).exists()
    assert (
        text.index("## Facts in books") < text.index("babilong-length.png") < text.index("| qa1 |")
    )
    assert "![" not in render(everything()), "no link without a picture"
    assert draw_pictures([everything()[1]], tmp_path / "few").keys() == {"babilong"}
    assert [file.name for file in (tmp_path / "few").iterdir()] == ["babilong-length.png"]


def known_points(records: Sequence[Record]) -> set[float]:
    """Every height at which a line of ours may have a point, worked out from the scores alone."""
    known = set()
    for name in {record.model.name for record in records}:
        scores = [s for record in records if record.model.name == name for s in record.scores]
        values = [s.value for s in scores if s.metric in ("accuracy", "tokens_per_second")]
        known |= {round(v, 9) for v in values} | {round(100 * v, 9) for v in values}
        known |= {round(v / other, 9) for v in values for other in values if other}
    return known


def shown_points(figure: Figure) -> set[float]:
    lines: list[Mapping[float, float]] = []
    for axis in figure.axes:
        lines += lines_of(axis, dashed=False).values()
    return {round(float(y), 9) for points in lines for y in points.values()}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.file)
def test_no_point_of_ours_is_drawn_that_no_record_has(picture: Picture, tmp_path: Path) -> None:
    records = [r for r in load_records(ROOT / "results") if r.task == picture.task and not r.sweep]
    figure = picture.draw(records, tmp_path / "a.png")
    assert figure is not None and shown_points(figure), "there are records to draw"
    unknown = shown_points(figure) - known_points(records)
    assert not unknown, f"{picture.file} shows points that are in no record: {sorted(unknown)}"


def test_the_check_notices_an_invented_point(tmp_path: Path) -> None:
    records = [accuracies("s-niah", {2_048: 0.5}, kind="pk")]
    figure = draw_s_niah(records, tmp_path / "a.png")
    assert figure is not None
    figure.axes[0].plot([2_048], [12.5])
    assert shown_points(figure) - known_points(records) == {12.5}


def test_a_model_keeps_its_colour_on_every_text() -> None:
    looks = choose_looks([{"a": {}, "b, on z": {}}, {"a, on y": {}, "a, on z": {}}])
    assert len({looks[name].colour for name in ("a", "a, on y", "a, on z")}) == 1
    assert looks["a"].colour != looks["b, on z"].colour
    assert looks["a, on y"].style != looks["a, on z"].style == looks["b, on z"].style
