"""The text memory, measured: what it costs, what it finds, what the gate and the memory are worth.

python benchmarks/recall.py cost                       latency at 1,000 and 100,000 records
python benchmarks/recall.py forget                     the oldest and a late one of 100,000
python benchmarks/recall.py import                     records a second, a megabyte of one text
python benchmarks/recall.py fit --data locomo.json     leave one out; --write ships the weights
python benchmarks/recall.py gate --data locomo.json    half of the turns removed
python benchmarks/recall.py confidence --data locomo.json    fitted without the kind it is asked of

The first three keep made-up stores in --folder and write results/recall_<what>.json.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from confidence import confidence
from titans.evaluation.locomo import (
    CachingEncoder,
    Conversation,
    Example,
    Locomo,
    Question,
    TurnText,
    collect_examples,
    load_conversations,
    recall_scores,
)
from titans.evaluation.record import machine_name
from titans.evaluation.runner import run_task
from titans.files import source_commit
from titans.recall import TextMemory, load_encoder
from titans.recall.forgetting import Forgotten
from titans.recall.search.fusion import STAGES, Fusion, fit_fusion, fusion_json
from titans.recall.store import StoredPassage, StoredRecord
from titans.recall.store.connection import files_of
from titans.recall.text.passages import TOKEN_DIM
from titans.recall.text.words import terms
from titans.tasks.recall_sets import assistant, people

SEEDS = 8
"""Made-up chats of each kind in the fit."""
WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrstx"] + [
    f"{a}{b}{c}{d}" for a in "bdgklmprst" for b in "aeiou" for c in "bdlmnrst" for d in "aeiou"
]


def fill(path: str | Path, count: int) -> None:
    """A store of made-up records, written in bulk: vectors are random, all else is as usual."""
    rng, drawn = random.Random(0), np.random.default_rng(0)
    encoder = load_encoder("minilm")
    weights = [1 / (i + 10) for i in range(len(WORDS))]
    with TextMemory(path, encoder=encoder) as memory:
        begin = 1_700_000_000_000_000
        with memory.store.writing():
            scope = memory.store.create_scope("default")
            state = memory.neural.dump(memory.neural.initial_state())
            for i in range(count):
                text = " ".join(rng.choices(WORDS, weights, k=14))
                vectors = drawn.standard_normal((2, encoder.dim)).astype(np.float32)
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
                tokens = drawn.integers(-30, 30, (14, TOKEN_DIM), dtype=np.int8)
                passage = StoredPassage(
                    terms(text), 0, vectors.astype(np.float16).tobytes(), tokens.tobytes()
                )
                row = StoredRecord(
                    *(0, f"r{i}", text, rng.choice(["Ann", "Bob"]), begin + 60_000_000 * i),
                    *(None, 50.0 + rng.random(), bool(i % 4), "made up", None, None),
                )
                write = None
                if i % 4:
                    keys = np.stack([vectors, vectors]).astype(np.float16)
                    write = keys.tobytes()
                seq = memory.store.add_record(scope, row, [passage], write)
                if i % 2000 == 0:
                    print(f"\rfilling {i}/{count}", end="", file=sys.stderr)
                if i % (count // 8) == 0 or i == count - 1:
                    memory.store.save_snapshot(scope, seq, state, 8)
        # Reading what is there and writing one more makes the blocks of the index.
        memory.remember("The end of what was made up.", time="2023-01-01")
    print(file=sys.stderr)


def cost(folder: Path, sizes: list[int], samples: int) -> dict[str, object]:
    """Latencies in milliseconds with the real encoder, one thread."""
    encoder = load_encoder("minilm")
    texts, queries = sentences(samples), questions(samples)
    report: dict[str, object] = {}
    for size in sizes:
        path = copy_of(filled(folder, size))
        opened = [_milliseconds(lambda p=path: _ready(p)) for _ in range(5)]
        with TextMemory(path, encoder=encoder) as memory:
            memory.recall("warm up")
            remembered = [
                _milliseconds(lambda t=t, m=memory: m.remember(t, speaker="Ann")) for t in texts
            ]
            asked = [_milliseconds(lambda q=q, m=memory: m.recall(q)) for q in queries]
            report[str(size)] = {
                **_percentiles("open", opened),
                **_percentiles("remember", remembered),
                **_percentiles("recall", asked),
                "file_MB": round(path.stat().st_size / 1e6, 1),
                "process_MB": round(_resident(), 1),
            }
    report["cold_titans_remember_s"] = _cold(folder / "cold.db")
    return report


def _resident() -> float:
    """Megabytes that this process holds in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _ready(path: Path) -> None:
    """Open a store to the point where it can answer: encoder, index and neural state loaded."""
    with TextMemory(path) as memory:
        memory.stats()


def forget(folder: Path, size: int) -> dict[str, object]:
    """Seconds to forget a record of a store of `size`: one of the newest, then the oldest."""
    source = filled(folder, size)
    report: dict[str, object] = {"records": size}
    for name, number in (("late", size - size // 100), ("oldest", 0)):
        path = copy_of(source)
        with TextMemory(path) as memory:
            memory.stats()
            done: list[Forgotten] = []
            forget_one = partial(memory.forget, f"r{number}", progress=_print_progress)
            wall, cpu = _milliseconds(lambda f=forget_one, d=done: d.append(f()))
            report[name] = {
                "replayed_writes": done[0].replayed,
                "is_complete": done[0].is_complete,
                "wall_s": round(wall / 1000, 1),
                "cpu_s": round(cpu / 1000, 1),
            }
        print(file=sys.stderr)
    return report


def bring_in(folder: Path, samples: int) -> dict[str, object]:
    """Records a second, one by one and together, and CPU seconds for a megabyte of one text."""
    encoder = load_encoder("minilm")
    folder.mkdir(parents=True, exist_ok=True)
    records = [{"text": text, "speaker": "Ann"} for text in sentences(4 * samples)]
    long_text = " ".join(sentences(1200))
    report: dict[str, object] = {"records": len(records), "text_MB": round(len(long_text) / 1e6, 3)}
    for name in ("one_by_one", "together", "long_text"):
        path = copy_of(filled(folder, 1_000))
        with TextMemory(path, encoder=encoder) as memory:
            memory.recall("warm up")
            work = {
                "one_by_one": lambda m=memory: [
                    m.remember(r["text"], speaker="Ann") for r in records
                ],
                "together": lambda m=memory: m.remember_many(records),
                "long_text": lambda m=memory: m.remember(long_text),
            }[name]
            wall, cpu = (part / 1000 for part in _milliseconds(work))
        if name == "long_text":
            report["cpu_s_per_MB"] = round(cpu / len(long_text) * 1e6, 1)
        else:
            rates = {"wall": round(len(records) / wall, 1), "cpu": round(len(records) / cpu, 1)}
            report[f"{name}_records_per_s"] = rates
    return report


def _print_progress(done: int, total: int) -> None:
    if done % 1000 == 0 or done == total:
        print(f"\rreplayed {done}/{total}", end="", file=sys.stderr)


def filled(folder: Path, size: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{size}.db"
    if not path.exists():
        fill(path, size)
    return path


def copy_of(path: Path) -> Path:
    """A copy to write to, so that every run begins with the same store."""
    copy = path.with_name("copy.db")
    for left in files_of(copy):  # of a run that was stopped: its log does not fit a new copy
        left.unlink()
    shutil.copy(path, copy)
    os.sync()  # else the disk is still busy with the copy while writes are timed
    return copy


def questions(count: int) -> list[str]:
    """Questions of about 13 tokens."""
    rng = random.Random(2)
    who = ["my sister", "our neighbour", "the new teacher", "an old friend", "my team"]
    what = ["go hiking", "cook a large dinner", "finish the painting", "buy a guitar"]
    opening = ["When did", "Where did", "Why did", "With whom did"]
    return [f"{rng.choice(opening)} {rng.choice(who)} {rng.choice(what)}?" for _ in range(count)]


def sentences(count: int) -> list[str]:
    """Texts of about 25 tokens, the mean length of a turn of conversation."""
    rng = random.Random(1)
    subject = ["my sister", "our neighbour", "the new teacher", "an old friend", "my team"]
    verb = ["went hiking", "cooked a large dinner", "finished a painting", "bought a guitar"]
    place = ["near the lake", "in the old town", "after the festival", "at the community centre"]
    tail = ["and it was a wonderful surprise", "which took far longer than planned"]
    return [
        f"Last week {rng.choice(subject)} {rng.choice(verb)} {rng.choice(place)} "
        f"{rng.choice(tail)}, number {i}."
        for i in range(count)
    ]


def _milliseconds(work) -> tuple[float, float]:
    """Wall time, and CPU time: what it would be on an idle machine, but for the disk."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def _percentiles(name: str, values: list[tuple[float, float]]) -> dict[str, float]:
    return {
        f"{name}_{kind}_p{p}_ms": round(float(np.percentile([v[i] for v in values], p)), 1)
        for i, kind in enumerate(("wall", "cpu"))
        for p in (50, 95)
    }


def _cold(path: Path) -> float:
    command = [sys.executable, "-m", "titans.cli.main", "remember", "hello", "--store", str(path)]
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return round(time.perf_counter() - begin, 2)


def _loo(examples: list[list[Example]], others: list[Example], used: tuple[str, ...]) -> np.ndarray:
    """Fit on all conversations but one and on `others`, measure on that one, in turn: recall by
    question."""
    found: list[np.ndarray] = []
    for held in range(len(examples)):
        train = [e for i, c in enumerate(examples) if i != held for e in c] + others
        fitted = fit_fusion([(e.features, e.answers) for e in train], used)
        found += [e.recalls(fitted) for e in examples[held]]
    return np.array(found)


def _rows(recalls: np.ndarray, categories: np.ndarray) -> list[dict[str, object]]:
    """Scores as a table in per cent, a row for each category."""
    rows: dict[object, dict[str, object]] = {}
    for score in recall_scores(recalls, categories):
        category = score.detail["category"]
        row = rows.setdefault(category, {"category": category, "n": score.samples})
        row[score.metric] = round(100 * score.value, 1)
        interval = [round(100 * score.low, 1), round(100 * score.high, 1)]
        row[score.metric.replace("recall", "interval")] = interval
    return [*rows.values()]


def made_up(encoder: CachingEncoder, seeds: range) -> list[Example]:
    """The features of questions about made-up chats, those that have an answer."""
    found: list[Example] = []
    for chat in (make(seed) for make in (people, assistant) for seed in seeds):
        turns = [TurnText(t.id, t.speaker, t.text, t.time) for t in chat.said]
        asked = [Question(q.text, 0, q.answers) for q in chat.asked if q.answers]
        found += collect_examples(Conversation(chat.name, turns, asked), encoder)
        print(f"read {chat.name}", file=sys.stderr)
    return found


def fit(data: Path, write: bool) -> dict[str, object]:
    """Leave-one-out tables; the shipped weights from all."""
    encoder = CachingEncoder(load_encoder())
    others = made_up(encoder, range(SEEDS))
    examples = []
    for conversation in load_conversations(data):
        examples.append(collect_examples(conversation, encoder))
        print(f"read {conversation.id}", file=sys.stderr)
    results = {name: _loo(examples, others, used) for name, used in STAGES.items()}
    results["full, on LoCoMo alone"] = _loo(examples, [], STAGES["full"])
    everything = [(e.features, e.answers) for c in (*examples, others) for e in c]
    fitted = Fusion(**{name: fit_fusion(everything, used) for name, used in STAGES.items()})
    if write:
        note = f"fitted to {len(everything)} questions: docs/recall-fusion-card.md"
        target = Path(__file__).parents[1] / "src/titans/recall/search/fusion.json"
        target.write_text(fusion_json(fitted, note), encoding="utf-8")
    categories = np.array([e.category for c in examples for e in c])
    report: dict[str, object] = {name: _rows(r, categories) for name, r in results.items()}
    for name, less in (("windows_add", "first"), ("vectors_add", "words")):
        report[name] = _rows(results["full"] - results[less], categories)
    return report


def gate(data: Path) -> dict[str, object]:
    """Recall kept with half of the turns removed, by surprise, at random and by length."""
    full = _locomo(Locomo(data=data))
    report: dict[str, object] = {"full": full}
    for rule in ("surprise", "random", "length"):
        half = _locomo(Locomo(data=data, keep=0.5, keep_by=rule))
        kept = {name: round(100 * half[name] / full[name], 1) for name in full}
        report[rule] = {**half, "kept": kept}
        print(rule, kept, file=sys.stderr)
    return report


def _locomo(task: Locomo) -> dict[str, float]:
    """Recall over all questions, in per cent."""
    subject = task.own_subject()
    record = run_task(task, subject, subject.card())
    return {
        score.metric: round(100 * score.value, 1)
        for score in record.scores
        if score.detail["category"] == "all"
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["cost", "forget", "import", "fit", "gate", "confidence"])
    parser.add_argument("--folder", type=Path, default=Path("out/recall-bench"))
    parser.add_argument("--records", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--data", type=Path, help="LoCoMo's JSON")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the fitted weights, and the figure of confidence",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = {
        "cost": lambda: cost(args.folder, args.records, args.samples),
        "forget": lambda: forget(args.folder, args.records[-1]),
        "import": lambda: bring_in(args.folder, args.samples),
        "fit": lambda: fit(args.data, args.write),
        "gate": lambda: gate(args.data),
        "confidence": lambda: confidence(args.data, args.write),
    }[args.what]()
    if args.what in ("cost", "forget", "import"):
        note = {"command": f"python benchmarks/recall.py {args.what}", "machine": machine_name()}
        # Wall times mean what they say on an idle machine: this tells whether it was one.
        note["load_average"] = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        report = {**note, "commit": source_commit(), **report}
        target = Path(__file__).parent / "results" / f"recall_{args.what}.json"
        target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
