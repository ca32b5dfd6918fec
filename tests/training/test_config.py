"""Configurations: typed, strict, and every file in configs/ is sound."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml

from titans.data.tokenizer import encode_document, load_tokenizer
from titans.errors import ConfigError
from titans.models import TitansForCausalLM
from titans.models.checkpoint import find_checkpoint
from titans.settings import apply_settings, build, read_yaml, to_yaml
from titans.training.build import model_config
from titans.training.config import RunConfig, load_config
from titans.training.log import read_log
from titans.training.stages import train
from titans.training.tuning import load_space
from training.runs import write_corpus

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))
SPACES = sorted((FOLDER / "spaces").glob("*.yaml"))


def test_the_named_configs_are_there() -> None:
    names = {path.stem for path in FILES}
    assert {"titans", "lmm", "mac", "mag", "mal", "transformer", "swa"} <= names
    assert SPACES
    everything = {p for p in FOLDER.rglob("*.*") if "tokenizers" not in p.parts}
    assert everything == {*FILES, *SPACES}, "a file in configs/ that no test looks at"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_what_a_config_refers_to_is_there(path: Path) -> None:
    config = load_config(path)
    assert config.start_from is None, "one command makes it: use stages"
    if config.data.tokenizer.startswith("configs/"):
        spelled = "Where is Mary? The special magic number is: 1234567."
        tokenizer = load_tokenizer(str(FOLDER.parent / config.data.tokenizer))
        ids = encode_document(tokenizer, spelled)
        assert tokenizer.decode(ids) == spelled and len(ids) < 25


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_config_parses_and_round_trips(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert config.out == f"runs/{path.stem}"
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "c.yaml") == config
    if path.stem in ("lmm", "mac", "mag", "mal", "transformer", "swa"):
        assert config.model["variant"] == path.stem


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_config_builds_on_the_meta_device(path: Path) -> None:
    section = load_config(path).model
    with torch.device("meta"):
        model = TitansForCausalLM(model_config(section, vocab_size=49_152))
    assert sum(p.numel() for p in model.parameters()) > 1e4


def drop(tree: Any, names: list[str]) -> None:
    """Remove a stage's own value of a setting."""
    for name in names[:-1]:
        tree = tree.get(name, {})
    tree.pop(names[-1], None)


def reduced(path: Path, folder: Path) -> RunConfig:
    """The configuration with everything that costs time made small."""
    tree = read_yaml(path)
    stages = [cast(dict[str, Any], stage) for stage in cast(list[object], tree.get("stages", []))]
    for setting in (
        f"out={folder / 'run'}",
        "model.hidden_size=16",
        "model.num_hidden_layers=2",
        "model.num_attention_heads=2",
        "model.window=16",
        "model.segment_len=16",
        "model.memory.chunk_size=8",
        "model.num_persistent=2",
        f"data.cache_dir={folder / 'cache'}",
        "data.sequence_len=32",
        "data.num_workers=0",
        "train.steps=2",
        "train.batch_size=2",
        "train.micro_batch_size=1",
        "train.warmup_steps=0",
        "log.held_out_batches=1",
        "log.sample_tokens=8",
    ):
        apply_settings(tree, [setting])
        for stage in stages:
            drop(stage, setting.split("=")[0].split("."))
    data = cast(dict[str, Any], tree["data"])
    local = str(data.get("tokenizer", "")).startswith("configs/")
    data["tokenizer"] = str(FOLDER.parent / data["tokenizer"]) if local else "bytes"
    if data.get("source", "text") == "text":
        data["path"] = str(write_corpus(folder))
    for mixed in [data, *(stage["data"] for stage in stages)]:
        if "mixture" in mixed:
            first = mixed["mixture"][0]
            mixed["mixture"] = [first | {"length": min(first["length"], 160)}]
    if data.get("source") in ("babilong", "niah"):
        (folder / "books.txt").write_text("It was a long day in the old house. " * 100)
        data["path"] = str(folder / "books.txt")
    if data.get("source") == "babilong":
        story = "1 Mary moved to the attic.\n2 Where is Mary? \tattic\t1\n"
        (folder / "qa1_single_train.txt").write_text(story * 40)
        data["task"]["babi_path"] = str(folder)
    return build(RunConfig, tree)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_config_runs_reduced(path: Path, tmp_path: Path) -> None:
    config = reduced(path, tmp_path)
    result = train(config)
    assert result is not None and result.steps == 2
    assert sum(r["kind"] == "train" for r in read_log(config.out)) == len(config.runs())
    assert result.skipped_steps == 0
    TitansForCausalLM.from_pretrained(find_checkpoint(config.out))


def test_reference_size() -> None:
    config = load_config(FOLDER / "titans.yaml")
    model = model_config(config.model, vocab_size=49_152)
    assert (model.variant, model.hidden_size, model.num_hidden_layers) == ("mag", 2048, 24)
    assert (model.num_attention_heads, model.memory.head_dim, model.memory.depth) == (16, 128, 2)
    assert model.memory.head_dim * model.memory.expansion == 256
    assert (model.memory.step_init, model.memory.surprise_threshold) == (0.01, 0.1)
    with torch.device("meta"):
        count = sum(p.numel() for p in TitansForCausalLM(model).parameters())
    said = float((FOLDER / "titans.yaml").read_text().split("billion")[0].split()[-1])
    assert count / 1e9 == pytest.approx(said, abs=0.05)


@pytest.mark.parametrize("path", SPACES, ids=lambda p: p.stem)
def test_spaces_name_real_settings(path: Path) -> None:
    tree = yaml.safe_load((FOLDER / "mqar-lmm.yaml").read_text())
    for choice in load_space(path):
        value = choice.choices[0] if choice.choices else choice.low
        apply_settings(tree, [f"{choice.name}={value}"])
    config = build(RunConfig, tree)
    model_config(config.model, vocab_size=256)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "train.learning_rat=1",
            "unknown key train.learning_rat; did you mean train.learning_rate",
        ),
        ("trian.steps=1", "unknown key trian; did you mean train"),
        ("zzz=1", "known: checkpoint, data, log, model, out, seed, stages, start_from, train"),
        ("train.steps=many", "train.steps must be of type int, got 'many'"),
        ("train.steps=0", "train.steps must be at least 1, got 0"),
        ("train.precision=half", "train.precision must be one of float32, bfloat16; got 'half'"),
        ("train.batch_size=true", "train.batch_size must be of type int, got True"),
        ("train.micro_batch_size=3", r"must divide train.batch_size \(8\)"),
        ("train.betas=[0.9]", "train.betas must have 2 entries"),
        ("train=5", "train is a section with keys of its own"),
        ("train.freeze_core=true", "train.freeze_core needs a first phase"),
        ("data.sequence_len=1", "data.sequence_len must be at least 2"),
        ("data.source=poems", "data.source must be one of text, mqar"),
        ("data.task.length=3", "are for synthetic tasks"),
        ("log.sample_prompt=", "log.sample_prompt must be of type str, got None"),
        ("nonsense", "--set takes FIELD=VALUE, such as train.steps=500; got 'nonsense'"),
    ],
)
def test_mistakes_are_named(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(FOLDER / "mac.yaml", [setting])


def test_model_section_is_checked() -> None:
    config = load_config(FOLDER / "mac.yaml", ["model.hiden_size=3"])
    with pytest.raises(
        ConfigError, match=r"unknown key model.hiden_size; did you mean model.hidden"
    ):
        model_config(config.model, vocab_size=10)
    with pytest.raises(ConfigError, match=r"model.vocab_size \(5\) is below the 10 tokens"):
        model_config({"vocab_size": 5}, vocab_size=10)
    with pytest.raises(ConfigError, match="variant must be one of"):
        model_config({"variant": "mad"}, vocab_size=10)


def test_settings_come_after_the_file_and_numbers_may_be_written_like_numbers() -> None:
    config = load_config(FOLDER / "mac.yaml", ["train.learning_rate=3e-4", "train.steps=1e3"])
    assert config.train.learning_rate == 3e-4
    assert config.train.steps == 1000


def test_configs_are_frozen() -> None:
    config = load_config(FOLDER / "mac.yaml")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.steps = 3  # type: ignore[misc]


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such configuration file; known: .* mac, "):
        load_config(FOLDER / "nothing.yaml")
    (tmp_path / "bad.yaml").write_text("train: [1,\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="found a list"):
        load_config(tmp_path / "list.yaml")
