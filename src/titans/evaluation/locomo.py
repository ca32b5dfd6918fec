"""LoCoMo: does the text memory find the turns that answer questions about a long conversation?

`titans eval locomo --data FILE`. The score of a question is the share of its evidence turns among
the k recalled; categories 1 to 4 count (5 is adversarial: its "evidence" is a lure). There is no
LLM. The data (CC BY-NC 4.0) is not shipped.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from titans.errors import ConfigError, DataError
from titans.evaluation.baselines import Bm25, Dense, load_baseline, with_speaker
from titans.evaluation.record import ModelCard
from titans.files import read_text
from titans.recall.config import RecallConfig
from titans.recall.encoder import Encoder, TokenVectors, load_encoder
from titans.recall.memory import TextMemory
from titans.recall.search.fusion import FusionWeights, load_fusion
from titans.recall.store import SQLiteStore
from titans.settings import Share
from titans.tasks.score import Score
from titans.tasks.task import Cell, Outcome, Task

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
CUTOFFS = (5, 10, 20)


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


@dataclass(frozen=True, kw_only=True)
class Locomo(Task):
    """Recall of the turns that answer a question, over all questions and by category."""

    data: Path
    """JSON file of LoCoMo, such as locomo10.json."""
    encoder: str = "minilm"
    """Encoder of the texts, as `titans remember` takes it."""
    method: Literal["memory", "bm25", "dense"] = "memory"
    """What searches: the text memory, BM25, or cosines of the encoder's vectors."""
    captions: bool = True
    """Append the caption of a shared picture to its turn, as a person would see it."""
    keep: Share = 1.0
    """Keep only this share of the turns in the store."""
    keep_by: Literal["surprise", "length", "random"] = "surprise"
    """Which turns are kept: the most surprising, the longest, or random ones."""

    name = "locomo"
    example = "--data locomo10.json"
    unit = "question"
    reads_with_model = False

    def check_data(self) -> None:
        """Read the conversations."""
        super().check_data()
        if not self._questions:
            raise DataError(f"{self.data} has no question of categories 1 to 4")
        if self.method != "memory" and self.keep < 1:
            raise ConfigError(f"--keep is for the text memory, not for --method {self.method}")

    def own_subject(self) -> "TextMemorySubject":
        """The text memory with its encoder."""
        return TextMemorySubject(load_encoder(self.encoder))

    def cells(self) -> list[Cell]:
        """All questions, conversation by conversation."""
        return [Cell(samples=len(self._questions), batch_size=64)]

    def measure(
        self, subject: "TextMemorySubject", cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """The share of a question's evidence among the first k turns recalled."""
        outcomes = []
        for sample in samples:
            conversation, question = self._questions[sample]
            ids = self._ask(conversation, question.text, subject)
            found = recall_at(ids, question.evidence)
            shares = {f"recall@{k}": float(v) for k, v in zip(CUTOFFS, found, strict=True)}
            outcomes.append({"category": float(question.category), **shares})
        if samples[-1] == cell.samples - 1:
            self._filled.close()
        return outcomes

    def _ask(
        self, conversation: Conversation, text: str, subject: "TextMemorySubject"
    ) -> list[str]:
        """The ids of the turns that are found for a question, best first."""
        if self.method == "memory":
            memory = self._filled.of(conversation, lambda: self._fill(conversation, subject))
            return [record.id for record in memory.recall(text, max(CUTOFFS))]
        if conversation.id not in self._baselines:
            texts = [with_speaker(turn.speaker, turn.text) for turn in conversation.turns]
            found = load_baseline(self.method, texts, subject.encoder)
            self._baselines[conversation.id] = found
        scores = self._baselines[conversation.id].scores(text)
        order = np.argsort(-scores, kind="stable")[: max(CUTOFFS)]
        return [conversation.turns[i].id for i in order]

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """Recall over all questions, then by category."""
        recalls = [[outcome[f"recall@{k}"] for k in CUTOFFS] for outcome in outcomes]
        return recall_scores(np.array(recalls), np.array([o["category"] for o in outcomes]))

    @cached_property
    def _conversations(self) -> list[Conversation]:
        return load_conversations(self.data, captions=self.captions)

    @cached_property
    def _questions(self) -> list[tuple[Conversation, Question]]:
        return [(c, question) for c in self._conversations for question in c.questions]

    @cached_property
    def _filled(self) -> "Filled":
        return Filled()

    @cached_property
    def _baselines(self) -> dict[str, Bm25 | Dense]:
        return {}

    def _fill(self, conversation: Conversation, subject: "TextMemorySubject") -> "Store":
        config = RecallConfig(encoder=self.encoder)
        kept = None if self.keep >= 1 else self._kept(conversation, subject.encoder)
        return filled(conversation, config, subject.encoder, kept)

    def _kept(self, conversation: Conversation, encoder: Encoder) -> set[str]:
        turns = conversation.turns
        if self.keep_by == "surprise":
            with filled(conversation, RecallConfig(encoder=self.encoder), encoder) as memory:
                worth = [record.surprise for record in memory.records()]
        elif self.keep_by == "length":
            worth = [float(len(turn.text)) for turn in turns]
        else:
            worth = np.random.default_rng(0).random(len(turns)).tolist()
        order = np.argsort(-np.array(worth), kind="stable")[: round(self.keep * len(turns))]
        return {turns[i].id for i in order}


class TextMemorySubject:
    """The text memory as a benchmark's subject: what it is, and an encoder for all its stores."""

    name = "text-memory"

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = CachingEncoder(encoder)

    def card(self) -> ModelCard:
        """Which encoder, and which weights mix the features."""
        state = json.dumps([self.encoder.name, asdict(load_fusion())])
        return ModelCard(
            name=self.name,
            variant="recall",
            num_parameters=0,
            vocab_size=0,
            digest=hashlib.sha256(state.encode()).hexdigest()[:12],
            settings={"encoder": self.encoder.name},
        )

    def check_length(self, length: int) -> None:
        """Conversations of any length are read."""


class Filled:
    """The store of one conversation at a time."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._open = ExitStack()
        self._memory: TextMemory | None = None

    def of(self, conversation: Conversation, fill: Callable[[], "Store"]) -> TextMemory:
        """The store of this conversation; that of another is closed."""
        if self._memory is None or self._conversation is not conversation:
            self.close()
            self._memory = self._open.enter_context(fill())
            self._conversation = conversation
        return self._memory

    def close(self) -> None:
        """Close the store and remove it."""
        self._memory = None
        self._open.close()


def recall_scores(recalls: NDArray[np.float64], categories: NDArray[Any]) -> list[Score]:
    """Means with bootstrap intervals of `[questions, cutoffs]`: of all, then by category.

    With differences of two runs on the same questions these are paired.
    """
    groups = {"all": np.ones(len(categories), bool)}
    groups |= {name: categories == number for number, name in CATEGORIES.items()}
    scores = []
    for name, chosen in groups.items():
        if chosen.any():
            low, high = bootstrap(recalls[chosen])
            scores += [
                Score(
                    metric=f"recall@{k}",
                    value=float(recalls[chosen][:, i].mean()),
                    low=float(low[i]),
                    high=float(high[i]),
                    samples=int(chosen.sum()),
                    detail={"category": name},
                )
                for i, k in enumerate(CUTOFFS)
            ]
    return scores


class CachingEncoder:
    """An encoder that remembers what it encoded: the benchmark asks for the same texts again."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._seen: dict[str, TokenVectors] = {}
        self.name, self.dim, self.max_tokens = encoder.name, encoder.dim, encoder.max_tokens
        self.token_spans, self.word_rank = encoder.token_spans, encoder.word_rank
        self.covers = encoder.covers

    def encode(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Encode what is new, one text at a time: padding would change the last bits."""
        for text in texts:
            if text not in self._seen:
                self._seen[text] = self._encoder.encode([text])[0]
        return [self._seen[text] for text in texts]


Store = AbstractContextManager[TextMemory]


@contextmanager
def filled(
    conversation: Conversation,
    config: RecallConfig,
    encoder: Encoder,
    kept: set[str] | None = None,
) -> Iterator[TextMemory]:
    """A store, for a while, with the turns of a conversation, or those of them in `kept`."""
    with tempfile.TemporaryDirectory() as folder:
        # Durability costs most of the time here, and the store is thrown away.
        store = SQLiteStore(Path(folder) / "locomo.db", is_durable=False)
        with TextMemory(store, conversation.id, config, encoder=encoder) as memory:
            for turn in conversation.turns:
                if kept is None or turn.id in kept:
                    memory.remember(turn.text, speaker=turn.speaker, time=turn.time, id=turn.id)
            yield memory


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
        content = json.loads(read_text(path))
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
    with filled(conversation, RecallConfig(), encoder) as memory:
        seqs = [record.id for record in memory.records()]
        examples: list[Example] = []
        for question in conversation.questions:
            hits = memory.search(question.text)
            answers = np.array([seqs[row] in question.evidence for row in hits.rows])
            examples.append(Example(hits.features, answers, hits.recency, question.category))
    return examples
