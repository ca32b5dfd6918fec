"""Whom a question is about: speakers by name as people use names, and by "I", "my" and "you".

A speaker is meant by any word of a label ("Smith" of "Dr Ann Smith"), by a short form ("Mel" of
Melanie), by a name that the speaker gave ("call me Kate"), and by another spelling ("Jon" for John)
unless that word is somebody else's name in the scope.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from titans.recall.text.words import MONTHS, STOP_WORDS, normalise, words

Holders = Callable[[str], Collection[str] | None]
"""Who gave this word as their name: nobody in a word that the scope uses otherwise; None if it is
never used."""

_WORD = re.compile(r"[^\W\d_][\w'\u2019-]*[^\W_]|[^\W\d_]")
_POSSESSIVE = re.compile(r"['\u2019]s?$")
_TITLES = {"mr", "mrs", "ms", "miss", "dr", "prof", "sir", "the", "and", "von", "van", "de"}
_ASSISTANT = re.compile(r"\b(assistant|ai|agent|model|system)\b|bot\b|gpt\b", re.IGNORECASE)
_SELF = re.compile(r"\b(i|me|my|mine|myself|we|us|our|ours)\b", re.IGNORECASE)
_YOU = re.compile(r"\b(you|your|yours|yourself)\b", re.IGNORECASE)
_YOU_DID = re.compile(
    r"\b(?:did|have|had|would|were|are|do|can|could) you\b(?! (?:know|remember|recall|tell))"
    r"|\byou (?:said|told|recommended|suggested|gave|wrote|listed|mentioned|explained|proposed)\b",
    re.IGNORECASE,
)
_INTRODUCTION = (
    r"\b(?:i['\u2019]?m|i am|my (?:name|nick ?name) is|(?:you can |just |please )?call me|named"
    r"|this is|my friends call me|known as)\s+{}\b"
)


@dataclass(frozen=True)
class Named:
    """Speakers that a question is about, and the words by which it names them."""

    speakers: list[str]
    written: list[str]

    @property
    def words(self) -> set[str]:
        """Words that name somebody and say nothing else."""
        return {word for name in (*self.speakers, *self.written) for word in words(name)}


def is_assistant(speaker: str) -> bool:
    """Whether a label is that of a program that answers."""
    return bool(_ASSISTANT.search(speaker))


def introduces(text: str, name: str) -> bool:
    """Whether a text gives a name as the speaker's own: "I'm Kate", "call me Kate"."""
    return bool(re.search(_INTRODUCTION.format(re.escape(name)), text, re.IGNORECASE))


def resolve_speakers(question: str, speakers: Sequence[str], holders: Holders) -> Named:
    """The speakers that a question is about, in the order of `speakers`."""
    written: dict[str, list[str]] = {}
    parts = _parts(speakers)
    asked = _caseless(question)
    for speaker in speakers:
        # First what is cheap: Python compiles a pattern again if there are more than it keeps.
        if _caseless(speaker) in asked and re.search(
            rf"(?<!\w){re.escape(speaker)}(?!\w)", question, re.IGNORECASE
        ):
            written.setdefault(speaker, []).append(speaker)
    taken = {part for names in written.values() for name in names for part in words(name)}
    for word in dict.fromkeys(_POSSESSIVE.sub("", w) for w in _WORD.findall(question)):
        lower = normalise(word)
        if lower in taken or not lower:
            continue
        capital = word[0].isupper()
        known = parts.get(lower, [])
        if not known and capital and lower not in STOP_WORDS and lower not in MONTHS:
            known = _by_another_form(word, lower, parts, holders)
        elif lower in STOP_WORDS or lower in MONTHS:
            known = known if capital and not question.lstrip().startswith(word) else []
        for speaker in known:
            written.setdefault(speaker, []).append(word)
    if not written:
        written = {speaker: [] for speaker in _by_pronoun(question, speakers)}
    chosen = [speaker for speaker in speakers if speaker in written]
    return Named(chosen, [word for speaker in chosen for word in written[speaker]])


def _caseless(text: str) -> str:
    """Equal for texts that a pattern with IGNORECASE takes for equal: there i is ı and İ, too."""
    return text.casefold().replace("i\u0307", "i").replace("\u0131", "i")


def _parts(speakers: Sequence[str]) -> dict[str, list[str]]:
    """Every word of a label -> the speakers that have it."""
    found: dict[str, list[str]] = {}
    for speaker in speakers:
        for part in dict.fromkeys(words(speaker)):
            if len(part) > 1 and part not in _TITLES and not part.isdigit():
                found.setdefault(part, []).append(speaker)
    return found


def _by_another_form(
    word: str, lower: str, parts: dict[str, list[str]], holders: Holders
) -> list[str]:
    """The speakers for whom a word that is no part of a label stands."""
    given = holders(word)
    if given:
        return [speaker for names in parts.values() for speaker in names if speaker in given][:1]
    short = {s for part, names in parts.items() if _is_short_form(lower, part) for s in names}
    if len(short) == 1:
        return list(short)
    if given is not None:
        return []  # somebody else's name, or no name
    like = {s for part, names in parts.items() if is_variant(lower, part) for s in names}
    return list(like) if len(like) == 1 else []


def _is_short_form(word: str, part: str) -> bool:
    return 2 <= len(word) < len(part) and part.startswith(word)


def is_variant(one: str, other: str) -> bool:
    """Whether two words in lower case are spellings of one name: Jon and John, Sara and Sarah."""
    if min(len(one), len(other)) < 3 or abs(len(one) - len(other)) > 2:
        return False
    if _skeleton(one) == _skeleton(other) and _vowel_count(one) == _vowel_count(other):
        return True
    allowed = 1 if min(len(one), len(other)) < 7 else 2
    return min(len(one), len(other)) >= 4 and one[0] == other[0] and _edits(one, other) <= allowed


_ALIKE = (("ph", "f"), ("ck", "k"), ("c", "k"), ("q", "k"), ("z", "s"), ("v", "f"), ("y", "i"))


def _skeleton(word: str) -> str:
    """The consonants as they sound, no letter twice in a row."""
    for old, new in _ALIKE:
        word = word.replace(old, new)
    first, rest = word[:1], re.sub(r"[aeiouhw]", "", word[1:])
    return re.sub(r"(.)\1+", r"\1", first + rest)


def _vowel_count(word: str) -> int:
    return len(re.findall(r"[aeiouy]+", word.rstrip("e")))


def _edits(one: str, other: str) -> int:
    """Letters to add, drop, change or swap with the next."""
    rows = [list(range(len(other) + 1))]
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


def _by_pronoun(question: str, speakers: Sequence[str]) -> list[str]:
    """Who "I" and "you" are, where that is clear: one user, and programs that answer."""
    kinds = Counter(map(is_assistant, speakers))
    if kinds[True] and _YOU.search(question) and _YOU_DID.search(question):
        return [speaker for speaker in speakers if is_assistant(speaker)]
    if kinds[False] == 1 and _SELF.search(question):
        return [speaker for speaker in speakers if not is_assistant(speaker)]
    return []
