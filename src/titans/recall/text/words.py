"""Text as the text memory sees it: words, stems, sentences, times, the rewriting of a question.

English rules (stop words, stems) are light and do no harm elsewhere: other languages keep their
words, and scripts without spaces are cut into single characters. Texts that the encoder does not
know are also indexed by pieces of their words (`pieces`).
"""

import re
import unicodedata
from calendar import monthrange
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache

from titans.errors import DataError

STOP_WORDS = frozenset(
    """a about after also am an and any are as at be been before being between both but by can could
    d did do does doing don done during for from had has have having he her here him his how i if in
    into is it its just ll m may me might more most must my no not of on once only or other our out
    over own re s same shall she should so some such t than that the their them then there these
    they this those to too up us ve very was we were what when where which while who whom why will
    with would you your""".split()
)
MONTHS = (
    "january february march april may june july august september october november december"
).split()
SUFFIXES = ("ing", "ed", "es", "s")
# Chinese, Japanese kana, Thai, Lao, Khmer, Hangul is spaced: characters instead of words.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff\u1780-\u17ff]")
_WORD = re.compile(r"\w+")
_ACCENTS = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")
_SENTENCE_END = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+")


def normalise(text: str) -> str:
    """One form for equal texts: Unicode NFKC, lower case."""
    return unicodedata.normalize("NFKC", text).lower()


def words(text: str) -> list[str]:
    """The words of a text in order, stop words included."""
    if text.isascii():
        return _WORD.findall(text.lower())
    found: list[str] = []
    for word in _WORD.findall(normalise(text)):
        if _UNSPACED.search(word):
            found.extend(word)
        else:
            found.append(word)
    return found


@lru_cache(maxsize=1 << 14)
def stem(word: str) -> str:
    """Cut one English ending, keeping at least three letters."""
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


def fold(word: str) -> str:
    """A word without accents on Latin letters and with ss for ß: cafe finds café."""
    if word.isascii():
        return word
    apart = unicodedata.normalize("NFD", word.casefold())
    return unicodedata.normalize("NFC", _ACCENTS.sub("", apart))


def terms(text: str, *, skip: Iterable[str] = (), with_pieces: bool = False) -> list[str]:
    """What lexical search works on, in writing and in asking: folded stems without stop words.

    Args:
        skip: further words to leave out.
        with_pieces: pieces of the words as well, for texts that the encoder does not know.
    """
    dropped = STOP_WORDS.union(skip)
    found = [fold(stem(word)) for word in words(text) if word not in dropped]
    return [*found, *pieces(text)] if with_pieces else found


def pieces(text: str) -> list[str]:
    """Pairs of characters in scripts without spaces; elsewhere three letters in a row.

    They find a word in another form without knowing the language. The marks keep them apart from
    words.
    """
    found: list[str] = []
    for word in _WORD.findall(normalise(text)):
        if _UNSPACED.search(word):
            found += [f"_{word[i : i + 2]}" for i in range(len(word) - 1)]
        elif len(word) >= 4:
            plain = fold(word)
            found += [f"_{plain[i : i + 3]}" for i in range(len(plain) - 2)]
    return found


def sentences(text: str) -> list[str]:
    """The sentences of a text, cut at ends of sentences followed by space."""
    return [part for part in _SENTENCE_END.split(text) if part.strip()]


def in_first_person(question: str, names: Iterable[str]) -> str:
    """The question as its subject would have said it: "What did Ann buy?" -> "I buy".

    Whoever is asked about speaks of themselves as "I" in the stored turns, so the encoder finds
    them nearer to this wording than to the question.

    Args:
        names: how the question names its subject, longer names first.
    """
    text = _QUESTION_OPENING.sub("", question.strip().rstrip("?!. "))
    text = _AUXILIARY.sub("", text)
    for name in names:
        text = re.sub(rf"\b{re.escape(name)}['\u2019]s\b", "my", text, flags=re.IGNORECASE)
        text = re.sub(rf"\b{re.escape(name)}\b", "I", text, flags=re.IGNORECASE)
    return re.sub(r"\s+", " ", text).strip() or question


def asks_when(question: str) -> bool:
    """Whether the answer of a question is a time."""
    return bool(_ASKS_WHEN.match(question.strip().lower()))


def tells_when(text: str) -> bool:
    """Whether a text says when something happens: "yesterday", "last week", "on Monday"."""
    return bool(_TELLS_WHEN.search(text.lower()))


def is_question(text: str) -> bool:
    """Whether a text ends in a question mark: it asks and seldom tells."""
    return text.rstrip().endswith(("?", "\uff1f", "\u061f"))


def named_months(question: str) -> tuple[set[int], set[int]]:
    """The months (1 to 12) and years that a question names."""
    lower = question.lower()
    months = {number for number, name in enumerate(MONTHS, 1) if re.search(rf"\b{name}\b", lower)}
    if 5 in months and not re.search(
        r"\b(in|on|of|since|until|last|this|by) may\b|may,? \d|\d may", lower
    ):
        months.discard(5)  # "may" the verb
    return months, {int(year) for year in words(lower) if is_year(year)}


def is_year(word: str) -> bool:
    """Whether a word is a year of this century or the last."""
    return bool(_YEAR.fullmatch(word))


def parse_time(value: datetime | str) -> datetime:
    """A datetime or ISO 8601 text as a datetime in UTC; without a zone it is taken as UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError as error:
            raise DataError(
                f"{value!r} is not a time: use ISO 8601, e.g. 2024-05-31 or 2024-05-31T14:30:00Z"
            ) from error
    if not isinstance(value, datetime):
        raise DataError(f"a time is a datetime or ISO 8601 text, got {value!r}")
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise DataError(f"{value.isoformat()} lies outside the years 1 to 9999 in UTC") from error


def end_of_period(value: datetime | str) -> datetime:
    """The last moment of a year, month or day given as text ("2024-05"), or the time itself."""
    if isinstance(value, str) and (match := _PERIOD.fullmatch(value.strip())):
        year, month, day = (int(part) if part else None for part in match.groups())
        try:
            begin = datetime(year or 1, month or 1, day or 1, tzinfo=UTC)
        except ValueError as error:
            raise DataError(f"{value!r} is not a time: {error}") from error
        if day is None:
            day = monthrange(begin.year, month or 12)[1]
        last = begin.replace(month=month or 12, day=day)
        return last.replace(hour=23, minute=59, second=59, microsecond=999_999)
    return parse_time(value)


def cut_spans(length: int, breaks: Iterator[int], limit: int) -> list[tuple[int, int]]:
    """Cut `range(length)` into spans of at most `limit`, at the last of `breaks` that fits.

    Args:
        breaks: rising positions where a cut is welcome (ends of sentences or words).
    """
    spans: list[tuple[int, int]] = []
    begin, last = 0, 0
    for position in [*breaks, length]:
        while position - begin > limit:
            end = last if last > begin else begin + limit
            spans.append((begin, end))
            begin = end
        last = position
    spans.append((begin, length))
    return spans


_QUESTION_OPENING = re.compile(
    r"^(when|what|where|who|how|why|which|does|did|do|is|are|was|were|has|have|had|would|will|can"
    r"|could)\b",
    re.IGNORECASE,
)
_AUXILIARY = re.compile(
    r"^\s*(long|many|much|often|kind of|type of|did|does|do|is|are|was|were|has|have|had|would|will"
    r"|might|can|could)\b",
    re.IGNORECASE,
)
_ASKS_WHEN = re.compile(r"(when|how long|what date|which month|in which|since when|what time)\b")
_PERIOD = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")
_YEAR = re.compile(r"(?:19|20)\d\d")
_TELLS_WHEN = re.compile(
    r"\b(yesterday|today|tonight|tomorrow|recently|ago|since|few days"
    r"|(?:last|next|this|past) (?:week|month|year|night|morning|weekend|summer|winter|spring|fall"
    r"|\w+day)|(?:mon|tues|wednes|thurs|fri|satur|sun)day|19\d\d|20\d\d)\b"
)
