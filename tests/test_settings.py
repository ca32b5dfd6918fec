"""Settings: one reader of YAML and `--set`, typed values, and numbers that can be meant."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from titans.data.config import DataConfig
from titans.errors import ConfigError
from titans.settings import (
    Count,
    Positive,
    Range,
    Share,
    apply_settings,
    build,
    check_ranges,
    parse_yaml,
    read_yaml,
    to_yaml,
)
from titans.training.config import CheckpointConfig, LogConfig, RunConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A section."""

    rate: Positive = 1.0
    share: Share | None = None
    betas: tuple[Share, Share] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_ranges(self, "inner.")


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Every kind of field."""

    name: str
    steps: Count = 1
    kind: Literal["a", "b"] = "a"
    path: Path | None = None
    layers: list[int] | None = None
    parts: tuple[Inner, ...] = ()
    inner: Inner = field(default_factory=Inner)
    options: dict[str, object] = field(default_factory=dict)


def test_values_become_what_fields_want(tmp_path: Path) -> None:
    text = (
        "name: '12'\nsteps: 1e3\nkind: b\npath: some/where\nlayers: [0, 2]\n"
        "parts: [{rate: 2}, {share: 5e-1}]\ninner: {betas: [0, 1e-2]}\noptions: {a: 3e-4, b: '007'}"
    )
    (tmp_path / "a.yaml").write_text(text)
    outer = build(Outer, read_yaml(tmp_path / "a.yaml"))
    assert (outer.name, outer.steps, outer.kind) == ("12", 1000, "b")
    assert (outer.path, outer.layers) == (Path("some/where"), [0, 2])
    assert [(p.rate, p.share) for p in outer.parts] == [(2.0, None), (1.0, 0.5)]
    assert outer.inner.betas == (0.0, 0.01)
    assert outer.options == {"a": 3e-4, "b": "007"}
    assert build(Outer, parse_yaml(to_yaml(outer), "again")) == outer


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("nme=x", "unknown key nme; did you mean name"),
        ("steps=1.5", "steps must be of type int, got 1.5"),
        ("steps=yes", "steps must be of type int, got True"),
        ("kind=c", "kind must be one of a, b; got 'c'"),
        ("layers=3", "layers must be a list, got 3"),
        ("inner.share=.nan", "inner.share must be a finite number, got nan"),
        ("inner.share=1.5", "inner.share must be between 0 and 1, got 1.5"),
        ("inner.rate=0", "inner.rate must be above 0, got 0"),
        ("inner.betas=[0, 2]", r"inner.betas\[1\] must be between 0 and 1, got 2"),
        ("options.deep=[1, {x: .inf}]", r"options.deep\[1\].x must be a finite number, got inf"),
        ("inner=3", "inner is a section with keys of its own, got 3"),
        ("name.x=3", "--set name.x: name is a value, not a section"),
        ("inner={rate: 1, rate: 2}", "--set inner: not valid YAML: rate occurs twice"),
        ("options=2001-99-99", "--set options: not valid YAML"),
        ("options=" + "[" * 5000, "--set options: not valid YAML"),
        ("=3", "--set takes FIELD=VALUE, such as train.steps=500; got '=3'"),
    ],
)
def test_wrong_settings_are_one_line(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        build(Outer, apply_settings({"name": "x"}, [setting]))
    assert "\n" not in str(error.value)


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ConfigError, match=r"inner\.name is missing"):
        build(Outer, {}, "inner.")


def test_none_is_a_word_where_nothing_is_allowed() -> None:
    settings = ["path=none", "layers=null", "inner.share=none"]
    outer = build(Outer, apply_settings({"name": "x"}, settings))
    assert outer.layers is None and outer.inner.share is None


def test_ranges() -> None:
    @dataclass(frozen=True)
    class Ranged:
        """Some numbers."""

        low: Annotated[float, Range(high=2)] = 0
        free: float = 0.0

    check_ranges(Ranged(2, -1e30))
    for wrong, message in (
        (Ranged(3), "low must be at most 2"),
        (Ranged(0, math.inf), "free must be a finite number, got inf"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_ranges(wrong)


@pytest.mark.parametrize("kind", [TrainConfig, CheckpointConfig, LogConfig, DataConfig, RunConfig])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1])
def test_no_number_of_a_run_may_be_nan_infinite_or_negative(kind: type, value: float) -> None:
    numbers = [n for n, v in vars(kind()).items() if type(v) in (int, float)]
    assert numbers
    for name in numbers:
        with pytest.raises(ConfigError, match=rf"{name} must be .*got {value}"):
            kind(**{name: value})
