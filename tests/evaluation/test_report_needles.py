"""S-NIAH on the results page: other terms or another text give another row."""

import dataclasses
from pathlib import Path

from evaluation.report_records import named, record, rows_of
from titans.evaluation.figures import draw_s_niah
from titans.evaluation.records import Record, accuracy_score
from titans.evaluation.report_needles import s_niah_section
from titans.evaluation.report_targets_tasks import needle_targets

RULER = {"words": "ruler_words@1", "answer_tokens": 128, "haystack": "essays@2"}
OWN = {"words": None, "answer_tokens": 40, "haystack": "essays@2"}


def needles(
    value: float, options: dict[str, object], *, kind: str = "n", length: int = 16_384, n: int = 100
) -> Record:
    score = accuracy_score([value] * n, length=length, detail={"kind": kind})
    found = record("s-niah", [score], **options)
    return dataclasses.replace(found, model=dataclasses.replace(found.model, variant="mac"))


def test_rows_tell_on_what_terms_they_were_measured() -> None:
    rows = rows_of(
        s_niah_section(
            [
                needles(0.5, OWN, n=32),
                needles(1.0, RULER),
                needles(1.0, RULER, length=2_048),
                needles(0.0, RULER, n=20, length=2_048),
            ]
        )
    )
    assert [row[:5] for row in rows] == [
        ["`stand-in`", "32", "40", "built in", "`essays`"],
        ["`stand-in`", "100", "128", "`ruler_words`", "`essays`"],
        ["`stand-in`", "20", "128", "`ruler_words`", "`essays`"],
    ]
    assert [[cell.split()[0] for cell in row[5:]] for row in rows] == [
        ["-", "50.0"],
        ["100.0", "100.0"],
        ["0.0", "-"],
    ]


def test_a_model_in_several_haystacks_has_a_row_for_each() -> None:
    records = [
        needles(1.0, RULER),
        needles(0.5, {**RULER, "each_file": True}),
        needles(0.25, {**RULER, "haystack": "books@3"}),
        named(needles(0.75, RULER), "other"),
    ]
    rows = rows_of(s_niah_section(records))
    assert [(row[0], row[4], row[5].split()[0]) for row in rows] == [
        ("`stand-in`, on `essays`", "`essays`", "100.0"),
        ("`stand-in`, on `essays`, each file", "`essays`, each file", "50.0"),
        ("`stand-in`, on `books`", "`books`", "25.0"),
        ("`other`", "`essays`", "75.0"),
    ]


def test_passkeys_lie_in_the_same_noise_whatever_the_haystack() -> None:
    records = [
        needles(1.0, RULER, kind="pk"),
        needles(0.5, {**RULER, "haystack": "books@3"}, kind="pk", length=2_048),
    ]
    (row,) = rows_of(s_niah_section(records))
    assert row[0] == "`stand-in`" and row[4] == "noise"
    assert [cell.split()[0] for cell in row[5:]] == ["50.0", "100.0"]


def test_pictures_have_a_line_for_each_haystack(tmp_path: Path) -> None:
    records = [needles(1.0, RULER), needles(0.5, {**RULER, "each_file": True})]
    figure = draw_s_niah(records, tmp_path / "a.png")
    assert figure is not None
    ours = {
        str(line.get_label()): list(line.get_ydata())  # type: ignore[call-overload]
        for line in figure.axes[0].lines
        if line.get_linestyle() != "--"
    }
    assert ours == {"stand-in, on essays": [100.0], "stand-in, on essays, each file": [50.0]}


def test_a_target_is_reached_in_the_worst_haystack_or_not_at_all() -> None:
    def reached(value: float) -> tuple[str, str]:
        second = named(needles(1.0, RULER), "second")
        second = dataclasses.replace(second, model=dataclasses.replace(second.model, variant="lmm"))
        each = needles(value, {**RULER, "each_file": True})
        found = needle_targets([needles(1.0, RULER), each, second])
        assert "`stand-in`, on `essays`, each file:" in found[1].measured
        return found[1].verdict, found[-1].verdict

    assert reached(0.99) == ("met", "partly, 2 of 12")
    assert reached(0.5) == ("partly, 1 of 2", "partly, 1 of 12")
