"""How sure a recall is that the question is answered at all: fitted and measured.

The command is `python benchmarks/recall.py confidence --data locomo.json`; --write ships the
weights and draws docs/figures/confidence.png.
"""

import random
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from titans.evaluation.chats import auc_score
from titans.evaluation.locomo import (
    CachingEncoder,
    Conversation,
    TurnText,
    filled,
    load_conversations,
)
from titans.files import write_figure
from titans.recall import RecallConfig, load_encoder
from titans.recall.search.confidence import confidence_json, fit_confidence
from titans.tasks.recall_sets import assistant, people

SEEDS, TURNS = range(30, 34), (40, 120, 300)
"""Made-up chats of each kind in the fit of the confidence, each in these lengths: others than those
of the fit of the score."""
STATED = (1, 2, 4)
"""LoCoMo's categories whose answers were said (3 also needs what everybody knows)."""
ANSWERED, UNANSWERED = 60, 40
"""Questions of each conversation of LoCoMo, and of the others with the names replaced."""
Judged = tuple[np.ndarray, np.ndarray]
"""Of some questions their signals, `[questions, signals]`, or the confidence, and whether they are
answered."""


def judged(conversation: Conversation, encoder: CachingEncoder, asked: dict[str, bool]) -> Judged:
    """The signals of questions to a conversation, each with whether it is answered there."""
    with filled(conversation, RecallConfig(), encoder) as memory:
        known = [(memory.search(text).signals, answered) for text, answered in asked.items()]
    print(f"asked {conversation.id}", file=sys.stderr)
    told = [(x, answered) for x, answered in known if x is not None]
    return np.array([x for x, _ in told]), np.array([answered for _, answered in told])


def kinds_of_chat(data: Path) -> dict[str, Judged]:
    """Questions with and without an answer, by kind of chat."""
    encoder = CachingEncoder(load_encoder())
    found: dict[str, list[Judged]] = {}
    for kind, make in (("two people", people), ("assistant", assistant)):
        for chat in (make(seed, n) for n in TURNS for seed in SEEDS):
            turns = [TurnText(t.id, t.speaker, t.text, t.time) for t in chat.said]
            asked = {a.text: bool(a.answers) for a in chat.asked}
            made = judged(Conversation(chat.name, turns, []), encoder, asked)
            found.setdefault(kind, []).append(made)
    rng = random.Random(0)
    conversations = load_conversations(data)
    for one in conversations:
        speakers = sorted({turn.speaker for turn in one.turns})
        own = [q.text for q in one.questions if q.category in STATED]
        others: list[str] = []
        for other in (c for c in conversations if c is not one):
            named = sorted({turn.speaker for turn in other.turns})
            for text in (q.text for q in other.questions if q.category in STATED):
                if any(name in text for name in named):
                    for name, here in zip(named, speakers, strict=True):
                        text = text.replace(name, here)
                    others.append(text)
        asked = dict.fromkeys(rng.sample(others, UNANSWERED), False)
        asked |= dict.fromkeys(rng.sample(own, ANSWERED), True)
        found.setdefault("LoCoMo", []).append(judged(one, encoder, asked))
    return {kind: joined(parts) for kind, parts in found.items()}


def joined(parts: Iterable[Judged]) -> Judged:
    """All questions of some parts."""
    first, second = zip(*parts, strict=True)
    return np.concatenate(first), np.concatenate(second)


def reliability(said: np.ndarray, answered: np.ndarray, bins: int) -> list[dict[str, float]]:
    """Of equal parts of [0, 1] how often it was said to be answered, and how often it was."""
    part = np.minimum((said * bins).astype(int), bins - 1)
    return [
        {
            "said": float(said[part == b].mean()),
            "found": float(answered[part == b].mean()),
            "n": int((part == b).sum()),
        }
        for b in np.unique(part)
    ]


def calibration_error(said: np.ndarray, answered: np.ndarray) -> float:
    """The mean distance of said and found over ten bins."""
    rows = reliability(said, answered, 10)
    return sum(row["n"] * abs(row["said"] - row["found"]) for row in rows) / len(said)


def confidence(data: Path, write: bool) -> dict[str, object]:
    """Each kind of chat judged by weights fitted on the others; the shipped weights from all."""
    kinds = kinds_of_chat(data)
    report: dict[str, object] = {}
    curves: dict[str, list[dict[str, float]]] = {}
    every: list[Judged] = []
    for kind, (known, answered) in kinds.items():
        rest = [kinds[other] for other in kinds if other != kind]
        fitted = fit_confidence(*joined(rest))
        said = np.array([fitted.of(x) for x in known])
        auc = auc_score(said[answered], said[~answered], {})
        rng = np.random.default_rng(0)
        drawn = [rng.integers(0, len(said), len(said)) for _ in range(1000)]
        errors = [calibration_error(said[d], answered[d]) for d in drawn]
        report[kind] = {
            "questions": len(said),
            "answered": int(answered.sum()),
            "auc": [round(value, 3) for value in (auc.value, auc.low, auc.high)],
            "calibration_error": round(calibration_error(said, answered), 3),
            "calibration_error_interval": np.percentile(errors, [2.5, 97.5]).round(3).tolist(),
            "kept_from_half": round(float((said[answered] >= 0.5).mean()), 3),
            "dropped_below_half": round(float((said[~answered] < 0.5).mean()), 3),
        }
        curves[kind] = reliability(said, answered, 5)
        every.append((said, answered))
    curves["all"] = reliability(*joined(every), 5)
    fitted = fit_confidence(*joined(kinds.values()))
    if write:
        note = f"fitted to {sum(len(x) for x, _ in every)} questions: docs/recall.md"
        root = Path(__file__).parents[1]
        target = root / "src/titans/recall/search/confidence.json"
        target.write_text(confidence_json(fitted, note), encoding="utf-8")
        draw_reliability(curves, root / "docs/figures/confidence.png")
    return {**report, "reliability": curves}


def draw_reliability(curves: dict[str, list[dict[str, float]]], path: Path) -> None:
    """What was said against what was found, a line for each kind of chat."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.6, 5.0), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.6", linestyle=":", label="as it should be")
    for (kind, rows), marker in zip(curves.items(), "os^D", strict=True):
        said, found, count = (np.array([row[name] for row in rows]) for name in rows[0])
        if kind == "all":
            error = 1.96 * np.sqrt(found * (1 - found) / count)
            style = {"color": "black", "linewidth": 2, "capsize": 3}
            axes.errorbar(said, found, error, marker=marker, label="all, with 95 %", **style)
        else:
            axes.plot(said, found, marker=marker, alpha=0.7, label=f"{kind} ({count.sum():.0f})")
    axes.set(xlabel="confidence", ylabel="share of questions that are answered")
    axes.set(
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
        title="Each kind of chat, by weights fitted on the others",
    )
    axes.legend(loc="upper left", frameon=False)
    write_figure(path, figure)
    plt.close(figure)
