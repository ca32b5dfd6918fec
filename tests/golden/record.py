"""Record the golden files: what the package computes, kept so that a change cannot go unnoticed.

    PYTHONPATH=src:tests JAXTYPING_DISABLE=1 OMP_NUM_THREADS=1 \
        .venv/bin/python -m golden.record traces run shipped

Run it only if a value is meant to change, and say why in the commit. Floats are kept in full: if
`git diff` shows nothing after a recording on the same machine, nothing moved by a bit. The tests
allow what another processor may round differently (see each test), so they hold elsewhere, too.

`states` and `store` are files that the first release wrote. They stay as they are for ever, since
later versions must read them; only the expected answers are recorded again (`answers`).
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from golden import conversation, run, shipped, states, traces
from golden.files import DATA, write
from titans.recall.encoder import MiniLMEncoder


def record_traces() -> None:
    """Twenty training steps of every kind of model."""
    write("traces.json", {name: traces.trace(case) for name, case in traces.CASES.items()})


def record_run() -> None:
    """A run of the trainer."""
    with tempfile.TemporaryDirectory() as folder:
        write("run.json", dict(run.whole(Path(folder))[0]))


def record_shipped() -> None:
    """Every shipped checkpoint."""
    write("shipped.json", {path.name: shipped.describe(path) for path in shipped.FOLDERS})


def record_states() -> None:
    """Saved states of a layer and of models."""
    DATA.mkdir(exist_ok=True)
    states.write_layer_state(DATA / "layer.safetensors")
    for name in states.MODELS:
        states.write_cache(name, DATA / f"cache-{name}.safetensors")


def record_store() -> None:
    """A text memory on disk."""
    (DATA / "memory.db").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        conversation.write_store(path, MiniLMEncoder())
        shutil.copy(path, DATA / "memory.db")


def record_answers() -> None:
    """What saved states and the store on disk answer."""
    write("layer.json", {"out": states.continue_layer(DATA / "layer.safetensors")})
    write(
        "caches.json",
        {
            name: states.continue_cache(name, DATA / f"cache-{name}.safetensors")
            for name in states.MODELS
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        shutil.copy(DATA / "memory.db", path)
        write("answers.json", conversation.ask_store(path, MiniLMEncoder()))


PARTS: dict[str, Callable[[], None]] = {
    "traces": record_traces,
    "run": record_run,
    "shipped": record_shipped,
    "states": record_states,
    "store": record_store,
    "answers": record_answers,
}


def main(names: list[str]) -> None:
    """Record the parts that are named."""
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        sys.exit(f"name what to record: {', '.join(PARTS)}")
    torch.set_num_threads(1)
    for name in names:
        print(f"recording {name}", flush=True)
        PARTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
