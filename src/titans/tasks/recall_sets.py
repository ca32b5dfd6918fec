"""Made-up chats for the text memory, with questions: synthetic, seeded, drawn from templates.

Four sets: people (two who talk), assistant (a user and long answers), updates (what holds changes,
in chains of 2 to 6 and three wordings), languages (German, Chinese, Arabic, Russian). A part of the
questions of the first two asks for what was never said. They show what a change does to kinds of
chat that public data lacks; how well real chats are served they do not show.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files

BEGIN = datetime(2022, 1, 3, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Said:
    """A turn of a made-up chat."""

    id: str
    speaker: str
    text: str
    time: datetime


@dataclass(frozen=True)
class Asked:
    """A question, and the ids of the turns that answer it: none if that was never said."""

    text: str
    answers: frozenset[str]
    at: str | None = None
    """As known then; None is now."""


@dataclass(frozen=True)
class Chat:
    """A made-up chat and the questions about it."""

    name: str
    said: list[Said]
    asked: list[Asked]


@dataclass(frozen=True)
class Slot:
    """Something that has one value at a time, and how people tell and ask it."""

    statements: list[str]
    changes: list[str]
    questions: list[str]
    values: list[str]


def _sections() -> dict[str, list[str]]:
    """The lines of recall_sets.txt by section."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    text = files("titans.tasks").joinpath("recall_sets.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            lines.append(line)
    return found


def _slot(line: str) -> Slot:
    *texts, values = line.split("|")
    cells = [[part.strip() for part in cell.split(";")] for cell in texts]
    changes = cells.pop(1) if len(cells) == 3 else []
    return Slot(cells[0], changes, cells[1], [value.strip() for value in values.split(",")])


_LINES = _sections()
SLOTS = [_slot(line) for line in _LINES["slots"]]
EVENTS = [_slot(line) for line in _LINES["events"]]
CHATTER, TOPICS, ADVICE, ORDERS = (
    _LINES[name] for name in ("chatter", "topics", "advice", "orders")
)


def question(template: str, name: str | None) -> str:
    """A question about oneself (None) or about somebody by name."""
    forms = {"do": "does", "who": name, "whose": f"{name}'s", "am": "is"}
    if name is None:
        forms = {"do": "do", "who": "I", "whose": "my", "am": "am"}
    return template.format(**forms)


def people(seed: int, turns: int = 120) -> Chat:
    """Two people talk over months; each tells some of the things that may be asked."""
    rng = random.Random(f"people {seed}")
    names = rng.sample(["Ann", "Bob", "Chidi", "Daria", "Emre", "Freya", "Goran", "Hana"], 2)
    return _chat(f"people-{seed}", rng, names, turns, lambda text: text)


def assistant(seed: int, turns: int = 80) -> Chat:
    """A user tells things in passing while a program answers at length."""
    rng = random.Random(f"assistant {seed}")

    def dressed(text: str) -> str:
        topic, order = rng.choice(TOPICS), rng.choice(ORDERS)
        return rng.choice([text, f"{text} {order.format(topic)}", f"By the way: {text}"])

    return _chat(f"assistant-{seed}", rng, ["user", "assistant"], turns, dressed)


def _chat(
    name: str, rng: random.Random, speakers: list[str], turns: int, dress: Callable[[str], str]
) -> Chat:
    with_program = "assistant" in speakers
    said: list[Said] = []
    when = BEGIN
    slots = rng.sample([*SLOTS, *EVENTS], 24)
    told, untold = slots[:16], slots[16:]
    places = sorted(rng.sample(range(turns), len(told)))
    asked: list[Asked] = []
    for number in range(turns):
        when += timedelta(minutes=2) if number % 10 else timedelta(days=rng.randint(1, 9))
        speaker = speakers[number % 2]
        if number in places:
            slot = told[places.index(number)]
            speaker = "user" if with_program else speaker
            text = dress(rng.choice(slot.statements).format(rng.choice(slot.values)))
            who = None if with_program else speaker
            asked.append(Asked(question(rng.choice(slot.questions), who), frozenset({f"{number}"})))
        elif with_program and speaker == "assistant":
            text = _answer(rng)
        elif with_program:
            text = rng.choice(ORDERS).format(rng.choice(TOPICS))
        else:
            text = rng.choice(CHATTER)
        said.append(Said(str(number), speaker, text, when))
    for slot in untold:
        who = None if with_program else rng.choice(speakers)
        asked.append(Asked(question(rng.choice(slot.questions), who), frozenset()))
    return Chat(name, said, asked)


def _answer(rng: random.Random) -> str:
    """A long answer: an opening, a numbered list, an offer."""
    topic = rng.choice(TOPICS)
    points = [f"{i}. {advice}" for i, advice in enumerate(rng.sample(ADVICE, 5), 1)]
    lines = [f"Certainly! Here is what I would say about {topic}:", *points]
    return "\n".join([*lines, "Let me know if you would like me to go into more detail."])


def updates(seed: int, wording: int) -> Chat:
    """Chains of 2 to 6 values of a slot, a year apart, among chatter; the newest is the answer.

    Args:
        wording: 0 the same sentence with another value, 1 and 2 with words of change.
    """
    rng = random.Random(f"updates {seed} {wording}")
    said: list[Said] = []
    asked: list[Asked] = []
    chains = [(slot, rng.sample(slot.values, rng.randint(2, 6))) for slot in rng.sample(SLOTS, 5)]
    for year in range(6):
        for slot, values in chains:
            if year >= len(values):
                continue
            template = slot.statements[0]
            if year and wording:
                template = slot.changes[wording - 1]
            when = BEGIN.replace(year=2015 + year) + timedelta(days=rng.randint(0, 300))
            said.append(Said("", "Ann", template.format(values[year]), when))
        for text in rng.sample(CHATTER, 5):
            when = BEGIN.replace(year=2015 + year) + timedelta(days=rng.randint(0, 300))
            said.append(Said("", rng.choice(["Ann", "Bob"]), text, when))
    said.sort(key=lambda turn: turn.time)
    said = [Said(str(i), turn.speaker, turn.text, turn.time) for i, turn in enumerate(said)]
    for slot, values in chains:
        steps = [turn for turn in said if _tells(slot, values, turn.text)]
        text = question(rng.choice(slot.questions), "Ann")
        asked.append(Asked(text, frozenset({steps[-1].id})))
        for turn in steps[:-1]:
            then = (turn.time + timedelta(days=20)).date().isoformat()
            known = [step for step in steps if step.time <= turn.time + timedelta(days=20)]
            asked.append(Asked(text, frozenset({known[-1].id}), at=then))
    return Chat(f"updates-{wording}-{seed}", said, asked)


LANGUAGES = ("German", "Chinese", "Arabic", "Russian")


def language(name: str) -> Chat:
    """Statements in a language among English chatter, and a plain question about each: it shares a
    word or a pair of characters with the statement."""
    rng = random.Random(f"language {name}")
    pairs = [line.split("|") for line in _LINES[name]]
    texts = [text for text, _ in pairs] + CHATTER[:20]
    rng.shuffle(texts)
    said = [
        Said(str(number), "Ann", text, BEGIN + timedelta(hours=number))
        for number, text in enumerate(texts)
    ]
    ids = {turn.text: turn.id for turn in said}
    asked = [Asked(question, frozenset({ids[text]})) for text, question in pairs]
    return Chat(name, said, asked)


def _tells(slot: Slot, values: list[str], text: str) -> bool:
    templates = [*slot.statements, *slot.changes]
    return any(text == template.format(value) for template in templates for value in values)
