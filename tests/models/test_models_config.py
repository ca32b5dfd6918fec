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
        assert config.memory_head_dim * config.memory_num_heads == config.hidden_size
        assert TitansConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "mad"}, "variant must be one of lmm, mac"),
        ({"chunk_sizes": 8}, "did you mean 'chunk_size'"),
        ({"memory_gate_kernel": 4, "memory_gates": "constant"}, "memory_gate_kernel=4 has no"),
        ({"memory_step_init": 0.2, "memory_step_max": 0.1}, r"must lie in \[0, memory_step_max"),
        ({"memory_value_dim": 0}, "memory_value_dim must be at least 1, got 0"),
        ({"memory_key_lag": 4}, r"memory_key_lag must be below memory_conv_kernel \(4\)"),
        ({"memory_written": "second"}, "memory_written must be one of all, first, last"),
        ({"memory_written": "first", "memory_rule": "ttt"}, "no effect with memory_rule='ttt'"),
        ({"memory_written": "first", "memory_init": "zero_last"}, "no error reaches the layer"),
        ({"memory_init": "zero_first", "memory_depth": 1}, "needs a memory_depth of 2 or more"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"hidden_size": 50, "num_attention_heads": 4}, "multiple of num_attention_heads"),
        ({"memory_layers": [0, 9]}, r"names layers \[9\]; this model has layers 0 to 3"),
        ({"write_gate": "associative"}, "needs a surprise_threshold"),
        ({"surprise_threshold": 0.1}, "has no effect with write_gate='none'"),
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
    config = preset("nano", "mag", window=128, intermediate_size=96)
    assert (config.window, config.intermediate_size, config.variant) == (128, 96, "mag")


def test_deep_memories_start_where_they_are_put() -> None:
    assert [TitansConfig(memory_depth=d).memory_init for d in (1, 2, 3, 4)] == [
        "learned",
        "learned",
        "random",
        "random",
    ]
    assert TitansConfig(memory_depth=3, memory_init="learned").memory_init == "learned"
