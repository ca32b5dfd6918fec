"""Settings of layout 1, where the memory's were flat fields of the model, load unchanged."""

import json
from pathlib import Path

import pytest

from golden.names import SETTINGS
from titans.errors import CheckpointError, ConfigError
from titans.models import TitansConfig
from titans.models.checkpoint import load_config as load_model_config
from titans.models.upgrade import SINCE_FLAT, upgrade_config, upgrade_names
from titans.training.build import check_model_section
from titans.training.config import load_config

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def test_every_old_name_leads_to_a_setting_of_today() -> None:
    config = TitansConfig()
    plain = config.to_dict()
    for old in SETTINGS:
        section, _, field = SINCE_FLAT.get(old, (old,))[0].rpartition(".")
        assert field in (plain["memory"] if section else plain), old
    assert set(SINCE_FLAT) <= set(SETTINGS)


def test_gates_of_writing_become_thresholds() -> None:
    flat = {"write_gate": "associative", "surprise_threshold": 0.5, "surprise_measure": "loss"}
    wanted = {"memory": {"surprise_threshold": 0.5, "surprise_measure": "loss"}}
    assert upgrade_names(flat) == wanted
    found = upgrade_names({"write_gate": "predictive", "surprise_threshold": 0.5})
    assert found == {"memory": {"surprise_threshold": None}, "predictor_threshold": 0.5}
    assert upgrade_names({"write_gate": "none", "window": 3}) == {"window": 3}


def test_what_an_old_file_does_not_say_is_what_it_was_then() -> None:
    """Not what the default is today: old checkpoints keep their rule."""
    config = TitansConfig.from_dict({"model_type": "titans", "memory_depth": 3})
    memory = config.memory
    assert (memory.depth, memory.init, memory.rule, memory.chunk_size) == (3, "random", "chunk", 16)
    assert not config.mal_residual and TitansConfig().mal_residual
    upgraded = upgrade_config({"memory_rule": "ttt"})
    assert len(upgraded["memory"]) == sum("memory." in new for new, _ in SINCE_FLAT.values())
    assert upgraded["memory"]["step_limit"] == 1.0 and upgraded["memory"]["rule"] == "ttt"


@pytest.mark.parametrize("folder", sorted(CHECKPOINTS.iterdir()), ids=lambda path: path.name)
def test_shipped_settings_load_and_are_saved_in_the_new_layout(
    folder: Path, tmp_path: Path
) -> None:
    config = load_model_config(folder)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["checkpoint_version"] == 2 and not set(saved) & set(SINCE_FLAT)
    again = load_model_config(tmp_path)
    assert again.memory == config.memory
    # How it was trained is an old file, too.
    trained = load_config(folder / "config.yaml")
    check_model_section(trained.model)
    # `needle-lmm` is of before files said how values are scaled.
    assert trained.model.get("memory", {}).get("depth") in (None, config.memory.depth)


def test_a_newer_layout_is_refused() -> None:
    with pytest.raises(CheckpointError, match="layout 3; this version reads up to 2"):
        TitansConfig.from_dict({"checkpoint_version": 3, "memory_depth": 1})


def test_old_names_in_a_file_are_read_and_typed_by_hand_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(
        "out: there\nmodel: {variant: mac, memory_depth: 1, chunk_size: 8}\n"
        "stages: [{model: {write_threshold: 0.5}}]\n"
    )
    stage = load_config(path).runs()[0]
    wanted = {"depth": 1, "chunk_size": 8, "write_threshold": 0.5}
    assert stage.model == {"variant": "mac", "memory": wanted}
    with pytest.raises(ConfigError, match=r"memory_depth is now called model\.memory\.depth"):
        check_model_section(load_config(path, ["model.memory_depth=2"]).model)
    with pytest.raises(ConfigError, match=r"unknown key model\.memory\.dept; did you mean"):
        check_model_section(load_config(path, ["model.memory.dept=2"]).model)
