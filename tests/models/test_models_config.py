"""Configuration and sizes."""

import pytest

from support.models import VARIANTS
from titans.errors import ConfigError
from titans.models import TitansConfig
from titans.models.presets import SIZES, count_parameters, preset


def test_defaults_are_complete_for_every_variant() -> None:
    for variant in VARIANTS:
        config = TitansConfig(variant=variant)
        assert config.intermediate_size == 704
        assert config.memory.head_dim * config.memory.num_heads == config.hidden_size
        assert TitansConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "mad"}, "variant must be one of lmm, mac"),
        ({"windows": 8}, "did you mean 'window'"),
        ({"chunk_size": 8}, "chunk_size is now called memory.chunk_size"),
        ({"memory_depth": 8}, "memory_depth is now called memory.depth"),
        ({"memory": {"chunk_sizes": 8}}, "memory: unknown key chunk_sizes; did you mean chunk_s"),
        ({"memory": {"gate_conv_size": 4, "gates": "constant"}}, "gate_conv_size=4 has no"),
        ({"memory": {"step_init": 0.2, "step_max": 0.1}}, "between 0 and step_max"),
        ({"memory": {"value_dim": 0}}, "memory: value_dim must be at least 1, got 0"),
        ({"memory": {"key_lag": 4}}, r"key_lag must be below conv_size \(4\)"),
        ({"memory": {"written": "second"}}, "written must be one of all, first, last"),
        ({"memory": {"written": "first", "rule": "ttt"}}, "no effect with rule='ttt'"),
        (
            {"memory": {"written": "first", "init": "zero_last", "depth": 2}},
            "no error reaches the layer",
        ),
        ({"memory": {"init": "zero_first", "depth": 1}}, "needs a depth of 2 or more"),
        ({"memory": {"num_heads": 3}}, r"the width \(256\) is no multiple .* num_heads \(3\)"),
        ({"memory": 3}, "settings must be a mapping of options, got 3"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"hidden_size": 50, "num_attention_heads": 4}, "multiple of num_attention_heads"),
        ({"memory_layers": [0, 9]}, r"names layers \[9\]; this model has layers 0 to 3"),
        ({"num_persistent": -1}, "num_persistent must be 0 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TitansConfig(**settings)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_have_the_parameters_of_their_name(size: str) -> None:
    for variant in ("lmm", "mac", "mag", "mal", "transformer"):
        config = preset(size, variant)
        assert count_parameters(config) == pytest.approx(SIZES[size].parameters, rel=0.03)


def test_unknown_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="no size 'huge'; there are nano"):
        preset("huge")


def test_preset_takes_changes() -> None:
    config = preset("nano", "mag", memory={"depth": 1})
    assert (config.memory.depth, config.memory.chunk_size) == (1, 16)
    config = preset("nano", "mag", window=128, intermediate_size=96)
    assert (config.window, config.intermediate_size, config.variant) == (128, 96, "mag")


def test_deep_memories_start_where_they_are_put() -> None:
    assert [TitansConfig(memory={"depth": d}).memory.init for d in (1, 2, 3, 4)] == [
        "learned",
        "learned",
        "random",
        "random",
    ]
    assert TitansConfig(memory={"depth": 3, "init": "learned"}).memory.init == "learned"
