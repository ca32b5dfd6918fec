"""How a new statement stands to an old one: the same again, an update of it, or neither.

Rules on words and vectors, no model of language: made for precision. Same: near in the encoder's
space, and every content word of either finds its like in the other. Update: about the same thing by
the same speaker, and the new one says that something changed, or gives another value to something
that has one value at a time.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from titans.recall.text.acts import acts_of
from titans.recall.text.facts import Topic, topic_stems, topics
from titans.recall.text.words import STOP_WORDS, stem, tells_when, words

Link = Literal["duplicate", "successor"]

SUCCESSOR_COSINE = 0.5
"""Below, two statements are not about the same thing."""
FRAME_COSINE = 0.75
"""Two statements in one frame with different values are at least this near."""

MIN_TOLD = 0.5
"""A text that tells less than this share of its words states no fact that could change."""
SHORT = 8
"""Content words of a text that tells one thing."""
SAME_DAY = 20 * 3600 * 10**6
"""Microseconds after which "yesterday" is another day."""

_CHANGE = re.compile(
    r"\b(now|no longer|not .{0,20}any ?more|any ?more|instead|actually|changed?|switched|moved"
    r"|updated?|correction|turns out|these days|used to|quit|stopped|new|renamed|rescheduled"
    r"|postponed|replaced|became|since then|got promoted|sold|ended up)\b",
    re.IGNORECASE,
)
_ONE_VALUE = re.compile(
    r"\b(is|are|'s|\u2019s|lives?|living|works?|working|stud(?:y|ies|ying)|located|costs?|weighs?|drives?"
    r"|called|named|scheduled|favou?rite|birthday|starts?|leaves?|arrives?|opens?|closes?|earns?)\b",
    re.IGNORECASE,
)
_AMOUNT = re.compile(
    r"(?:(?:half|quarter|past|to|[\d.,:]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven"
    r"|twelve|fifteen|twenty|thirty|forty|fifty|sixty|hundred|first|second|third|fourth|fifth|sixth"
    r"|seventh|eighth|(?:mon|tues|wednes|thurs|fri|satur|sun)days?|am|pm)\s?)+"
)
_PAST = re.compile(
    r"\b(?:\w+ed|was|were|had|did|went|got|ate|saw|bought|made|took|gave|met|found|ran|won|lost"
    r"|spent|paid|read|wrote|drank|slept|came|said|told)\b",
    re.IGNORECASE,
)
_SET_TO = re.compile(r"\b(?:set|changed?|switch(?:ed)?|moved?)\b.*\bto\b", re.IGNORECASE)
_SUBJECT = re.compile(
    r"\b(?:my|our|his|her|their|the|\w+['\u2019]s)\s+(?:new |old |favou?rite )?(\w+)", re.IGNORECASE
)
_NEGATION = {
    "not",
    "no",
    "never",
    "don",
    "doesn",
    "didn",
    "isn",
    "wasn",
    "won",
    "can",
    "cannot",
    "t",
}


@dataclass(frozen=True)
class Statement:
    """What the rules look at."""

    text: str
    speaker: str | None
    tokens: NDArray[np.int8]
    """Compressed token vectors (passages.py)."""
    time: int = 0
    """Microseconds since 1970."""
    is_outside: bool = False
    """Whether the encoder does not know its language: only the same words say the same."""

    # A text is compared with many others: what is read from it is read once.

    @cached_property
    def words(self) -> list[str]:
        """Its words."""
        return words(self.text)

    @cached_property
    def content(self) -> set[str]:
        """The stems of its words that mean something."""
        return {stem(word) for word in self.words if word not in STOP_WORDS}

    @cached_property
    def topics(self) -> set[Topic]:
        """What it gives a value to."""
        return topics(self.text)

    @cached_property
    def tells(self) -> float:
        """The share of it that can be a fact."""
        return acts_of(self.text).tells

    @cached_property
    def says_change(self) -> bool:
        """Whether it says that something changed."""
        return bool(_CHANGE.search(self.text))

    @cached_property
    def subject(self) -> str:
        """The noun behind a possessive ("my sister", "Ann's dog"); "" is the speaker as such."""
        match = _SUBJECT.search(self.text)
        return stem(match.group(1).lower()) if match else ""


def judge_link(
    new: Statement, old: Statement, cosine: float, duplicate_threshold: float
) -> Link | None:
    """What the new statement is to the old one."""
    if not new.content or not old.content:
        return "duplicate" if new.text.strip() == old.text.strip() else None
    # "I went running yesterday", said on two days, tells of two runs.
    is_same_time = not tells_when(new.text) or abs(new.time - old.time) <= SAME_DAY
    if new.text.strip().lower() == old.text.strip().lower():
        return "duplicate" if is_same_time else None
    if new.is_outside or old.is_outside:
        return None
    later, earlier = (new, old) if new.time >= old.time else (old, new)
    if is_update(later, earlier, cosine):
        return "successor"
    if is_same_time and cosine >= duplicate_threshold and _says_the_same(new, old):
        return "duplicate"
    return None


def is_update(new: Statement, old: Statement, cosine: float) -> bool:
    """Whether the new statement replaces the old one."""
    if new.speaker != old.speaker or min(new.tells, old.tells) < MIN_TOLD:
        return False
    new_words, old_words = new.content, old.content
    shared, added = new_words & old_words, new_words - old_words
    about_one = new.topics & old.topics
    named = topic_stems(about_one)
    if about_one and added - named and old_words - new_words - named:
        return True
    if not shared or not added or cosine < SUCCESSOR_COSINE:
        return False
    if _measures_again(new, old):
        return True
    if new.subject != old.subject:
        return False
    if new.says_change and not old.says_change:
        enough = len(shared) >= 2 and len(old_words) <= SHORT
        return enough or len(shared) / len(old_words) >= 0.3
    return cosine >= FRAME_COSINE and _same_frame(new.words, old.words)


def _says_the_same(new: Statement, old: Statement) -> bool:
    """No number, name or negation differs, and the words of each find their like in the other."""
    new_words, old_words = new.content, old.content
    if _numbers(new.text) != _numbers(old.text):
        return False
    if not (_names(new.text) <= set(old.words) and _names(old.text) <= set(new.words)):
        return False
    if bool(_NEGATION.intersection(new.words)) != bool(_NEGATION.intersection(old.words)):
        return False
    missing = len(new_words - old_words) / len(new_words)
    lost = len(old_words - new_words) / len(old_words)
    if max(missing, lost) <= 0.34:
        return True
    # Long texts resemble each other all over and still tell different things.
    least = 0.62 if max(len(new_words), len(old_words)) <= SHORT else 0.75
    return min(_coverage(new.tokens, old.tokens), _coverage(old.tokens, new.tokens)) >= least


def _coverage(of: NDArray[np.int8], by: NDArray[np.int8]) -> float:
    """How well the tokens of one text are matched by those of another, on average."""
    a, b = of.astype(np.float32) / 127, by.astype(np.float32) / 127
    return float((a @ b.T).max(1).mean())


def _same_frame(a: list[str], b: list[str]) -> bool:
    """One value differs and all else is the same: "the office is in Rome" and "... in Oslo"."""
    before, values = _difference(a, b)
    # The value stands behind the predicate; a difference before it is another subject.
    is_one = len(before) >= 2 and 1 <= max(map(len, values)) <= 4
    return is_one and bool(_ONE_VALUE.search(" ".join(before)))


def _difference(a: list[str], b: list[str]) -> tuple[list[str], tuple[list[str], list[str]]]:
    """The words before the only place where two texts differ, and what each has there."""
    first = 0
    while first < min(len(a), len(b)) and a[first] == b[first]:
        first += 1
    last = 0
    while last < min(len(a), len(b)) - first and a[-1 - last] == b[-1 - last]:
        last += 1
    return a[:first], (a[first : len(a) - last], b[first : len(b) - last])


def _measures_again(new: Statement, old: Statement) -> bool:
    """The same sentence about what is now, with another number, time or day, or one that says
    twice that something changed: "I pay 52 euros for power", "I set the limit to two hours now"."""
    before, values = _difference(new.words, old.words)
    if len(before) < 2 or not all(values) or tells_when(new.text):
        return False
    if _SET_TO.search(" ".join(before)):
        return max(map(len, values)) <= 4
    are_amounts = all(_AMOUNT.fullmatch(" ".join(value)) for value in values)
    return are_amounts and not _PAST.search(new.text)


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", text))


def _names(text: str) -> set[str]:
    """Capitalised words that do not begin a sentence."""
    return {name.lower() for name in re.findall(r"(?<=[a-z,;] )[A-Z][a-z]+", text)}
