"""Sweeps: order, budget, resuming, equal sizes, the table; and one that really trains."""

from pathlib import Path

import pytest

from evaluation.subjects import CARD
from titans.cli.main import main
from titans.errors import ConfigError
from titans.evaluation.record import Record
from titans.evaluation.registry import build_task
from titans.evaluation.sweep import (
    Evaluation,
    Job,
    JobFailedError,
    choose_rows,
    load_sweep,
    match_size,
    plan_jobs,
    publish,
    run_sweep,
    summarise,
)
from titans.tasks.score import accuracy_score
from titans.training.diagnosis import NonFiniteLoss
from titans.training.trainer import Trainer
from training.runs import write_corpus

FILE = """
name: tiny
base: base.yaml
seeds: [0, 1]
budget_minutes: 10
rows:
  - name: full
  - name: no conv
    set: [model.memory.conv_size=0]
evaluations:
  - task: needle
    options: {lengths: [32], samples: 4}
"""


def write(folder: Path, text: str = FILE) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def record(value: float) -> Record:
    return Record(
        task="needle",
        model=CARD,
        options={},
        seed=1,
        scores=(accuracy_score([value], length=32),),
        seconds=0,
        commit=None,
        version="0",
        machine="m",
    )


class Workshop:
    """Counts what is done; time passes by a minute per training."""

    def __init__(self, values: dict[str, float] | None = None) -> None:
        self.trained: list[str] = []
        self.now = 0.0
        self.values = values or {}
        self.failing: set[str] = set()
        self.stopped: set[str] = set()
        self.said: list[str] = []

    def train(self, job: Job, folder: Path) -> None:
        self.trained.append(job.name)
        self.now += 60
        if job.name in self.failing:
            raise JobFailedError("not finite at step 3")
        if job.name in self.stopped:
            raise KeyboardInterrupt

    def evaluate(self, job: Job, evaluation: Evaluation, folder: Path, file: Path) -> Record:
        found = record(self.values.get(job.name, 0.5))
        found.save(file)
        return found

    def run(self, path: Path, out: Path) -> bool:
        sweep = load_sweep(path)
        jobs = plan_jobs(sweep)
        return run_sweep(
            sweep,
            jobs,
            out,
            train=self.train,
            evaluate=self.evaluate,
            report=self.said.append,
            clock=lambda: self.now,
        )


def test_jobs_come_seed_by_seed_in_the_order_of_the_rows(tmp_path: Path) -> None:
    jobs = plan_jobs(load_sweep(write(tmp_path)))
    assert [job.name for job in jobs] == [
        "full-seed0",
        "no-conv-seed0",
        "full-seed1",
        "no-conv-seed1",
    ]
    assert jobs[1].settings == ("model.memory.conv_size=0", "seed=0")


def test_rows_can_be_chosen_by_name(tmp_path: Path) -> None:
    jobs = plan_jobs(load_sweep(write(tmp_path)))
    name = jobs[-1].row.name
    for written in (name, name.upper(), jobs[-1].row.plain_name):
        chosen = choose_rows(jobs, [written])
        assert chosen == [job for job in jobs if job.row.name == name] and chosen != jobs
    with pytest.raises(ConfigError, match="has no row nothing; it has "):
        choose_rows(jobs, [name, "nothing"])


def test_a_sweep_stops_at_its_budget_and_goes_on_later(tmp_path: Path) -> None:
    path, out = write(tmp_path, FILE.replace("minutes: 10", "minutes: 2.5")), tmp_path / "out"
    first = Workshop()
    assert not first.run(path, out) and first.trained == ["full-seed0", "no-conv-seed0"]
    second = Workshop()
    assert not second.run(path, out) and second.trained == []
    third = Workshop()
    assert third.run(write(tmp_path), out) and third.trained == ["full-seed1", "no-conv-seed1"]


def test_a_job_that_was_killed_is_begun_again_but_its_records_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "full-seed0").mkdir(parents=True)
    record(0.25).save(out / "full-seed0" / "needle.json")
    workshop = Workshop()
    assert workshop.run(write(tmp_path), out) and "full-seed0" in workshop.trained
    assert Record.load(out / "full-seed0" / "needle.json").scores[0].value == 0.25


def test_the_time_of_a_stopped_job_counts(tmp_path: Path) -> None:
    path, out = write(tmp_path, FILE.replace("minutes: 10", "minutes: 2.5")), tmp_path / "out"
    first = Workshop()
    first.stopped = {"no-conv-seed0"}
    with pytest.raises(KeyboardInterrupt):
        first.run(path, out)
    second = Workshop()
    assert not second.run(path, out) and second.trained == []
    assert "2.0 used" in second.said[0]


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert Workshop().run(write(tmp_path), out)
    quiet = write(tmp_path, FILE.replace("seeds:", "set: [log.every=5]\nseeds:"))
    assert Workshop().run(quiet, out), "what is only logged may change"
    longer = write(tmp_path, FILE.replace("seeds:", "set: [train.steps=9]\nseeds:"))
    with pytest.raises(ConfigError, match=r"other settings \(train\.steps=9\)"):
        Workshop().run(longer, out)


def test_a_job_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "out"
    workshop = Workshop()
    workshop.failing = {"full-seed0"}
    assert workshop.run(path, out) and len(workshop.trained) == 4
    assert "full-seed0 failed, the sweep goes on: not finite at step 3" in workshop.said
    again = Workshop()
    assert again.run(path, out) and again.trained == []
    assert again.said == ["1 of 4 jobs failed: full-seed0"]
    sweep = load_sweep(path)
    jobs = plan_jobs(sweep)
    assert [entry.seeds for entry in summarise(sweep, jobs, out)] == [1, 2]
    assert len(publish(sweep, jobs, out, tmp_path / "records", "titans sweep")) == 3


def test_the_table_has_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "out"
    Workshop({"full-seed0": 0.9, "full-seed1": 1.0}).run(path, out)
    sweep = load_sweep(path)
    full, bare = summarise(sweep, plan_jobs(sweep), out)
    assert (full.row, full.seeds, full.length) == ("full", 2, 32)
    assert full.mean == pytest.approx(0.95) and full.spread == pytest.approx(0.0707, abs=1e-4)
    assert bare.spread == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("base: base.yaml", ""), "base"),
        (("rows:", "lines:"), "lacks 'rows'"),
        (("no conv", "full"), "distinct names"),
        (("budget_minutes", "budget"), "budget"),
        (("name: tiny", "name: ["), "not valid YAML"),
        (("name: tiny", "name: 3"), "name must be of type str, got 3"),
        (("seeds: [0, 1]", "seeds: 3"), "seeds must be a list, got 3"),
        (("seeds: [0, 1]", "seeds: []"), "at least one row and one seed"),
        (("seeds: [0, 1]", "seeds: [1, 1]"), "seeds must be distinct, got 1, 1"),
        (("seeds: [0, 1]", "seeds: [0, -1]"), "seeds cannot be negative, got -1"),
        (("minutes: 10", "minutes: long"), "budget_minutes must be of type float, got 'long'"),
        (("- name: full", "- full"), r"rows\[0\] must be written {name: \.\.\.}, got 'full'"),
        (("- name: full", "- set: []"), r"rows\[0\] lacks 'name'"),
        (("set: [model.memory.conv_size=0]", "set: a=0"), r"rows\[1\]\.set must be a list"),
        (("    set:", "    sets:"), r"unknown key rows\[1\]\.sets; did you mean rows\[1\]\.set"),
        (("no conv", "FULL"), r"distinct names \(of folders\), got full, full"),
        (("- task: needle", "- tsk: needle"), r"evaluations\[0\] lacks 'task'"),
        (("{lengths: [32], samples: 4}", "[32]"), "options must be a mapping"),
        (("- task: needle", "- task: needle\n  - task: needle"), "evaluations need distinct names"),
    ],
)
def test_malformed_sweeps_are_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(write(tmp_path, FILE.replace(*change)))


def test_options_stay_as_they_are_written(tmp_path: Path) -> None:
    """A text may be called 2024: that is no number."""
    sweep = load_sweep(write(tmp_path, FILE.replace("samples: 4", 'text: "2024", samples: 4')))
    assert sweep.evaluations[0].options == {"lengths": [32], "text": "2024", "samples": 4}


def test_sizes_are_matched_within_the_tolerance() -> None:
    assert match_size(lambda n: 1_000 + 300 * n, 40_000, 0.03) == 130
    with pytest.raises(ConfigError, match="even the smallest"):
        match_size(lambda n: 1_000 * n, 500, 0.03)
    with pytest.raises(ConfigError, match="no size comes within 3%"):
        match_size(lambda n: 1_000 * n, 1_400, 0.03)


BASE = """
model:
  {variant: lmm, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 1,
   memory: {chunk_size: 8}}
data: {source: needle, sequence_len: 48, task: {length: 48, num_needles: 2}}
train: {steps: 2, batch_size: 2, warmup_steps: 1}
log: {held_out_every: 0, tensorboard: false}
"""


def test_a_small_sweep_trains_evaluates_and_matches_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    matched = FILE.replace("seeds: [0, 1]", "match_parameters: model.intermediate_size")
    matched = matched.replace("lengths: [32]", "lengths: [64], num_needles: 2")
    path, out = write(tmp_path, matched), tmp_path / "out"
    assert main(["sweep", str(path), "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert "full" in table and "no conv" in table and "accuracy" in table
    sizes = [
        Record.load(out / f"{name}-seed0" / "needle.json").model.num_parameters
        for name in ("full", "no-conv")
    ]
    assert abs(sizes[0] - sizes[1]) <= 0.03 * sizes[0]
    records = tmp_path / "records"
    again = ["sweep", str(path), "--out", str(out), "--json", "--records", str(records)]
    assert main([*again, "--set", "log.every=1"]) == 0
    published = Record.load(records / "no-conv-seed0-needle.json")
    assert published.sweep == "tiny"
    assert published.command == f"titans sweep {path} --set log.every=1"
    assert published.model.settings["trained_steps"] == 2
    assert published.model.settings["trained_tokens"] == 2 * 2 * 48
    assert published.model.settings["trained_seconds"] > 0  # type: ignore[operator]
    assert published.scores == Record.load(out / "no-conv-seed0" / "needle.json").scores


def test_a_training_that_diverges_does_not_end_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(trainer: Trainer) -> None:
        raise NonFiniteLoss("5 steps in a row were not finite; stopped at step 7.\n  more")

    monkeypatch.setattr(Trainer, "fit", fit)
    (tmp_path / "base.yaml").write_text(BASE)
    path, out = write(tmp_path), tmp_path / "out"
    assert main(["sweep", str(path), "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "full-seed0 failed, the sweep goes on: 5 steps in a row" in said and "more" not in said
    assert "4 of 4 jobs failed: full-seed0, no-conv-seed0, full-seed1, no-conv-seed1" in said


@pytest.mark.parametrize("also", [[], ["--plan"]])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("task: needle", "task: nothing"), "evaluation 'nothing': no benchmark named 'nothing'"),
        (
            ("samples: 4", "foo: 1"),
            "evaluation 'needle': unknown key foo; known: depths, distractors, lengths",
        ),
        (("samples: 4", "samples: few"), "evaluation 'needle': samples must be of type int"),
        (
            ("task: needle", "task: locomo"),
            "evaluation 'locomo': locomo measures no model, so no row",
        ),
        (
            (
                "needle\n    options: {lengths: [64], samples: 4}",
                "lm\n    options: {text: none.txt}",
            ),
            "evaluation 'lm': --text none.txt: no such file or folder",
        ),
        (
            ("samples: 4}", "samples: 4}\n    settings: {memory: {write_treshold: 0.1}}"),
            "settings of evaluation 'needle': memory: unknown key write_treshold",
        ),
        (("model.memory.conv_size=0", "nonsense=3"), "row 'no conv': unknown key nonsense"),
        (("memory.conv_size=0", "memory.depth=0"), "row 'no conv': model section: memory: depth"),
        (("base: base.yaml", "base: none.yaml"), "none.yaml: no such configuration file"),
    ],
)
def test_every_row_and_evaluation_is_checked_before_anything_trains(
    change: tuple[str, str],
    message: str,
    also: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Trainer, "fit", lambda trainer: pytest.fail("it began to train"))
    (tmp_path / "base.yaml").write_text(BASE)
    readable = FILE.replace("lengths: [32]", "lengths: [64]")
    assert change[0] in readable
    path, out = write(tmp_path, readable.replace(*change)), tmp_path / "out"
    assert main(["sweep", str(path), "--out", str(out), *also]) == 2
    said = capsys.readouterr()
    assert message in said.err and len(said.err.splitlines()) == 1 and not said.out
    assert not out.exists()


@pytest.mark.parametrize("flag", ["--out", "--records"])
def test_a_sweep_needs_folders_that_can_be_written(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    path = write(tmp_path, FILE.replace("lengths: [32]", "lengths: [64]"))
    assert main(["sweep", str(path), "--plan", flag, str(path)]) == 1
    assert f"{path} is a file, not a folder" in capsys.readouterr().err


def test_no_line_of_the_help_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


FILES = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_sweeps_plan_rows_of_equal_size(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert {file.stem for file in FILES} == {
        "ablation",
        "language",
        "recall",
        "state-tracking",
        "variants",
    }
    monkeypatch.setenv("TRAIN", str(write_corpus(tmp_path, 500)))
    monkeypatch.setenv("TEST", str(tmp_path / "corpus.jsonl"))
    for name, value in (("DEGREE", "3"), ("LENGTH", "512"), ("BATCH", "8")):
        monkeypatch.setenv(name, value)
    assert main(["sweep", str(path), "--plan"]) == 0
    jobs = capsys.readouterr().out.splitlines()
    sweep = load_sweep(path)
    assert len(jobs) == len(sweep.seeds) * len(sweep.rows) and sweep.evaluations
    assert all("model.intermediate_size=" in job for job in jobs if not job.startswith(jobs[0][:6]))
    for evaluation in sweep.evaluations:
        build_task(evaluation.task, evaluation.options)


def test_a_sweep_names_the_variable_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_GIVEN", raising=False)
    (tmp_path / "s.yaml").write_text("name: ${NOT_GIVEN}\n")
    with pytest.raises(ConfigError, match=r"needs NOT_GIVEN: start with NOT_GIVEN=\.\.\."):
        load_sweep(tmp_path / "s.yaml")
