"""`titans eval` refuses what cannot work before it measures: one line, and no file left behind."""

import json
import shutil
from pathlib import Path

import pytest

from evaluation.test_subject import tiny, write_text
from titans.cli.main import main
from titans.data.tokenizer import byte_tokenizer
from titans.errors import CheckpointError, ConfigError, DataError
from titans.evaluation import runner
from titans.evaluation.model import ModelSubject
from titans.evaluation.registry import build_task
from titans.evaluation.throughput import Throughput
from titans.models import TitansConfig, TitansForCausalLM
from titans.tasks.needle import needle_tokenizer


class BeganToMeasureError(BaseException):
    """Ends a command that goes on to measure; no last resort catches it."""


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*args: object) -> None:
        raise BeganToMeasureError

    monkeypatch.setattr(runner, "_missing", measure)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of text and one of needles."""
    folder = tmp_path_factory.mktemp("checkpoints")
    kinds = {"text": (259, byte_tokenizer()), "needle": (131, needle_tokenizer())}
    for name, (vocab_size, tokenizer) in kinds.items():
        tiny(vocab_size=vocab_size).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def refuse(words: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that is refused, in one line behind argparse's usage."""
    try:
        code = main(["eval", *map(str, words)])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr().err
    assert code in (1, 2) and "Traceback" not in said
    return said.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "-1"], "--seed: give a whole number of at least 0; got '-1'"),
        (["--samples", "0"], "--samples: give a whole number of at least 1; got '0'"),
        (["--samples", "few"], "--samples: give a whole number of at least 1; got 'few'"),
        (["--depths", "-3"], "--depths: give a whole number of at least 0; got '-3'"),
        (["--lengths", "1k,1k"], "--lengths names 1024 more than once"),
        (["--depths", "2", "--figure", "map.xyz"], "must end in .png or .pdf"),
        (["--depths", "2", "--figure", "map"], "must end in .png or .pdf"),
        (["--depths", "2", "--figure", "FILE/map.png"], "FILE is a file, not a folder"),
        (["--json", "FILE/r.json"], "FILE is a file, not a folder"),
        (["--json", "FILE/deep/r.json"], "FILE is a file, not a folder"),
        (["--json", "FOLDER"], "FOLDER is a folder: name a file in it"),
    ],
)
def test_what_a_measurement_could_not_end_with_is_refused_at_its_start(
    words: list[str],
    message: str,
    checkpoints: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    Path("FOLDER").mkdir()
    words = ["needle", "--model", str(checkpoints / "needle"), "--samples", "1", *words]
    assert message in refuse(words, capsys)
    assert {path.name for path in tmp_path.iterdir()} == {"FILE", "FOLDER"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["throughput", "--lengths", "0"], "--lengths[0] must be at least 1, got 0"),
        (["throughput", "--memory-depths", "2,0"], "a whole number of at least 1; got '0'"),
        (["throughput", "--memory-depths", "x"], "a whole number of at least 1; got 'x'"),
        (["throughput", "--phases", "train,train"], "--phases names 'train' more than once"),
        (["lm", "--text", "TEXT", "--tail-bytes", "-1"], "a whole number of at least 0; got '-1'"),
        (["lm", "--text", "none.txt"], "--text none.txt: no such file or folder"),
        (
            ["s-niah", "--haystack", "none", "--kinds", "n"],
            "--haystack none: no such file or folder",
        ),
        (["s-niah", "--haystack", "FOLDER"], "FOLDER holds no .txt file"),
        (["s-niah", "--kinds", "pk", "--words", "FOLDER"], "FOLDER has no adjectivelist.txt"),
        (["babilong", "--background", "TEXT", "--babi", "FOLDER"], "FOLDER has no qa1_"),
    ],
)
def test_data_and_options_are_looked_at_before_the_model_reads(
    words: list[str],
    message: str,
    checkpoints: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("TEXT").write_text("Some words. And some more.")
    Path("FOLDER").mkdir()
    words = [*words, "--model", str(checkpoints / "text"), "--json", "r.json"]
    assert "none.json: no such file" in refuse(["locomo", "--data", "none.json"], capsys)
    assert message in refuse(words, capsys)
    assert {path.name for path in tmp_path.iterdir()} == {"TEXT", "FOLDER"}


@pytest.mark.parametrize(
    "content", ["{", "[]", '"text"', '{"hidden_size": "wide"}', '{"hidden_size": -1}']
)
def test_a_checkpoint_with_a_damaged_configuration_is_named(
    content: str,
    checkpoints: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoints / "text", damaged)
    written = json.loads((damaged / "config.json").read_text())
    if "hidden_size" in content:
        content = json.dumps(written | json.loads(content))
    (damaged / "config.json").write_text(content)
    said = refuse(["permutations", "--model", damaged], capsys)
    assert "config.json is no configuration of a model" in said or "hidden_size must be" in said


def test_a_checkpoint_with_a_damaged_tokenizer_is_named(checkpoints: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoints / "text", damaged)
    (damaged / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is no tokenizer"):
        ModelSubject.load(damaged)


def test_a_depth_that_the_model_cannot_have_is_refused_before_others_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = tiny("lmm").config.to_dict()
    plain["memory"] |= {"init": "zero_first", "rule": "chunk", "depth": 2}
    config = TitansConfig.from_dict(plain)
    subject = ModelSubject(TitansForCausalLM(config))
    monkeypatch.setattr(Throughput, "_time", lambda *args: pytest.fail("it was timed"))
    task = Throughput(lengths=(16,), samples=1, memory_depths=(2, 1))
    with pytest.raises(ConfigError, match="needs a depth of 2 or more"):
        task.measure(subject, task.cells()[0], 0, [0])
    with pytest.raises(ConfigError, match=r"--memory_depths\[1\] must be at least 1, got 0"):
        Throughput(memory_depths=(2, 0))


def test_a_length_beyond_the_reach_of_a_baseline_is_refused_before_shorter_ones_are_measured(
    tmp_path: Path,
) -> None:
    subject = ModelSubject(tiny("transformer", vocab_size=131), max_state_bytes=1 << 20)
    task = build_task("needle", {"lengths": (2_048, 2 << 20), "samples": 1})
    with pytest.raises(DataError, match="2M tokens are beyond the reach"):
        runner.run_task(task, subject, subject.card(), path=tmp_path / "r.json")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("needle", {"samples": "many"}, "samples must be of type int, got 'many'"),
        ("needle", {"samples": 0}, "--samples must be at least 1, got 0"),
        ("needle", {"lengths": []}, "--lengths is an empty list"),
        ("needle", {"lengths": ["long"]}, "lengths: a length is written 512"),
        ("throughput", {"phases": "train"}, "phases must be a list, got 'train'"),
        ("mqar", {"setting": "c"}, "setting must be one of a, b, forgetting; got 'c'"),
    ],
)
def test_options_of_a_file_are_checked_by_type_and_value(
    task: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_task(task, options)


def test_a_default_may_be_given_and_means_what_it_means(tmp_path: Path) -> None:
    """0 samples of a text are all of it, no lengths of MQAR are all, no depths are any depth."""
    text = write_text(tmp_path)
    build_task("lm", {"samples": 0, "tail_bytes": 0, "text": text}).check_data()
    assert build_task("mqar", {"lengths": ()}) == build_task("mqar", {})
    assert build_task("needle", {"depths": 0}) == build_task("needle", {})
    with pytest.raises(DataError, match="no such file"):
        build_task("lm", {"text": tmp_path / "none"}).check_data()


def test_0_samples_of_a_text_are_taken_on_the_command_line(
    checkpoints: Path, tmp_path: Path
) -> None:
    words = ["eval", "lm", "--model", checkpoints / "text", "--text", write_text(tmp_path)]
    with pytest.raises(BeganToMeasureError):
        main([*map(str, words), "--lengths", "16", "--samples", "0"])
