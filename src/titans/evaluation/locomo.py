"""LoCoMo: does the text memory find the turns that answer questions about a long conversation?

`titans eval locomo --data FILE`. The score of a question is the share of its evidence turns among
the k recalled; categories 1 to 4 count (5 is adversarial: its "evidence" is a lure). No LLM takes
part. The data (CC BY-NC 4.0) is not shipped.
"""

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titans.errors import DataError
from titans.recall.config import RecallConfig
from titans.recall.encoder import Encoder, TokenVectors, load_encoder
from titans.recall.memory import TextMemory
from titans.recall.search.fusion import FusionWeights
from titans.recall.store import SQLiteStore

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
CUTOFFS = (5, 10, 20)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TurnText:
    """One turn: who said what when."""

    id: str
    speaker: str
    text: str
    time: datetime


@dataclass(frozen=True)
class Question:
    """A question and the ids of the turns that answer it."""

    text: str
    category: int
    evidence: frozenset[str]


@dataclass(frozen=True)
class Conversation:
    """A conversation over many sessions, and the questions about it."""

    id: str
    turns: list[TurnText]
    questions: list[Question]


@dataclass(frozen=True)
class Locomo:
    """Options of the benchmark."""

    data: Path
    captions: bool = True
    """Append the caption of a shared picture to its turn, as a person would see it."""
    memory: bool = True
    """Let the neural memory take part in the score."""
    keep: float = 1.0
    """Keep only this share of the turns in the store..."""
    keep_by: str = "surprise"
    """...the most surprising, the longest, or random ones."""
    encoder: str = "minilm"

    def run(self, progress: Progress | None = None) -> "LocomoResult":
        """Feed every conversation to a store of its own and ask all questions."""
        encoder = CachingEncoder(load_encoder(self.encoder))
        found: list[NDArray[np.float64]] = []
        categories: list[int] = []
        conversations = load_conversations(self.data, captions=self.captions)
        for number, conversation in enumerate(conversations):
            kept = self._kept(conversation, encoder)
            with tempfile.TemporaryDirectory() as folder:
                config = RecallConfig(encoder=self.encoder, use_memory=self.memory)
                with fill(Path(folder), conversation, config, encoder, kept) as memory:
                    for question in conversation.questions:
                        ids = [r.id for r in memory.recall(question.text, max(CUTOFFS))]
                        found.append(recall_at(ids, question.evidence))
                        categories.append(question.category)
            if progress is not None:
                progress(number + 1, len(conversations))
        return LocomoResult(np.array(found), np.array(categories))

    def _kept(self, conversation: Conversation, encoder: Encoder) -> set[str] | None:
        if self.keep >= 1:
            return None
        turns = conversation.turns
        if self.keep_by == "surprise":
            config = RecallConfig(encoder=self.encoder)
            with (
                tempfile.TemporaryDirectory() as folder,
                fill(Path(folder), conversation, config, encoder) as memory,
            ):
                worth = [record.surprise for record in memory.records()]
        elif self.keep_by == "length":
            worth = [float(len(turn.text)) for turn in turns]
        elif self.keep_by == "random":
            worth = np.random.default_rng(0).random(len(turns)).tolist()
        else:
            raise DataError(f"keep_by must be surprise, length or random, got {self.keep_by!r}")
        order = np.argsort(-np.array(worth), kind="stable")[: round(self.keep * len(turns))]
        return {turns[i].id for i in order}


@dataclass(frozen=True)
class LocomoResult:
    """Recall at each cutoff, `[questions, cutoffs]` in [0, 1], and the categories."""

    recalls: NDArray[np.float64]
    categories: NDArray[np.int64]

    def rows(self) -> list[dict[str, object]]:
        """The table: all questions, then each category, with bootstrap intervals."""
        groups = [("all (1-4)", np.ones(len(self.categories), bool))]
        groups += [(f"{c} {name}", self.categories == c) for c, name in CATEGORIES.items()]
        table: list[dict[str, object]] = []
        for name, chosen in groups:
            if not chosen.any():
                continue
            values = 100 * self.recalls[chosen]
            low, high = bootstrap(values)
            row: dict[str, object] = {"category": name, "n": int(chosen.sum())}
            for i, k in enumerate(CUTOFFS):
                row[f"recall@{k}"] = round(float(values[:, i].mean()), 1)
                row[f"interval@{k}"] = [round(float(low[i]), 1), round(float(high[i]), 1)]
            table.append(row)
        return table

    def against(self, other: "LocomoResult") -> list[dict[str, object]]:
        """What this result has more than another on the same questions, paired by question."""
        difference = LocomoResult(self.recalls - other.recalls, self.categories)
        return difference.rows()


class CachingEncoder:
    """An encoder that remembers what it encoded: the benchmark asks for the same texts again."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._seen: dict[str, TokenVectors] = {}
        self.name, self.dim, self.max_tokens = encoder.name, encoder.dim, encoder.max_tokens
        self.token_spans, self.word_rank = encoder.token_spans, encoder.word_rank

    def encode(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Encode what is new, one text at a time: padding would change the last bits."""
        for text in texts:
            if text not in self._seen:
                self._seen[text] = self._encoder.encode([text])[0]
        return [self._seen[text] for text in texts]


def fill(
    folder: Path,
    conversation: Conversation,
    config: RecallConfig,
    encoder: Encoder,
    kept: set[str] | None = None,
) -> TextMemory:
    """A new store with the turns of a conversation, or those of them in `kept`."""
    # Durability costs most of the time here, and the store is thrown away.
    store = SQLiteStore(folder / "locomo.db", is_durable=False)
    memory = TextMemory(store, conversation.id, config, encoder=encoder)
    for turn in conversation.turns:
        if kept is None or turn.id in kept:
            memory.remember(turn.text, speaker=turn.speaker, time=turn.time, id=turn.id)
    return memory


def recall_at(ids: Sequence[str], evidence: frozenset[str]) -> NDArray[np.float64]:
    """The share of the evidence among the first k ids, for each cutoff."""
    return np.array([len(evidence.intersection(ids[:k])) / len(evidence) for k in CUTOFFS])


def bootstrap(
    values: NDArray[np.float64], samples: int = 2000
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The 95 % interval of the mean of each column, resampling rows."""
    rng = np.random.default_rng(0)
    means = np.stack(
        [values[rng.integers(0, len(values), len(values))].mean(0) for _ in range(samples)]
    )
    return np.percentile(means, 2.5, axis=0), np.percentile(means, 97.5, axis=0)


def load_conversations(path: Path, *, captions: bool = True) -> list[Conversation]:
    """Read LoCoMo's JSON; malformed evidence is repaired, questions without any are left out."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return [_conversation(entry, captions) for entry in content]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not LoCoMo's JSON ({type(error).__name__}: {error}): expected a list of "
            "conversations as in locomo10.json"
        ) from error


def _conversation(entry: dict, captions: bool) -> Conversation:
    sessions = entry["conversation"]
    numbers = sorted(int(m[1]) for key in sessions if (m := re.fullmatch(r"session_(\d+)", key)))
    turns: list[TurnText] = []
    for number in numbers:
        time = _session_time(sessions[f"session_{number}_date_time"])
        for turn in sessions[f"session_{number}"]:
            caption = turn.get("blip_caption") if captions else None
            text = turn["text"] + (f" [photo: {caption}]" if caption else "")
            turns.append(TurnText(turn["dia_id"], turn["speaker"], text, time))
    known = {turn.id for turn in turns}
    questions = [
        Question(str(q["question"]), int(q["category"]), _evidence(q["evidence"], known))
        for q in entry["qa"]
    ]
    kept = [q for q in questions if q.evidence and q.category in CATEGORIES]
    return Conversation(str(entry["sample_id"]), turns, kept)


def _evidence(fields: Sequence[str], known: set[str]) -> frozenset[str]:
    """Turn ids from fields like "D8:6; D9:17", "D:11:26" or "D30:05"."""
    found = (m for field in fields for m in re.findall(r"D:?(\d+):(\d+)", field))
    return frozenset(known.intersection(f"D{int(s)}:{int(t)}" for s, t in found))


def _session_time(text: str) -> datetime:
    return datetime.strptime(text.replace(" on ", " "), "%I:%M %p %d %B, %Y")


@dataclass(frozen=True)
class Example:
    """A question with the features of every turn: what the fusion is fitted to."""

    features: NDArray[np.float32]
    answers: NDArray[np.bool_]
    recency: NDArray[np.float32]
    category: int

    def recalls(self, weights: FusionWeights) -> NDArray[np.float64]:
        """The share of the answers among the first k, for each cutoff."""
        order = np.argsort(-weights.logits(self.features), kind="stable")
        hits = self.answers[order]
        return np.array([hits[:k].sum() / self.answers.sum() for k in CUTOFFS])


def collect_examples(conversation: Conversation, encoder: Encoder) -> list[Example]:
    """Feed a conversation to a store and take down the features behind every question."""
    with (
        tempfile.TemporaryDirectory() as folder,
        fill(Path(folder), conversation, RecallConfig(), encoder) as memory,
    ):
        seqs = [record.id for record in memory.records()]
        examples: list[Example] = []
        for question in conversation.questions:
            hits = memory.search(question.text)
            answers = np.array([seqs[row] in question.evidence for row in hits.rows])
            examples.append(Example(hits.features, answers, hits.recency, question.category))
    return examples
