"""Made-up chats: does the text memory find what was said, what holds now, and what was never said?

`titans eval chats`. Synthetic and seeded (tasks/recall_sets.py): two people, a user with an
assistant, updates and contradictions, four languages that MiniLM does not know. BM25 and cosines
of the encoder's vectors answer the same questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from titans.evaluation.baselines import Bm25, Dense, load_baseline, with_speaker
from titans.evaluation.locomo import (
    Conversation,
    Filled,
    TextMemorySubject,
    TurnText,
    filled,
)
from titans.recall.config import RecallConfig
from titans.recall.encoder import Encoder, load_encoder
from titans.recall.memory import TextMemory
from titans.settings import Count
from titans.tasks.recall_sets import (
    LANGUAGES,
    Asked,
    Chat,
    assistant,
    language,
    people,
    updates,
)
from titans.tasks.score import Score, Value, accuracy_score
from titans.tasks.task import Cell, Outcome, Task

Kind = Literal["people", "assistant", "updates", "languages"]
METHODS = ("text memory", "bm25", "dense")
DEPTH = 5
WORDINGS = 3


@dataclass(frozen=True, kw_only=True)
class Chats(Task):
    """Questions about made-up chats of four kinds, with two baselines."""

    kinds: tuple[Kind, ...] = ("people", "assistant", "updates", "languages")
    """Kinds of chats."""
    chats: Count = 12
    """Chats of each kind; the languages have one each."""
    encoder: str = "minilm"
    """Encoder of the texts, as `titans remember` takes it."""

    name = "chats"
    example = "--kinds people,assistant --chats 4"
    unit = "question"
    reads_with_model = False

    def own_subject(self) -> TextMemorySubject:
        """The text memory with its encoder."""
        return TextMemorySubject(load_encoder(self.encoder))

    def cells(self) -> list[Cell]:
        """A cell for each kind; the languages have one each."""
        return [
            Cell(samples=len(questions), batch_size=32, detail={"kind": kind})
            for kind, questions in self._questions.items()
        ]

    def measure(
        self, subject: TextMemorySubject, cell: Cell, seed: int, samples: Sequence[int]
    ) -> list[Outcome]:
        """Of each method the place of the first right answer (0: not among the first five) and the
        best score."""
        outcomes: list[Outcome] = []
        for sample in samples:
            chat, asked = self._questions[str(cell.detail["kind"])][sample]
            outcome: Outcome = {"answers": len(asked.answers), "then": float(asked.at is not None)}
            for method, (place, score) in self._ask(chat, asked, subject.encoder).items():
                outcome |= {f"{method}: place": float(place), f"{method}: score": score}
            if cell.detail["kind"] in LANGUAGES:
                memory = self._memory(chat, subject.encoder)
                record = memory.get(min(asked.answers))
                assert record is not None
                is_linked = record.duplicate_of is not None or record.successor_of is not None
                outcome["text memory: false link"] = float(is_linked)
            outcomes.append(outcome)
        if samples[-1] == cell.samples - 1:
            self._filled.close()
        return outcomes

    def scores(self, cell: Cell, outcomes: Sequence[Outcome]) -> list[Score]:
        """The right record first and among five, of what was said; what was never said by AUC."""
        found: list[Score] = []
        kind = cell.detail["kind"]
        for method in METHODS:
            detail: dict[str, Value] = {"kind": kind, "method": method}
            for then, names in ((0.0, ("first", f"recall@{DEPTH}")), (1.0, ("first as then",))):
                places = [
                    o[f"{method}: place"] for o in outcomes if o["answers"] and o["then"] == then
                ]
                for name in names if places else ():
                    limit = DEPTH if "@" in name else 1
                    hits = [float(0 < place <= limit) for place in places]
                    found.append(accuracy_score(hits, metric=name, detail=detail))
            said, unsaid = (
                np.array([o[f"{method}: score"] for o in outcomes if bool(o["answers"]) is known])
                for known in (True, False)
            )
            if len(unsaid):
                found.append(auc_score(said, unsaid, detail))
        name = "text memory: false link"
        if name in outcomes[0]:
            links = [outcome[name] for outcome in outcomes]
            detail = {"kind": kind, "method": METHODS[0]}
            found.append(accuracy_score(links, metric="false links", detail=detail))
        return found

    def _ask(self, chat: Chat, asked: Asked, encoder: Encoder) -> dict[str, tuple[int, float]]:
        memory = self._memory(chat, encoder)
        recalled = memory.recall(asked.text, DEPTH, at=asked.at)
        sets = [{record.id, *record.duplicates} for record in recalled]
        best = recalled[0].score if recalled else 0.0
        answers = {METHODS[0]: (_place(sets, asked), best)}
        for method in METHODS[1:]:
            scores = self._baselines(chat, encoder)[method].scores(asked.text)
            if asked.at is not None:
                later = [turn.time.date().isoformat() > asked.at for turn in chat.said]
                scores = np.where(later, -np.inf, scores)
            order = np.argsort(-scores, kind="stable")[:DEPTH]
            sets = [{chat.said[i].id} for i in order]
            answers[method] = (_place(sets, asked), float(scores[order[0]]))
        return answers

    def _memory(self, chat: Chat, encoder: Encoder) -> TextMemory:
        turns = [TurnText(t.id, t.speaker, t.text, t.time) for t in chat.said]
        conversation = self._conversations.setdefault(chat.name, Conversation(chat.name, turns, []))
        config = RecallConfig(encoder=self.encoder)
        return self._filled.of(conversation, lambda: filled(conversation, config, encoder))

    def _baselines(self, chat: Chat, encoder: Encoder) -> dict[str, Bm25 | Dense]:
        if chat.name not in self._searches:
            texts = [with_speaker(turn.speaker, turn.text) for turn in chat.said]
            self._searches[chat.name] = {
                "bm25": load_baseline("bm25", texts, encoder),
                "dense": load_baseline("dense", texts, encoder),
            }
        return self._searches[chat.name]

    @cached_property
    def _questions(self) -> dict[str, list[tuple[Chat, Asked]]]:
        """The questions of each cell, chat by chat."""
        seeds = range(100, 100 + self.chats)  # the fit of the weights has seen the first ones
        made: dict[str, list[Chat]] = {}
        for kind in self.kinds:
            if kind == "people":
                made[kind] = [people(seed) for seed in seeds]
            elif kind == "assistant":
                made[kind] = [assistant(seed) for seed in seeds]
            elif kind == "updates":
                made[kind] = [updates(seed, n % WORDINGS) for n, seed in enumerate(seeds)]
            else:
                made |= {name: [language(name)] for name in LANGUAGES}
        return {
            kind: [(chat, asked) for chat in chats for asked in chat.asked]
            for kind, chats in made.items()
        }

    @cached_property
    def _filled(self) -> Filled:
        return Filled()

    @cached_property
    def _conversations(self) -> dict[str, Conversation]:
        return {}

    @cached_property
    def _searches(self) -> dict[str, dict[str, Bm25 | Dense]]:
        return {}


def _place(found: Sequence[set[str]], asked: Asked) -> int:
    """The place of the first that answers, from 1; 0 if none does."""
    places = [place for place, ids in enumerate(found, 1) if ids & asked.answers]
    return places[0] if places else 0


def auc_score(
    said: NDArray[np.float64], unsaid: NDArray[np.float64], detail: dict[str, Value]
) -> Score:
    """How often a question with an answer scores higher than one without; bootstrap interval."""
    wins = (said[:, None] > unsaid) + 0.5 * (said[:, None] == unsaid)
    rng = np.random.default_rng(0)
    drawn = [
        wins[rng.integers(0, len(said), len(said))][:, rng.integers(0, len(unsaid), len(unsaid))]
        for _ in range(1000)
    ]
    low, high = np.percentile([d.mean() for d in drawn], [2.5, 97.5])
    value = float(wins.mean())
    return Score(
        metric="AUC of what was never said",
        value=value,
        low=float(low),
        high=float(high),
        samples=len(said) + len(unsaid),
        detail=detail,
    )
