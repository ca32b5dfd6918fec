"""Nonsense in every place that takes something: one line and a fix, or it works; never a change.

Options of commands, arguments in Python, YAML, JSON lines, the files of a checkpoint, states.
"""

import contextlib
import io
import json
import os
import random
import resource
import signal
import struct
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from soak.damage import refused, tiny, values_of
from soak.driver import count, suite
from soak.kills import CONFIG, OTHERS, assert_sound, filled, new_store, told
from titans import NeuralMemory, NeuralMemoryState
from titans.cli.main import COMMANDS, build_parser, main
from titans.errors import TitansError
from titans.models import TitansCache
from titans.models.checkpoint import load
from titans.recall import TextMemory, import_records
from titans.recall.upkeep import find_damage
from titans.settings import apply_settings, build, parse_yaml, to_yaml
from titans.training.config import RunConfig, load_config
from training.runs import WORDS, tiny_config, write_corpus

ALLOWED = 3 * 2**30
"""Bytes that a trial may take beyond what it has: a number read as a size must not take all."""
LONG = 4
"""Seconds after which a command is stopped as by Ctrl-C: some nonsense asks for long work."""
DEEP = "[" * 100_000
TEXTS = (
    *("", " ", "0", "-1", "1", "2", "nan", "inf", "-inf", "1e999", "9" * 5000, "1.5", "0x10"),
    *("null", "true", "[]", "{}", "[1, 2]", '{"a": {"b": []}}', "'", '"', "`", "a: b: c", "- - -"),
    *("\ud800", "\x00", "\x1b[31m", "\u202e", "e\u0301", "\U0001f9d1\u200d\U0001f33e", "\r\n"),
    *("$x^$", "$\\frac{1}$", "%s", "{0}", "*", "~", "-", "--", "---", "@", "a" * 300, "../x"),
    *("text", "hashing:16", "hashing:0", "hashing:x", "minilm", "bytes", "echo", "openai:x"),
    *("2024-05-31", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00", "2024-13-01", "cuda:7"),
    *("train.steps=-1", "model.hidden_size=0", "model.hidden_size=nan", "data={}", "out=", "a.b=c"),
    *("loss", "2k,4k", "1,2", "live", "all", "pk,n", "1,,2", "0.5"),
)
"""What a user, a script or an enemy may write."""
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**70, 1.5, float("nan"), float("inf"), b"bytes", [], {}, (), object()),
    *([1], {"a": 1}, {1: 2}, {"a": float("nan")}, {"a": object()}, {"a": 2**70}, len, 1j),
)


def text(rng: random.Random) -> str:
    """One of the texts, or two, or some characters."""
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(TEXTS)
    if kind < 0.85:
        return rng.choice(TEXTS) + rng.choice(TEXTS)
    return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x30000)))) for _ in range(9))


def value(rng: random.Random) -> Any:
    """Something in Python."""
    return text(rng) if rng.random() < 0.6 else rng.choice(VALUES)


@cache
def prepared() -> dict[str, dict[str, bytes]]:
    """A run with checkpoints, as files: what commands read; and everything is imported."""
    import tempfile

    from titans.training.stages import train

    with tempfile.TemporaryDirectory() as folder:
        run = tiny_config(Path(folder), "train.steps=4", variant="mac")
        train(run)
        top = Path(folder) / "run"
        newest = (top / "checkpoints" / "last").resolve()
        found = {"": {}, "checkpoint": _files(newest)}
    for name in COMMANDS:
        build_parser(name)
    filled(5)
    tiny()
    return found


def _files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def furnish(work: Path) -> list[str]:
    """Files of every kind in the folder of a trial; returns their names."""
    new_store(work, 5)
    write_corpus(work)
    for name, content in prepared()["checkpoint"].items():
        (work / "checkpoint" / name).parent.mkdir(parents=True, exist_ok=True)
        (work / "checkpoint" / name).write_bytes(content)
    cache = tiny().new_cache(1)
    tiny()(input_ids=torch.arange(9)[None], past_key_values=cache)
    cache.save(work / "state.st")
    config = tiny_config(work, "train.steps=2")
    (work / "config.yaml").write_text(to_yaml(config))
    (work / "in.jsonl").write_text('{"text": "one"}\n{"text": "two", "id": "2"}\n')
    (work / "plain.txt").write_text(" ".join(WORDS))
    (work / "empty").write_bytes(b"")
    (work / "bytes.gz").write_bytes(bytes(range(256)) * 4)
    (work / "deep.json").write_text(DEEP)
    (work / "huge.jsonl").write_text('{"text": ' + "9" * 9000 + "}\n")
    return [*sorted(path.name for path in work.iterdir()), "missing", "empty/x", "new/x.png"]


def stopping(seconds: int) -> None:
    """Have Ctrl-C pressed after some seconds; never, if none."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.alarm(seconds)


def limit_memory() -> None:
    """What asks for too much memory is told so, and does not take the machine's."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + ALLOWED, has + ALLOWED))


def call(words: list[str], given: bytes) -> tuple[int, str]:
    """Run a command in this process; returns its exit code and what it said on stderr."""
    # With bytes below, as a real stream: `titans mcp` speaks to them.
    said, errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        stopping(LONG)
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            stopping(0)
    return code, errors.getvalue()


EXAMPLES: dict[str, list[list[str]]] = {
    "generate": [["checkpoint", "--prompt", "the quick", "--max-new-tokens", "2"]],
    "train": [["config.yaml"], ["config.yaml", "--print-config"]],
    "tokenizer": [["train", "corpus.jsonl", "--out", "tokenizer", "--vocab-size", "300"]],
    "plot": [["checkpoint"], ["run"]],
    "tune": [["config.yaml", "--space", "config.yaml", "--trials", "1"]],
    "eval": [
        ["needle", "--model", "checkpoint", "--samples", "1"],
        ["lm", "--text", "plain.txt"],
        ["s-niah", "--model", "checkpoint", "--samples", "1", "--lengths", "1k"],
        ["locomo", "--data", "in.jsonl"],
    ],
    "analyze": [["checkpoint", "--text", "plain.txt", "--tokens", "20"]],
    "sweep": [["config.yaml", "--plan"]],
    "remember": [["a new text", "--scope", "fuzz"], ["-"]],
    "recall": [["story3"], ["story3", "--explain", "--json"]],
    "list": [["-n", "3"], ["--before", "2030-01-01", "--json"]],
    "show": [["3", "--scope", "ann"]],
    "forget": [["3", "--scope", "ann"], ["--before", "2001-01-01"]],
    "export": [["out.jsonl", "--scope", "ann"], ["-"]],
    "import": [["in.jsonl", "--scope", "fuzz"], ["-"]],
    "keys": [
        ["list", "--keys", "keys.json"],
        ["make", "a", "--scope", "ann", "--keys", "keys.json"],
    ],
    "mcp": [["--scope", "fuzz"]],
    "serve": [["--port", "0", "--encoder", "hashing:16"], ["--keys", "keys.json"]],
    "config": [["list"], ["show", "mac"]],
    "demo": [["--secret", "Mary went to the office."]],
    "chat": [["--llm", "echo"]],
    "memory": [
        ["stats"],
        ["check"],
        ["repair"],
        ["train", "--texts", "plain.txt", "--out", "m.st", "--encoder", "hashing:8"],
    ],
}
"""Commands that work, or nearly; nonsense is put into them."""


def flags(parser: ArgumentParser) -> Iterator[str]:
    """Every option of a command, those of its actions included."""
    parser.format_help()  # some declare their options only now
    for action in parser._actions:
        yield from (name for name in action.option_strings if name not in ("-h", "--help"))
        if isinstance(action.choices, dict):
            yield from chain.from_iterable(map(flags, action.choices.values()))


@cache
def known_flags(command: str) -> list[str]:
    """They do not change; one that no command has is among them."""
    return sorted({"--nonsense", *flags(build_parser(command))})


def mangled(words: list[str], command: str, names: list[str], rng: random.Random) -> list[str]:
    """A command line with one to four places changed."""
    found = list(words)
    for _ in range(rng.randint(1, 4)):
        new = rng.choice(names) if rng.random() < 0.5 else text(rng)
        kind, place = rng.random(), rng.randrange(len(found) + 1)
        if kind < 0.35:
            found += [rng.choice(known_flags(command)), new]
        elif kind < 0.5:
            found.insert(place, rng.choice(known_flags(command)))
        elif kind < 0.9 and place < len(found):
            found[place] = new
        else:
            del found[place : place + 1]
    return found


@suite("fuzz.cli", prepare=lambda: prepared())
def commands(work: Path, rng: random.Random) -> str:
    """Commands with nonsense in them end in one line and code 0, 1 or 2, and harm no record."""
    names = furnish(work)
    os.chdir(work)
    os.environ["TITANS_STORE"] = "m.db"
    limit_memory()
    for _ in range(12):
        command = rng.choice(list(EXAMPLES))
        words = [command, *mangled(rng.choice(EXAMPLES[command]), command, names, rng)]
        given = text(rng).encode("utf-8", "surrogatepass")
        code, errors = call(words, given)
        count("calls")
        lines = [line for line in errors.splitlines() if line.startswith(f"titans {command}")]
        where = f"{words} -> {code}: {errors[-600:]!r}"
        assert code in (0, 1, 2, 130), where
        assert "Traceback" not in errors and "unexpected" not in errors, where
        is_found_damage = command == "memory" and words[1:2] == ["check"]
        if code in (1, 2) and not is_found_damage:
            assert len(lines) == 1 and len(lines[0]) > len(command) + 20, where
        # Only `forget` takes a record away, and only from the scope that was named.
        with TextMemory("m.db", "bob", CONFIG) as bob:
            if "forget" not in words and "repair" not in words:
                assert [r.text for r in bob.records()] == OTHERS, where
    return "told"


@suite("fuzz.api", prepare=lambda: prepared())
def api(work: Path, rng: random.Random) -> str:
    """Nonsense as arguments in Python: a `TitansError`, `ValueError` or `TypeError`, no change."""
    path, wanted = new_store(work, 5), [told(number) for number in range(5)]
    with TextMemory(path, "ann", CONFIG) as ann:
        for _ in range(40):
            name, keywords = rng.choice(CALLS)
            chosen = [word for word in keywords if rng.random() < 0.6]
            arguments = {word: value(rng) for word in chosen}
            if name in ("remember", "attend") and rng.random() < 0.5:
                arguments[keywords[0]] = "a text"
            count("calls")
            before = [r.text for r in ann.records()]
            try:
                result = getattr(ann, name)(**arguments)
            except (TitansError, ValueError, TypeError) as error:
                assert str(error) and "\n" not in str(error), (name, arguments)
                assert [r.text for r in ann.records()] == before, (name, arguments)
            except Exception as error:
                raise AssertionError(f"{name}({arguments}) ends in {error!r}") from error
            else:
                if name in ("remember", "attend"):
                    record = result[0] if name == "attend" else result
                    assert ann.get(record.id) is not None
                    new = [record.text] if record.is_new else []
                    assert [r.text for r in ann.records()] == before + new
                elif name != "forget":
                    assert [r.text for r in ann.records()] == before
        with TextMemory(path, "bob", CONFIG) as bob:
            assert [r.text for r in bob.records()] == OTHERS
        assert not list(find_damage(ann)) and wanted
    return "told"


CALLS = (
    ("remember", ("text", "speaker", "time", "id", "metadata")),
    ("attend", ("prompt", "speaker", "metadata", "known", "only")),
    ("recall", ("query", "k", "before", "after", "speaker", "metadata", "threshold", "explain")),
    ("forget", ("id", "before", "after", "speaker", "metadata")),
    ("get", ("id",)),
    ("records", ("before", "after", "speaker", "metadata", "newest_first", "limit", "beyond")),
    ("remember_many", ("records",)),
)


@suite("fuzz.yaml", prepare=lambda: prepared())
def settings(work: Path, rng: random.Random) -> str:
    """Nonsense in a configuration or `--set`: a line that names it, or the same after writing."""
    config = tiny_config(work, "train.steps=2")
    plain, path = to_yaml(config), work / "config.yaml"
    limit_memory()
    understood = 0
    for _ in range(25):
        lines = plain.splitlines()
        for _ in range(rng.randint(0, 3)):
            place = rng.randrange(len(lines))
            name = lines[place].partition(":")[0]
            kind = rng.random()
            if kind < 0.7:
                lines[place] = f"{name}: {text(rng)}"
            elif kind < 0.8:
                lines.insert(place, text(rng))
            else:
                lines.insert(rng.randrange(len(lines)), lines.pop(place))
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        given = [f"{rng.choice(KEYS)}={text(rng)}" for _ in range(rng.randint(0, 2))]
        found: list[RunConfig] = []
        count("calls")
        if refused(lambda given=given, found=found: found.append(load_config(path, given))):
            continue
        again = build(RunConfig, apply_settings(parse_yaml(to_yaml(found[0]), "again"), []))
        assert again == found[0], f"{lines} {given}: not the same after writing"
        understood += 1
    return "some understood" if understood else "none understood"


KEYS = (
    *("train.steps", "train.learning_rate", "model", "model.hidden_size", "data.path", "stages"),
    *("data.sequence_len", "checkpoint.every", "log", "out", "seed", "train.betas", "a.b", ""),
)


@suite("fuzz.json", prepare=lambda: prepared())
def lines(work: Path, rng: random.Random) -> str:
    """Lines of nonsense in an import: those before it are there, the bad one is named."""
    path = new_store(work, 5)
    with TextMemory(path, "ann", CONFIG) as ann:
        for number in range(25):
            values = {"text": f"line {number}", "id": f"l{number}", "speaker": "ann"}
            for _ in range(rng.randint(0, 2)):
                values[rng.choice((*values, "time", "metadata", text(rng)))] = value(rng)
            written = json.dumps(values, default=str)
            if rng.random() < 0.3:
                place = rng.randrange(len(written))
                written = written[:place] + text(rng) + written[place + rng.randrange(3) :]
            if rng.random() < 0.05:
                written = '{"text": "deep", "metadata": {"a": ' + DEEP
            before = [r.text for r in ann.records()]
            count("calls")
            if refused(lambda written=written: import_records(ann, written.split("\n"))):
                after = [r.text for r in ann.records()]
                assert after[: len(before)] == before
            else:
                texts = {values_of(line).get("text") for line in written.split("\n")}
                new = [r.text for r in ann.records()][len(before) :]
                assert set(new) <= texts, (written, new)
    assert_sound(path)
    return "told"


@suite("fuzz.checkpoint", prepare=lambda: prepared())
def checkpoint(work: Path, rng: random.Random) -> str:
    """Nonsense in the files of a checkpoint is refused in one line when it is loaded."""
    furnish(work)
    folder = work / "checkpoint"
    files = [p for p in folder.rglob("*") if p.is_file() and "rng" not in p.name]
    limit_memory()
    for _ in range(8):
        path = rng.choice(files)
        content = path.read_bytes()
        kind = rng.random()
        if kind < 0.4 and path.suffix == ".json":
            tree = json.loads(content)
            if isinstance(tree, dict) and tree:
                tree[rng.choice(list(tree))] = rng.choice((*VALUES[:9], text(rng), [], {}))
            path.write_text(json.dumps(tree, default=str))
        elif kind < 0.7:
            path.write_bytes(text(rng).encode("utf-8", "surrogatepass"))
        elif kind < 0.8:
            path.write_text(DEEP)
        else:
            path.unlink()
        count("calls")
        refused(lambda: load(folder))
        path.write_bytes(content)
    load(folder)
    return "told"


@suite("fuzz.state", prepare=lambda: prepared())
def states(work: Path, rng: random.Random) -> str:
    """State files made by an enemy are refused in one line, whatever they claim."""
    path = work / "state.st"
    torch.manual_seed(0)
    loads: list[tuple[Callable[[], object], dict[str, torch.Tensor]]] = []
    memory = NeuralMemory(8)(torch.randn(1, 5, 8))[1]
    cache = tiny().new_cache(1)
    tiny()(input_ids=torch.arange(9)[None], past_key_values=cache)
    for state, kind in ((memory, NeuralMemoryState), (cache, TitansCache)):
        state.save(path)
        loads.append((lambda kind=kind: kind.load(path), _header(path.read_bytes())))
    limit_memory()
    for _ in range(20):
        load_it, header = loads[number := rng.randrange(2)]
        (memory, cache)[number].save(path)
        size = struct.unpack("<Q", path.read_bytes()[:8])[0]
        tensors = path.read_bytes()[8 + size :]
        new: dict[str, Any] = json.loads(json.dumps(header))
        for _ in range(rng.randint(1, 3)):
            name = rng.choice(list(new))
            part = new[name]
            kind = rng.random()
            if kind < 0.4 and "shape" in part:
                part["shape"] = rng.choice(([], [0], [10**9], [1, 2**62], [-1], *[part["shape"]]))
            elif kind < 0.6:
                del new[name]
                new[text(rng)] = part
            elif kind < 0.8:
                key = rng.choice(list(part))
                part[key] = text(rng) if rng.random() < 0.7 else rng.choice(VALUES[:9])
            else:
                del new[name]
            if not new:
                break
        encoded = json.dumps(new, default=str).encode()
        length = len(encoded) if rng.random() < 0.9 else rng.choice((0, 2**40, 2**63))
        path.write_bytes(struct.pack("<Q", length) + encoded + tensors)
        count("calls")
        refused(load_it)
    return "told"


def _header(content: bytes) -> dict[str, Any]:
    size = struct.unpack("<Q", content[:8])[0]
    found = json.loads(content[8 : 8 + size])
    # Without its checksum, as before there was one: everything else must be looked at.
    found["__metadata__"].pop("sha256", None)
    return found
