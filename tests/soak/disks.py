"""Disks that are full or read-only: one line says so, and everything acknowledged is there."""

import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from soak.driver import count, suite
from soak.kills import CONFIG, assert_sound, filled, new_store, told
from titans import NeuralMemory, NeuralMemoryState
from titans.errors import FileError, StoreError, TitansError
from titans.files import writing
from titans.recall import TextMemory, export_records
from titans.recall.store import SQLiteStore
from titans.training.checkpoint import CheckpointFolder
from titans.training.stages import train
from training.runs import tiny_config

NOBODY = 65534


@contextmanager
def room(most: int) -> Iterator[None]:
    """No file may grow beyond this many bytes: the way of a full disk that needs no other disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@suite("disk.store", prepare=lambda: filled(5))
def full_store(work: Path, rng: random.Random) -> str:
    """The disk fills up while records are written and forgotten; later there is room again."""
    path, failed = new_store(work, 5), 0
    wanted = {str(number): told(number) for number in range(5)}
    own_limit = rng.random() < 0.5
    with TextMemory(path, "ann", CONFIG) as ann:
        assert isinstance(ann.store, SQLiteStore)
        db = ann.store.db
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        for number in range(5, 40):
            most = rng.randrange(1, 1_200_000) if rng.random() < 0.5 else 2**40
            with room(2**40 if own_limit else most):
                # SQLite's own limit ends in "database or disk is full".
                limit = pages + rng.randrange(3) if own_limit and most < 2**40 else 2**30
                db.execute(f"PRAGMA max_page_count = {limit}")
                try:
                    if rng.random() < 0.2 and wanted:
                        gone = rng.choice(sorted(wanted))
                        ann.forget(gone)
                        del wanted[gone]
                    else:
                        ann.remember(told(number), id=str(number), speaker="ann")
                        wanted[str(number)] = told(number)
                except StoreError as error:
                    assert "\n" not in str(error) and "disk" in str(error), error
                    failed += 1
                    count("full disks")
    assert assert_sound(path) == wanted
    return "filled up" if failed else "had room"


@suite("disk.files")
def full_files(work: Path, rng: random.Random) -> str:
    """No room for a state, a backup or a checkpoint: the old one is there, and nothing beside."""
    torch.manual_seed(0)
    old = NeuralMemory(8)(torch.randn(1, 5, 8))[1]
    new = NeuralMemory(64)(torch.randn(1, 5, 64))[1]
    path, backup = work / "state.safetensors", work / "backup.jsonl"
    old.save(path)
    backup.write_text("the old backup\n")
    store = new_store(work, 12)
    with TextMemory(store, "ann", CONFIG) as ann:
        before = sorted(work.iterdir())
        for _ in range(4):
            with room(rng.randrange(1, 700)):
                for attempt in (lambda: new.save(path), lambda: _export(ann, backup)):
                    try:
                        attempt()
                    except FileError as error:
                        assert "the disk is full" in str(error) and "\n" not in str(error), error
                    else:
                        raise AssertionError("there was no room for it")
                    count("full disks")
        assert sorted(work.iterdir()) == before
    assert NeuralMemoryState.load(path).conv_tail.equal(old.conv_tail)
    assert backup.read_text() == "the old backup\n"
    return "refused"


def _export(memory: TextMemory, backup: Path) -> None:
    with writing(backup) as file:
        export_records(memory, file)


@suite("disk.training")
def full_training(work: Path, rng: random.Random) -> str:
    """The disk fills up during a training: the last checkpoint is whole, and goes on."""
    run = tiny_config(work, "checkpoint.every=2", "train.steps=8")
    try:
        with room(rng.randrange(1, 60_000)):
            train(run)
        end = "had room"
    except TitansError as error:
        assert "disk is full" in str(error) and "\n" not in str(error), error
        count("full disks")
        end = "filled up"
    folder = CheckpointFolder.of(run)
    last = folder.verify() if folder.folder.is_dir() else None
    result = train(run, resume=last is not None)
    assert result is not None and result.steps == 8
    assert folder.verify() is not None
    return f"{end} {'before' if last is None else 'after'} a checkpoint"


@suite("disk.readonly", prepare=lambda: filled(5))
def read_only(work: Path, rng: random.Random) -> str:
    """A store, a folder or both may not be written: one line says so, and nothing changes."""
    store, state = new_store(work, 5), work / "state.safetensors"
    torch.manual_seed(0)
    made = NeuralMemory(8)(torch.randn(1, 5, 8))[1]
    made.save(state)
    content = store.read_bytes()
    kind = rng.choice(("file", "folder", "both"))
    if kind != "folder":
        store.chmod(0o444)
    if os.geteuid() == 0:
        # Nothing is forbidden to root.
        for path in (work.parent, work, *work.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        os.setuid(NOBODY)
    work.chmod(0o755 if kind == "file" else 0o555)
    try:
        try:
            with TextMemory(store, "ann", CONFIG) as ann:
                ann.remember("cannot be stored")
        except StoreError as error:
            assert "\n" not in str(error) and "read-only" in str(error), error
        else:
            raise AssertionError("a read-only store was written")
        if kind != "file":
            try:
                made.save(state)
            except FileError as error:
                assert "cannot be written" in str(error) and "\n" not in str(error), error
            else:
                raise AssertionError("a file was written into a read-only folder")
    finally:
        work.chmod(0o755)
    assert store.read_bytes() == content
    NeuralMemoryState.load(state)
    count("read-only disks")
    return kind
