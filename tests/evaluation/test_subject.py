"""Real models under evaluation: streaming, batches, limits, checkpoints, the command line."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from titans.cli.eval import field_documents
from titans.cli.main import main
from titans.data.tokenizer import byte_tokenizer
from titans.errors import CheckpointError, ConfigError, DataError
from titans.evaluation.lm import LanguageModelling
from titans.evaluation.model import ModelSubject
from titans.evaluation.record import Record
from titans.evaluation.registry import TASKS, build_task, load_task
from titans.evaluation.runner import run_task
from titans.evaluation.throughput import Throughput
from titans.models import TitansConfig, TitansForCausalLM
from titans.tasks.mqar import Mqar
from titans.tasks.needle import Needle, needle_tokenizer
from titans.tasks.niah import SNiah
from titans.tasks.permutations import Permutations


def tiny(variant: str = "mac", vocab_size: int = 259) -> TitansForCausalLM:
    torch.manual_seed(0)
    return TitansForCausalLM(
        TitansConfig(
            variant=variant,
            vocab_size=vocab_size,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            memory={"chunk_size": 4},
            segment_len=8,
            window=8,
            num_persistent=2,
        )
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-mac"
    tiny().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def needle_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-needle"
    tiny(vocab_size=131).save_pretrained(folder)
    needle_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("variant", ["lmm", "mac", "mag", "mal", "transformer", "swa"])
def test_reading_in_windows_equals_reading_at_once(variant: str) -> None:
    model = tiny(variant)
    tokens = np.random.default_rng(0).integers(0, 259, (2, 50))
    whole, parts = ModelSubject(model, window=64), ModelSubject(model, window=7)
    np.testing.assert_allclose(
        parts.losses(tokens).values, whole.losses(tokens).values, rtol=1e-4, atol=1e-5
    )
    assert (parts.predict(tokens).values == whole.predict(tokens).values).mean() > 0.98
    with torch.inference_mode():
        logits = model(torch.from_numpy(tokens)).logits
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].mT, torch.from_numpy(tokens[:, 1:]), reduction="none"
    )
    np.testing.assert_allclose(whole.losses(tokens).values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["lmm", "mac", "swa"])
def test_prompts_of_different_length_answer_as_they_would_alone(variant: str) -> None:
    subject = ModelSubject(tiny(variant), byte_tokenizer(), window=16)
    prompts = [
        subject.encode(text) for text in ("a short one", "a prompt that is longer", "x" * 40)
    ]
    together = subject.generate(prompts, 6)
    for prompt, reading in zip(prompts, together, strict=True):
        (alone,) = subject.generate([prompt], 6)
        assert alone.values.tolist() == reading.values.tolist()
        assert 1 <= len(reading.values) <= 6


@pytest.mark.parametrize(("ends", "length"), [(True, 0), (False, 5)])
def test_generation_stops_at_the_end_of_text(ends: bool, length: int) -> None:
    model, tokenizer = tiny(), byte_tokenizer()
    chosen = int(tokenizer.eos_token_id) if ends else 65  # type: ignore[arg-type]

    def answer(head: torch.nn.Module, args: tuple, logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(logits).index_fill(-1, torch.tensor([chosen]), 1.0)

    model.lm_head.register_forward_hook(answer)
    subject = ModelSubject(model, tokenizer)
    assert len(subject.generate([subject.encode("abc")], 5)[0].values) == length


def test_the_state_of_a_memory_model_is_constant_and_that_of_attention_grows() -> None:
    tokens = np.random.default_rng(0).integers(0, 259, (1, 96))
    sizes = {}
    for variant in ("mac", "swa", "transformer"):
        subject = ModelSubject(tiny(variant))
        sizes[variant] = [subject.predict(tokens[:, :n]).state_bytes for n in (32, 96)]
    assert sizes["mac"][0] == sizes["mac"][1] > 0 and sizes["swa"][0] == sizes["swa"][1] > 0
    assert sizes["transformer"][1] > sizes["transformer"][0]


def test_reading_reports_its_windows() -> None:
    subject, read = ModelSubject(tiny(), window=16), []
    subject.on_read = read.append
    subject.predict(np.zeros((3, 40), dtype=np.int64))
    assert read == [48, 48, 24]


def test_lengths_beyond_full_attention_are_refused_with_its_reach() -> None:
    subject = ModelSubject(tiny("transformer"), max_state_bytes=1 << 20)
    subject.check_length(4_096)
    with pytest.raises(DataError, match=r"2M tokens are beyond the reach.*longest length is 4096"):
        subject.check_length(2 << 20)
    ModelSubject(tiny("mac"), max_state_bytes=1 << 20).check_length(2 << 20)


def test_models_without_a_tokenizer_or_with_another_vocabulary_say_so() -> None:
    subject = ModelSubject(tiny(vocab_size=40), name="small")
    with pytest.raises(DataError, match="small has no tokenizer"):
        subject.encode("text")
    with pytest.raises(DataError, match=r"token 50 is outside the vocabulary \(40\)"):
        subject.predict(np.full((1, 3), 50))
    with pytest.raises(ValueError, match="reading window"):
        ModelSubject(tiny(), window=0)


def test_the_command_names_a_setting_of_another_kind(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "eval",
        "permutations",
        "--model",
        str(checkpoint),
        "--set",
        "memory.write_threshold=abc",
    ]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "write_threshold must be of type float" in error and "Traceback" not in error


def test_checkpoints_load_with_settings_for_inference(checkpoint: Path, tmp_path: Path) -> None:
    subject = ModelSubject.load(checkpoint, settings={"memory": {"write_threshold": 0.1}})
    card = subject.card()
    assert card.name == "tiny-mac" and card.variant == "mac"
    assert card.settings["memory"]["write_threshold"] == 0.1 and len(card.digest) == 12
    assert card.digest == ModelSubject.load(checkpoint).card().digest
    with pytest.raises(ConfigError, match="did you mean write_threshold"):
        ModelSubject.load(checkpoint, settings={"memory": {"write_treshold": 0.1}})
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        ModelSubject.load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("memory", {"write_threshold": "abc"}, "write_threshold must be of type float, got 'abc'"),
        ("window", 2.5, r"window must be of type int, got 2\.5"),
        (
            "memory",
            {"write_threshold": math.nan},
            "write_threshold must be a finite number, got nan",
        ),
        ("window", 0, "window must be at least 1"),
        ("memory", {"forgetting": 1}, "forgetting must be of type bool, got 1"),
        ("memory", {"rule": "some"}, "rule must be one of chunk, online, least_squares"),
        ("memory", 0.1, "memory must be a mapping of options, got 0.1"),
        ("write_threshold", 0.1, "write_threshold is now called memory.write_threshold"),
        ("memory_layers", 3, "memory_layers must be a list, got 3"),
    ],
)
def test_settings_of_another_kind_are_refused(
    checkpoint: Path, field: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelSubject.load(checkpoint, settings={field: value})


def test_a_setting_may_be_a_whole_number_or_nothing(checkpoint: Path) -> None:
    for value in (1, 0.5, None):
        subject = ModelSubject.load(checkpoint, settings={"memory": {"write_threshold": value}})
        assert subject.config.memory.write_threshold == value
        assert subject.config.memory.chunk_size == 4


@pytest.mark.parametrize("variant", ["mac", "swa"])
def test_throughput_counts_every_phase(variant: str) -> None:
    subject = ModelSubject(tiny(variant))
    depths = (1, 2) if variant == "mac" else ()
    task = Throughput(lengths=(32,), samples=2, rows=2, memory_depths=depths)
    assert len(task.cells()) == 3 * max(len(depths), 1)
    for cell in task.cells():
        outcomes = task.measure(subject, cell, 0, range(2))
        metrics = {score.metric: score for score in task.scores(cell, outcomes)}
        assert metrics["tokens_per_second"].value > 0
        assert ("memory_share" in metrics) == (variant == "mac")
    if variant == "swa":
        with pytest.raises(ConfigError, match="no memory whose depth"):
            deep = Throughput(lengths=(32,), memory_depths=(3,))
            deep.measure(subject, deep.cells()[0], 0, [0])
    with pytest.raises(ConfigError, match="phases are"):
        Throughput(phases=("sleep",))  # type: ignore[arg-type]


def test_the_command_writes_a_record_and_a_table(
    needle_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, figure = tmp_path / "r.json", tmp_path / "map.png"
    words = [
        "eval",
        "needle",
        "--model",
        str(needle_checkpoint),
        "--lengths",
        "32,64",
        "--samples",
        "3",
    ]
    words += ["--num-needles", "2", "--set", "memory.write_threshold=0.05"]
    assert main([*words, "--depths", "3", "--json", str(record), "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert "accuracy" in shown and "depth=0.5" in shown and "tiny-needle (mac" in shown
    loaded = Record.load(record)
    assert (
        loaded.model.settings["memory"]["write_threshold"] == 0.05 and figure.stat().st_size > 1_000
    )
    assert (
        "--set memory.write_threshold=0.05" in loaded.command
        and str(tmp_path) not in record.read_text()
    )
    assert main([*words, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "needle"


@pytest.mark.parametrize(
    ("given", "stated"),
    [("tiny-mac", "tiny-mac"), ("./{}/tiny-mac", "{}/tiny-mac"), ("../{}/tiny-mac", "tiny-mac")],
)
def test_a_record_states_the_model_as_it_was_given_unless_that_tells_of_the_machine(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, stated: str
) -> None:
    folder = checkpoint.parent
    inside = folder if "/" not in given else folder.parent
    monkeypatch.chdir(folder if given.startswith("..") else inside)
    path = given.format(folder.name)
    words = ["eval", "lm", "--lengths", "64", "--samples", "1", "--text", str(write_text(tmp_path))]
    assert main([*words, "--model", path, "--json", str(tmp_path / "r.json")]) == 0
    command = Record.load(tmp_path / "r.json").command
    assert f"--model {stated.format(folder.name)} " in command and "--text text.txt" in command


def write_text(folder: Path) -> Path:
    text = folder / "text.txt"
    text.write_text("The rain fell on the road. The wind was strong that day. " * 60)
    return text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s-niah", "--model", "x", "--kinds", "n"], "--haystack"),
        (["needle", "--model", "nowhere"], "no checkpoint"),
        (["needle", "--model", "nowhere", "--figure", "x.png"], "--depths"),
        (["needle", "--model", "nowhere", "--set", "x"], "FIELD=VALUE"),
        (["needle", "--model", "x", "--lengths", "10"], "need a length of at least 24, got 10"),
        (["mqar", "--model", "x", "--vocab-size", "64"], "must be above the length"),
    ],
)
def test_wrong_use_is_one_clear_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *words]) == (1 if message == "no checkpoint" else 2)
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: TASK"),
        (["chess"], "invalid choice: 'chess'"),
        (["s-niah"], "the following arguments are required: --model"),
        (["locomo"], "the following arguments are required: --data"),
        (
            ["mqar", "--model", "x", "--babi", "x"],
            "titans eval mqar: mqar has no --babi x (see titans eval mqar --help)",
        ),
        (["mqar", "--model", "x", "--setting", "c"], "one of a, b, forgetting; got 'c'"),
        (["permutations", "--model", "x", "--degree", "9"], "a whole number from 2 to 6; got '9'"),
        (["throughput", "--model", "x", "--phases", "sleep"], "got 'sleep'"),
    ],
)
def test_flags_are_checked_as_they_are_read(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["eval", *words])
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("name", TASKS)
def test_the_help_of_a_task_has_its_own_flags_with_what_they_mean(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["eval", name, "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    kind = load_task(name)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        assert re.search(rf"--(no-)?{field.name.replace('_', '-')}\b", shown), field.name
        document = field_documents(kind)[field.name]
        assert document.split()[0] in shown and not document.endswith(".")
    assert ("--model" in shown) == kind.reads_with_model
    assert "--babi" not in shown or name == "babilong"


@pytest.mark.parametrize("option", ["--window", "--answer-tokens"])
@pytest.mark.parametrize("value", ["0", "-1", "few"])
def test_numbers_below_one_are_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "s-niah", f"{option}={value}"])
    assert "a whole number of at least 1" in capsys.readouterr().err


def test_a_model_whose_tokens_spell_no_text_is_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    subject = ModelSubject(tiny(vocab_size=131), needle_tokenizer(), name="words")
    for task in (SNiah(kinds=("pk",), samples=1), LanguageModelling(lengths=(64,), text=text)):
        with pytest.raises(DataError, match="tokenizer of words cannot spell it"):
            run_task(task, subject, subject.card())


TOKEN_TASKS = (
    Needle(lengths=(64,), samples=2),
    Mqar(lengths=(64,), samples=2, vocab_size=256),
    Permutations(lengths=(8,), samples=2),
)


@pytest.mark.parametrize("task", TOKEN_TASKS, ids=lambda task: task.name)
def test_tasks_of_tokens_refuse_a_model_of_text(task: Needle | Mqar | Permutations) -> None:
    text = ModelSubject(tiny(), byte_tokenizer(), name="reader")
    with pytest.raises(DataError, match=f"{task.name} is made of tokens.*reader has a tokenizer"):
        run_task(task, text, text.card())
    bare = ModelSubject(tiny())
    assert run_task(task, bare, bare.card()).scores
    if task.name != "mqar":
        words = ModelSubject(tiny(vocab_size=131), needle_tokenizer())
        assert run_task(task, words, words.card()).scores


@pytest.mark.parametrize(("name", "is_text"), [("bytes-mac", True), ("needle-swa", False)])
def test_shipped_needle_checkpoints_still_read_needles(name: str, is_text: bool) -> None:
    subject = ModelSubject.load(Path(__file__).parents[2] / "checkpoints" / name)
    task = Needle(lengths=(64,), samples=1)
    if is_text:
        with pytest.raises(DataError, match="bytes-mac has a tokenizer of text"):
            run_task(task, subject, subject.card())
    else:
        assert run_task(task, subject, subject.card()).scores


def test_the_command_runs_text_tasks_to_the_end(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_text(tmp_path)
    model = ["--model", str(checkpoint), "--samples", "2"]
    niah = ["--haystack", str(text), "--lengths", "1k", "--answer-tokens", "8"]
    assert main(["eval", "s-niah", *model, *niah]) == 0
    assert main(["eval", "lm", *model, "--text", str(text), "--lengths", "64,128"]) == 0
    assert "bits_per_byte" in capsys.readouterr().out


def test_options_of_sweep_files_become_options_of_tasks() -> None:
    task = build_task(
        "s-niah",
        {"lengths": "2k,4k", "kinds": ["pk"], "haystack": "a/b", "samples": 3, "words": None},
    )
    assert task == SNiah(
        lengths=(2_048, 4_096), kinds=("pk",), haystack=Path("a/b"), samples=3, words=None
    )
