"""What a training took, where the page knows it from, and what its commands need."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from evaluation.report_records import named, record, rows_of
from titans.evaluation.records import Record, accuracy_score, mean_score
from titans.evaluation.report import render
from titans.evaluation.report_provenance import provenance_section
from titans.evaluation.report_sources import Sources, Training

BASE = """
data: {source: mqar, task: {length: 32}}
train: {steps: 100, batch_size: 8, warmup_steps: 5}
"""
SWEEP = """
name: small-${DEGREE}
base: base.yaml
set: ["data.path=${TRAIN}", train.steps=50]
rows:
  - name: LMM
  - {name: LMM of depth 3, set: [train.batch_size=4]}
  - {name: mixed, set: ["data.mixture=[{length: 16}, {length: 8}]"]}
evaluations: [{task: permutations, options: {degree: ${DEGREE}}}]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "base.yaml").write_text(BASE)
    (tmp_path / "sweeps" / "small.yaml").write_text(SWEEP)
    return tmp_path


def swept(row: str, command: str = "titans sweep sweeps/small.yaml", **settings: object) -> Record:
    score = accuracy_score([1.0] * 4, length=64, detail={"pairs": 4})
    found = named(record("mqar", [score]), f"{row}-seed0", **settings)
    return dataclasses.replace(found, sweep="recall", command=command)


@pytest.mark.parametrize(
    ("row", "given", "expected"),
    [
        ("lmm", "", 50 * 8 * 32),
        ("lmm-of-depth-3", "", 50 * 4 * 32),
        ("lmm", " --set train.steps=10 --set log.every=1", 10 * 8 * 32),
        ("mixed", "", None),
        ("lmm", " --set train.steps=STEPS", None),
        ("gone", "", None),
    ],
)
def test_tokens_that_no_record_has_are_those_of_the_sweeps_file(
    root: Path, row: str, given: str, expected: int | None
) -> None:
    found = swept(row, f"titans sweep sweeps/small.yaml{given}")
    assert Sources(root).planned_tokens(found) == expected
    assert Sources().planned_tokens(found) is None, "nothing is known without the files"
    assert Sources(root).planned_tokens(swept(row, "titans sweep sweeps/gone.yaml")) is None


def test_text_counts_its_windows(root: Path) -> None:
    (root / "sweeps" / "base.yaml").write_text(
        "data: {sequence_len: 256}\ntrain: {batch_size: 2, warmup_steps: 5}\n"
    )
    assert Sources(root).planned_tokens(swept("lmm")) == 50 * 2 * 256


def test_a_sweep_tells_planned_tokens_from_recorded_ones(root: Path) -> None:
    recorded = {"trained_tokens": 1_000, "trained_seconds": 90.0}
    page = render([swept("lmm"), swept("mixed", **recorded), swept("gone")], sources=Sources(root))
    table = page.partition("## Sweep")[2]
    assert {row[0]: row[3:5] for row in rows_of(table)} == {
        "`lmm`": ["12,800 (planned)", "not recorded"],
        "`mixed`": ["1,000", "1.5"],
        "`gone`": ["not recorded", "not recorded"],
    }
    assert "marked as planned are not in the records" in table
    assert "Testing took 6 s in all." in table
    assert "Accuracy in per cent, of 4 samples for each seed." in table
    assert "planned" not in render([swept("lmm", **recorded)]).partition("## Sweep")[2]


def test_a_sweep_of_permutations_tells_what_guessing_gives() -> None:
    score = mean_score([0.5, 0.0], "last_accuracy", length=8, detail={"group": "S5"})
    found = named(record("permutations", [score], degree=5), "lmm-seed0")
    page = render([dataclasses.replace(found, sweep="tracking")])
    assert "samples for each seed. Guessing gives 0.8." in page
    assert "Guessing" not in render([swept("lmm")])


def test_a_sweep_names_the_variables_that_its_file_needs(root: Path) -> None:
    page = render([swept("lmm")], sources=Sources(root))
    assert (
        "The sweep's file needs DEGREE and TRAIN in the environment: "
        "`DEGREE=... TRAIN=... titans sweep sweeps/small.yaml`." in page
    )
    told = dataclasses.replace(swept("lmm"), options={"degree": 5})
    assert "`DEGREE=5 TRAIN=... titans sweep" in render([told], sources=Sources(root))
    (root / "sweeps" / "small.yaml").write_text(re.sub(r"\$\{\w+\}", "x", SWEEP))
    assert "in the environment" not in render([swept("lmm")], sources=Sources(root))


def test_rows_stand_as_in_the_sweeps_file_and_the_full_model_first(root: Path) -> None:
    rows = ["gone", "full", "lmm", "lmm-of-depth-3", "mixed"]

    def order(sources: Sources) -> list[str]:
        page = render([swept(row) for row in reversed(rows)], sources=sources)
        return [row[0].strip("`") for row in rows_of(page.partition("## Sweep")[2])]

    assert order(Sources(root)) == ["full", "lmm", "lmm-of-depth-3", "mixed", "gone"]
    assert order(Sources()) == ["full", "mixed", "lmm-of-depth-3", "lmm", "gone"]


def test_a_row_with_fewer_seeds_is_named() -> None:
    more = named(swept("full"), "full-seed1")
    page = render([swept("full"), more, swept("ttt")])
    assert "Of 2 seeds `ttt` has 1; the records do not tell why ([log](" in page
    assert "do not tell why" not in render([swept("full"), swept("ttt")])


def test_rows_tell_the_depth_of_their_memory_where_records_do() -> None:
    titans = {"memory_rule": "titans", "memory_depth": 2}
    attention = swept("attention", **titans)
    attention = dataclasses.replace(
        attention, model=dataclasses.replace(attention.model, variant="swa")
    )
    delta = swept("delta", memory_rule="delta", memory_depth=2)
    page = render([swept("full", **titans), delta, attention, swept("untold")])
    depths = {row[0]: row[3] for row in rows_of(page.partition("## Sweep")[2])}
    assert depths == {"`full`": "2", "`delta`": "matrix", "`attention`": "-", "`untold`": "-"}
    assert "memory depth" not in render([swept("untold")]).partition("## Sweep")[2]


def test_deep_rows_are_said_to_differ_in_more_than_depth() -> None:
    shallow = swept("full", memory_depth=2, memory_init="learned", memory_rule="titans")
    deep = swept("depth-3", memory_depth=3, memory_init="random", memory_rule="titans")
    page = render([shallow, deep])
    assert "first weights are random and fixed (`memory_init`; learned in the other rows)" in page
    assert "half as long for each layer beyond the second" in page
    assert "differ from the others in more than depth" not in render([shallow])


def ship(root: Path, name: str, found: Record) -> None:
    """A checkpoint of two stages; the second was stopped before its last length."""
    folder = root / "checkpoints" / name
    stages = {
        folder / "stage-1": ("{length: 128}", [(10, 1_000, 60.0)]),
        folder: (
            "{length: 512}, {length: 2048, from_step: 90}",
            [(20, 1, 30.0), (40, 3_000, 90.0)],
        ),
    }
    for stage, (mixture, lines) in stages.items():
        stage.mkdir(parents=True, exist_ok=True)
        (stage / "config.yaml").write_text(f"data: {{source: niah, mixture: [{mixture}]}}")
        (stage / "log.jsonl").write_text(
            "".join(
                json.dumps({"kind": "train", "step": step, "tokens": tokens, "seconds": seconds})
                + "\n"
                for step, tokens, seconds in lines
            )
        )
    found.save(folder / "records" / "s-niah.json")


def test_the_cost_of_a_shipped_checkpoint_is_read_from_its_logs(tmp_path: Path) -> None:
    score = mean_score([1.0], "accuracy", length=64)
    ours, other = record("s-niah", [score]), named(record("s-niah", [score]), "other")
    ship(tmp_path, "stand-in", ours)
    sources = Sources(tmp_path)
    assert sources.training(ours) == Training(2, 50, 4_000, 3.0, 512)
    section = provenance_section([ours, other], sources)
    assert rows_of(section.partition("How these")[0]) == [
        ["`stand-in`", "2", "50", "4,000", "3", "512"],
        ["`other`", "-", "-", "-", "-", "-"],
    ]
    assert "(`-`: the model is not shipped, nor is its log)" in section
    retrained = dataclasses.replace(ours, model=dataclasses.replace(ours.model, digest="new"))
    assert sources.training(retrained) is None, "other weights than those that are shipped"
    assert "What the training" not in provenance_section([other], sources)


def test_it_is_said_which_models_were_trained_on_what_they_were_asked(tmp_path: Path) -> None:
    scores = [mean_score([1.0], "accuracy", length=64, detail={"kind": k}) for k in ("pk", "w")]
    models = {"a": "[{kind: pk}, {kind: w}]", "b": "[{kind: pk}]", "c": "[{kind: pk}]"}
    records = []
    for name, mixture in models.items():
        found = named(record("s-niah", scores if name != "c" else scores[:1]), name)
        ship(tmp_path, name, found)
        last = tmp_path / "checkpoints" / name / "config.yaml"
        last.write_text(f"data: {{sequence_len: 64, mixture: {mixture}}}")
        records.append(found)
    section = provenance_section(records, Sources(tmp_path))
    assert [row[-1] for row in rows_of(section)[:3]] == ["PK, W (uuids)", "PK", "PK"]
    assert "\nW (uuids) was not in the training of `b`; it was in that of `a`.\n" in section
    section = provenance_section(records[1:], Sources(tmp_path))
    assert "\nW (uuids) was not in the training of `b`.\n" in section
    assert "was not in the training" not in provenance_section(records[:1], Sources(tmp_path))


def test_it_is_said_where_the_models_of_the_commands_are(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "a").mkdir(parents=True)
    words = ["--model a --seed 1", "--model b", "--model runs/a", "--model checkpoints/a", ""]
    records = [dataclasses.replace(record("lm", []), command=command) for command in words]
    section = provenance_section(records, Sources(tmp_path))
    assert "names without a folder are in `checkpoints/`: `a`. Not shipped: `b`, `runs/a`." in (
        section
    )
    assert "shipped" not in provenance_section(records[3:], Sources(tmp_path))
