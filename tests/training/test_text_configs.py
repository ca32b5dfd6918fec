"""The shipped configurations of text, trained at twice their length: slow."""

from pathlib import Path

import pytest

import titans
from titans.training.config import load_config
from titans.training.log import Record, read_log
from titans.training.trainer import Trainer

PACKAGE = Path(titans.__file__).parent
WARMUP = 40


RUNS = {
    "lmm": (),
    "mac": (),
    "mag": (),
    "mal": (),
    "mac-documents": ("data.carry_state=true",),
    "mag-memory-loss": ("train.memory_loss_weight=0.02",),
    "mag-two-stage": ("train.core_steps=100",),
}


def train(name: str, folder: Path, *settings: str) -> tuple[list[Record], float]:
    """300 steps at 512 bytes of this package's own code: the log, and bits per byte held out."""
    corpus = folder / "corpus.txt"
    if not corpus.exists():
        corpus.write_text("".join(p.read_text() for p in sorted(PACKAGE.rglob("*.py"))))
    wanted = [
        f"out={folder / name}",
        f"data.path={corpus}",
        f"data.cache_dir={folder / 'cache'}",
        "data.sequence_len=512",
        "train.steps=300",
        "log.every=1",
        "log.tensorboard=false",
        "log.held_out_every=300",
        "log.sample_every=0",
        "checkpoint.every=1000",
    ]
    config = PACKAGE / "configs" / f"{name.split('-')[0]}.yaml"
    Trainer(load_config(config, [*wanted, *settings])).fit()
    log = read_log(folder / name)
    found = [float(r["bits_per_byte"]) for r in log if r["kind"] == "held_out"]  # type: ignore[arg-type]
    return [r for r in log if r["kind"] == "train"], found[-1]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> float:
    folder = tmp_path_factory.mktemp("transformer")
    return train("transformer", folder, "model.mixer_conv_size=4")[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RUNS)
def test_it_trains_at_length(name: str, tmp_path: Path, transformer: float) -> None:
    log, bits = train(name, tmp_path, *RUNS[name])
    # Values have length 4; MAG under gradients at the start of chunks reached 5e16 here.
    inner = [r["memory_loss"] for r in log if r.get("memory_loss") is not None]
    assert inner and max(map(float, inner)) < 4 * 4**2  # type: ignore[arg-type]
    assert max(float(r["grad_norm"]) for r in log[WARMUP:]) < 10  # type: ignore[arg-type]
    if name in ("lmm", "mac", "mag", "mal"):
        assert bits < transformer
