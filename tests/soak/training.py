"""Training: killed and resumed at moments of chance, and checkpoints with flipped bits."""

import json
import random
from pathlib import Path

from safetensors.torch import load_file

from soak.driver import count, suite
from soak.victims import Acknowledge, kill_while
from titans.errors import CheckpointError
from titans.files import tensors_digest
from titans.training.checkpoint import CheckpointFolder
from titans.training.config import RunConfig
from titans.training.stages import train
from training.runs import timeless, tiny_config

KILLS = 3
"""In a trial; then the training may end."""
FLIPS = 8
STAGES = json.dumps([{"train": {"steps": 4}}, {"train": {"steps": 8}, "seed": 1}])


def config(folder: Path, rng: random.Random) -> RunConfig:
    """One or two stages, states carried or not, saved often or seldom."""
    folder.mkdir()
    settings = [f"checkpoint.every={rng.choice((1, 2, 3))}", f"log.every={rng.choice((1, 3))}"]
    if rng.random() < 0.5:
        settings += ["data.carry_state=true", "train.micro_batch_size=2"]
    if rng.random() < 0.3:
        settings += [f"stages={STAGES}"]
    return tiny_config(folder, *settings, variant=rng.choice(("swa", "mac")))


def contents(last: RunConfig) -> dict[str, str]:
    """What a finished run holds: its last checkpoint's numbers, and the log."""
    folder = CheckpointFolder.of(last)
    checkpoint = folder.verify()
    assert checkpoint is not None
    assert (folder.folder / "last").resolve() == checkpoint.path.resolve(), "the link is behind"
    # Not summary.json: it has the digests of all files, the run's folder is named in one of them.
    plain = [p for p in checkpoint.path.glob("*.json") if p.name != "summary.json"]
    found = {path.name: path.read_text() for path in plain}
    for path in checkpoint.path.rglob("*.safetensors"):
        found[str(path.relative_to(checkpoint.path))] = tensors_digest(load_file(path))
    return {**found, "log": str(timeless(last.out))}


@suite("kill.train")
def killed_training(folder: Path, rng: random.Random) -> str:
    """Training that is killed and resumed ends as training that was not, bit for bit."""
    whole = config(folder / "whole", random.Random(seed := rng.random()))
    cut = config(folder / "cut", random.Random(seed))
    train(whole)

    def work(acknowledge: Acknowledge) -> None:
        resume = any(CheckpointFolder.of(run).all() for run in cut.runs())
        train(cut, resume=resume)
        acknowledge("done")

    kills = 0
    while kills < KILLS and "done" not in kill_while(work, rng, seconds=1.0, calls=200):
        kills += 1
        for run in cut.runs():
            CheckpointFolder.of(run).verify()
    if kills == KILLS:
        work(lambda line: None)
    pairs = zip(whole.runs(), cut.runs(), strict=True)
    for first, second in pairs:
        expected, found = contents(first), contents(second)
        differing = {n for n in expected | found if expected.get(n) != found.get(n)}
        assert not differing, f"{second.out} differs in {sorted(differing)}"
    return f"ended after {kills} kills"


@suite("flip.checkpoint")
def flipped_checkpoint(folder: Path, rng: random.Random) -> str:
    """A checkpoint with a flipped bit, or without one of its files, is refused in one line."""
    run = config(folder / "run", rng)
    train(run)
    saved = CheckpointFolder.of(run.runs()[-1]).last()
    assert saved is not None
    files = sorted(path for path in saved.path.rglob("*") if path.is_file())
    for _ in range(FLIPS):
        path = rng.choice(files)
        content = path.read_bytes()
        if rng.random() < 0.9:
            place = rng.randrange(len(content))
            flipped = bytes([content[place] ^ 1 << rng.randrange(8)])
            path.write_bytes(content[:place] + flipped + content[place + 1 :])
        else:
            path.unlink()
        try:
            train(run, resume=True)
        except CheckpointError as error:
            assert path.name in str(error) and "\n" not in str(error), error
        else:
            raise AssertionError(f"{path.name} was damaged, and nobody noticed")
        path.write_bytes(content)
        count("flips")
    train(run, resume=True)
    return f"{FLIPS} damages found"
