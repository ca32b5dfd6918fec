"""Flipped bits in every kind of file: an error of one line, or exactly what was written."""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from soak.driver import count, suite
from soak.kills import CONFIG, filled, new_store
from titans import NeuralMemory, NeuralMemoryState
from titans.data.tokenizer import load_tokenizer, train_bpe
from titans.errors import StoreError, TitansError
from titans.models import TitansCache
from titans.recall import TextMemory, export_records, import_records
from titans.recall.upkeep import find_damage, repair

FLIPS = 12


def flip(path: Path, rng: random.Random, content: bytes) -> None:
    """Change one bit; sometimes cut the end off, or set a run of bytes to zero."""
    place, kind = rng.randrange(len(content)), rng.random()
    if kind < 0.8:
        changed = bytes([content[place] ^ 1 << rng.randrange(8)])
        content = content[:place] + changed + content[place + 1 :]
    elif kind < 0.9:
        content = content[:place]
    else:
        run = min(rng.randrange(1, 600), len(content) - place)
        content = content[:place] + bytes(run) + content[place + run :]
    path.write_bytes(content)
    count("flips")


def refused(look: Callable[[], object]) -> bool:
    """Whether a look ends in an error of this package, on one line that says something."""
    try:
        look()
    except TitansError as error:
        assert len(str(error)) > 20 and "\n" not in str(error), error
        return True
    return False


@suite("flip.store", prepare=lambda: filled(12))
def store(work: Path, rng: random.Random) -> str:
    """A store with a flipped bit: what it says is what was written, or it says nothing."""
    path = new_store(work, 12)
    sound, noticed = filled(12), 0
    with TextMemory(path, "ann", CONFIG) as ann:
        texts = {r.id: r.text for r in ann.records()}
        answers = [(r.id, r.score) for r in ann.recall("story3 of town3", 3)]
    for _ in range(FLIPS):
        for file in work.iterdir():
            file.unlink()
        flip(path, rng, sound)

        def look() -> None:
            with TextMemory(path, "ann", CONFIG) as ann:
                assert {r.id: r.text for r in ann.records()} == texts, "a text changed silently"
                found = [(r.id, r.score) for r in ann.recall("story3 of town3", 3)]
                # The words of a question are looked up in trees of SQLite that have no checksum.
                silent = found != answers and not refused(lambda: checked(path))
                assert not silent, "an answer changed silently"
                assert ann.remember("goes on", id="next").is_new

        hurt = refused(look)
        hurt = refused(lambda: checked(path)) or hurt
        noticed += hurt
        if hurt and path.stat().st_size and not refused(lambda: repair(path, CONFIG)):
            with TextMemory(path, "ann", CONFIG) as ann:
                kept = {r.id: r.text for r in ann.records() if r.id != "next"}
                assert kept.items() <= texts.items(), "a repair changed a text"
                assert not list(find_damage(ann)), "a repair left damage"
    return f"{noticed // 4 * 4} or more of {FLIPS} noticed"


def checked(path: Path) -> None:
    """Damage that is found is an error."""
    with TextMemory(path, "ann", CONFIG) as ann:
        damage = list(find_damage(ann))
    if damage:
        raise StoreError("; ".join(damage))


@suite("flip.state")
def state(work: Path, rng: random.Random) -> str:
    """A state of a layer or a model with a flipped bit is refused, or it is what was saved."""
    path = work / "state.safetensors"
    if rng.random() < 0.5:
        torch.manual_seed(0)
        wanted = NeuralMemory(8)(torch.randn(1, 5, 8))[1]
        load = NeuralMemoryState.load
    else:
        model = tiny()
        wanted = model.new_cache(1)
        model(input_ids=torch.arange(9)[None], past_key_values=wanted)
        load = TitansCache.load
    wanted.save(path)
    content, noticed = path.read_bytes(), 0
    for _ in range(FLIPS):
        flip(path, rng, content)

        def look() -> None:
            found, saved = load(path).named_tensors(), wanted.named_tensors()
            assert found.keys() == saved.keys()
            assert all(found[name].equal(saved[name]) for name in saved), "a silent change"

        noticed += refused(look)
    return "all noticed" if noticed == FLIPS else "all but some that say the same noticed"


@cache
def tiny():  # type: ignore[no-untyped-def]
    """A small model."""
    from support.models import tiny_model

    return tiny_model("mac")


@suite("flip.tokenizer", prepare=lambda: tokenizer_file())
def tokenizer(work: Path, rng: random.Random) -> str:
    """A damaged tokenizer file is refused in one line, or it is a tokenizer still."""
    path, content = work / "tokenizer.json", tokenizer_file()
    noticed = 0
    for _ in range(FLIPS):
        flip(path, rng, content)
        noticed += refused(lambda: load_tokenizer(str(path)).encode("the quick fox"))
    return "noticed" if noticed else "passed"


@cache
def tokenizer_file() -> bytes:
    """What `tokenizer.json` holds."""
    from training.runs import WORDS

    return str(train_bpe(iter([" ".join(WORDS)] * 20), 300).backend_tokenizer.to_str()).encode()


@suite("flip.export", prepare=lambda: filled(12))
def export(work: Path, rng: random.Random) -> str:
    """A damaged backup: each line that is imported is one, and a bad line is named."""
    path, backup = new_store(work, 12), work / "backup.jsonl"
    with TextMemory(path, "ann", CONFIG) as ann, backup.open("w") as file:
        export_records(ann, file)
    content = backup.read_bytes()
    for number in range(FLIPS):
        flip(backup, rng, content)

        def load(number: int = number) -> None:
            lines = backup.read_bytes().decode(errors="replace").split("\n")
            texts = {values.get("text") for values in map(values_of, lines)}
            with TextMemory(work / f"{number}.db", "ann", CONFIG) as ann:
                try:
                    import_records(ann, lines)
                finally:
                    assert not list(find_damage(ann))
                    assert {record.text for record in ann.records()} <= texts

        refused(load)
    return "sound"


def values_of(line: str) -> dict[str, object]:
    """What a line says, if it is a JSON object."""
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
