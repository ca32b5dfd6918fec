"""A text memory of two people, and what it answers."""

from pathlib import Path
from typing import Any

from titans.recall import TextMemory
from titans.recall.encoder import MiniLMEncoder

SAID: tuple[tuple[str, str, str | None, str, str], ...] = (
    ("ann", "a1", "Ann", "2023-03-01T09:00", "I adopted a small brown dog. His name is Rex."),
    ("ann", "a2", "Ben", "2023-03-01T09:05", "Rex is a good name. I have two cats, Tom and Kit."),
    ("ann", "a3", "Ann", "2023-03-02T18:30", "My favourite dish is mushroom risotto."),
    ("ann", "a4", "Ann", "2023-04-10T12:00", "My sister lives in Lisbon."),
    ("ann", "a5", "Ben", "2023-04-11T08:15", "We meet on Friday at the library at four."),
    ("ann", "a6", "Ann", "2023-05-20T20:00", "My sister lives in Madrid now."),
    ("ann", "a7", "Ann", "2023-05-21T10:00", "My favourite dish is mushroom risotto!"),
    (
        "ann",
        "a8",
        "Ben",
        "2023-06-03T11:11",
        "The concert was long. First came a choir from Norway, which sang for an hour. Then my "
        "sister Clara played the violin; she has practised that piece since January. At the end "
        "they gave everybody a candle, and we walked home through the park in the dark.",
    ),
    ("work", "w1", None, "2023-02-01T09:00", "The server's address changed to port 8080."),
    ("work", "w2", "Dana", "2023-02-02T09:00", "The meeting is on Tuesday."),
    ("work", "w3", "Dana", "2023-02-20T09:00", "The meeting is on Thursday."),
)
"""Scope, id, speaker, time, text."""
ASKED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ann", "What is the name of Ann's dog?", {}),
    ("ann", "Where does Ann's sister live?", {}),
    ("ann", "What does Ann like to eat?", {}),
    ("ann", "Who played at the concert?", {}),
    ("ann", "Which pets are there?", {"k": 4, "speaker": "Ben"}),
    ("ann", "Where does Ann's sister live?", {"before": "2023-05-01"}),
    ("ann", "When do we meet?", {"after": "2023-04-01", "threshold": 0.05}),
    ("work", "When is the meeting?", {}),
    ("work", "What is the name of Ann's dog?", {}),
)
"""Scope, question, options of `recall`."""


def write_store(path: Path, encoder: MiniLMEncoder) -> None:
    """Remember what was said, and forget one text."""
    for scope in ("ann", "work"):
        with TextMemory(path, scope, encoder=encoder) as memory:
            for where, record_id, speaker, time, text in SAID:
                if where == scope:
                    memory.remember(text, speaker=speaker, time=time, id=record_id)
    with TextMemory(path, "work", encoder=encoder) as memory:
        memory.remember("Lunch is at noon.", id="w4", time="2023-03-01T00:00", metadata={"n": 1})
        memory.forget("w4")


def ask_store(path: Path, encoder: MiniLMEncoder) -> dict[str, Any]:
    """Answers, records and statistics of both scopes."""
    answers, records, stats = [], {}, {}
    for scope in ("ann", "work"):
        with TextMemory(path, scope, encoder=encoder) as memory:
            for where, question, options in ASKED:
                if where == scope:
                    found = memory.recall(question, **options)
                    answers.append({"question": question, "found": [r.as_dict() for r in found]})
            records[scope] = [record.as_dict() for record in memory.records()]
            kept = ("records", "mean_surprise", "gate", "neural_state_bytes")
            stats[scope] = {name: memory.stats()[name] for name in kept}
    return {"answers": answers, "records": records, "stats": stats}
