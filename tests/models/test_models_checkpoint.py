"""Saving and loading: exact, and clear about what is wrong."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from support.models import CASES, tiny_config, tiny_model, tiny_tokens
from titans.errors import CheckpointError
from titans.models import TitansConfig, TitansForCausalLM, TitansModel


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tied", [False, True])
def test_round_trip_is_exact(case: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_model(case, dtype=torch.float32, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is TitansForCausalLM
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    for (name, one), (_, two) in zip(
        model.named_parameters(), loaded.named_parameters(), strict=True
    ):
        assert torch.equal(one, two), name
    with torch.no_grad():
        assert torch.equal(loaded(tiny_tokens()).logits, model(tiny_tokens()).logits)


def test_base_model_loads_from_the_same_folder(tmp_path: Path) -> None:
    model = tiny_model("mag", dtype=torch.float32)
    model.model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert type(base) is TitansModel
    with torch.no_grad():
        got = base(tiny_tokens()).last_hidden_state
        assert torch.equal(got, model.model(tiny_tokens()).last_hidden_state)


def test_remote_code_finds_the_model_without_importing_titans(tmp_path: Path) -> None:
    model = tiny_model("mac", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    script = """
import sys
from transformers import AutoModelForCausalLM
assert not any(name.split(".")[0] == "titans" for name in sys.modules)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
print(type(model).__module__, type(model).__name__)
model.save_pretrained(sys.argv[1] + "/again")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")},
    )
    assert done.stdout.split() == ["titans.models.lm", "TitansForCausalLM"]
    again = TitansForCausalLM.from_pretrained(tmp_path / "again")
    assert again.config.auto_map == model.config.auto_map


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tiny_model("mac", dtype=torch.float32).save_pretrained(tmp_path / "mac")
    return tmp_path / "mac"


def test_truncated_file_is_refused(saved: Path) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match="truncated or changed"):
        TitansForCausalLM.from_pretrained(saved)
    (saved / "checksums.json").unlink()
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        TitansForCausalLM.from_pretrained(saved)


def test_tampered_file_is_refused(saved: Path) -> None:
    weights = saved / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="not the file that was saved"):
        TitansForCausalLM.from_pretrained(saved)


def test_missing_weight_is_refused(saved: Path) -> None:
    weights = saved / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.mixer.persistent.vectors"]
    save_file(tensors, weights, metadata={"format": "pt"})
    (saved / "checksums.json").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model.layers.1.mixer.persistent.vectors"):
        TitansForCausalLM.from_pretrained(saved)


def test_weights_of_another_variant_are_refused(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "variant": "mal"}))
    with pytest.raises(CheckpointError, match="do not belong to a 'mal' model"):
        TitansForCausalLM.from_pretrained(saved)
    (saved / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match="lacks"):
        TitansForCausalLM.from_pretrained(saved)
    (saved / "config.json").write_text(
        json.dumps({**config, "memory": {**config["memory"], "expansion": 3.0}})
    )
    with pytest.raises(CheckpointError):
        TitansForCausalLM.from_pretrained(saved)


def test_missing_file_is_refused(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors is missing"):
        TitansForCausalLM.from_pretrained(saved)
    shutil.rmtree(saved)
    with pytest.raises(OSError):
        TitansForCausalLM.from_pretrained(saved)


def test_auto_config_knows_the_type(saved: Path) -> None:
    config = AutoConfig.from_pretrained(saved)
    assert isinstance(config, TitansConfig)
    assert config.memory == tiny_config("mac").memory
    wanted, found = tiny_config("mac").to_diff_dict(), config.to_dict()
    assert {name: found[name] for name in wanted} == wanted
