"""States that the first release saved go on as they did (float64; 1e-10 for other processors)."""

from pathlib import Path

import pytest

from golden import states
from golden.compare import assert_near
from golden.files import DATA, read


def test_layer_state() -> None:
    assert_near(states.continue_layer(DATA / "layer.safetensors"), read("layer.json")["out"], 1e-10)


@pytest.mark.parametrize("name", states.MODELS)
def test_cache(name: str, tmp_path: Path) -> None:
    wanted = read("caches.json")[name]
    assert_near(states.continue_cache(name, DATA / f"cache-{name}.safetensors"), wanted, 1e-10)
    # What is written today goes on in the same way.
    states.write_cache(name, tmp_path / "cache.safetensors")
    assert_near(states.continue_cache(name, tmp_path / "cache.safetensors"), wanted, 1e-10)
