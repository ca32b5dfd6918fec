"""Days that a question names: "on 3 May", "May 3rd, 2023", "last Friday", "two weeks ago"."""

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from titans.recall.text.words import MONTHS

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
NUMBERS = {
    name: number
    for number, name in enumerate(
        "one two three four five six seven eight nine ten eleven twelve".split(), 1
    )
} | {"a": 1, "an": 1, "couple of": 2, "a couple of": 2, "a few": 3, "few": 3}
AFTER_DAYS, BEFORE_DAYS = 5.0, 2.0
"""What happened on a day is told on it, sometimes days later or earlier: scales of the decay."""


class Span(NamedTuple):
    """The first and last day that is meant. Year 4 stands for any year."""

    first: date
    last: date


ANY_YEAR = 4  # a leap year that nobody asks about

_MONTH = "|".join(f"{name}|{name[:3]}" for name in MONTHS)
_ISO = re.compile(r"\b(\d{4})[-/](\d{1,2})[-/](\d{1,2})\b")
_DAY_MONTH = re.compile(
    rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\.?\b,?(?: (\d{{4}})\b)?", re.IGNORECASE
)
_MONTH_DAY = re.compile(
    rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}})\b)?", re.IGNORECASE
)
_AGO = re.compile(
    r"\b(\d+|couple of|(?:a )?few|a couple of|an?|" + "|".join(NUMBERS) + r") "
    r"(day|week|month|year)s? ago\b"
)
_LAST = re.compile(r"\b(last|this|past) (week|month|year|weekend|night|" + "|".join(DAYS) + r")\b")
_ON_DAY = re.compile(r"\bon (" + "|".join(DAYS) + r")\b")
_LENGTH = {"day": 1, "week": 7, "month": 30, "year": 365}


def named_days(question: str, today: date) -> list[Span]:
    """The days that a question names.

    Args:
        today: what "yesterday" and "last week" are counted from.
    """
    found = [_span(int(y), int(m), int(d)) for y, m, d in _ISO.findall(question)]
    found += [_span(_year(y), _month(m), int(d)) for d, m, y in _DAY_MONTH.findall(question)]
    found += [_span(_year(y), _month(m), int(d)) for m, d, y in _MONTH_DAY.findall(question)]
    found += _relative(question.lower(), today)
    return [span for span in found if span is not None]


def nearness(spans: Sequence[Span], times: NDArray[np.int64]) -> NDArray[np.float32]:
    """1 for times (in microseconds) on the days that are meant, less for those near them."""
    best = np.zeros(len(times), np.float32)
    days = times.astype("datetime64[us]").astype("datetime64[D]")
    for first, last in spans:
        begin, end = np.datetime64(first, "D"), np.datetime64(last, "D")
        if first.year == ANY_YEAR:
            years = days.astype("datetime64[Y]").astype(np.int64) + 1970 - ANY_YEAR
            shift = np.array([_years_later(first, int(y)) for y in years], "datetime64[D]")
            begin, end = shift, shift
        later = np.maximum((days - end).astype(np.int64), 0)
        earlier = np.maximum((begin - days).astype(np.int64), 0)
        near = np.exp(-(later / AFTER_DAYS + earlier / BEFORE_DAYS)).astype(np.float32)
        best = np.maximum(best, near)
    return best


def _years_later(day: date, years: int) -> date:
    year = min(max(day.year + years, 1), 9999)
    try:
        return day.replace(year=year)
    except ValueError:  # 29 February
        return day.replace(year=year, day=28)


def _span(year: int, month: int, day: int) -> Span | None:
    try:
        found = date(year, month, day)
    except ValueError:
        return None
    return Span(found, found)


def _year(text: str) -> int:
    return int(text) if text else ANY_YEAR


def _month(text: str) -> int:
    return next(n for n, name in enumerate(MONTHS, 1) if name.startswith(text.lower()[:3]))


def _relative(question: str, today: date) -> list[Span]:
    found: list[Span] = []
    for word, back in (("today", 0), ("this morning", 0), ("yesterday", 1)):
        if re.search(rf"\b{word}\b", question):
            found.append(_back(today, back, back))
    for number, unit in _AGO.findall(question):
        count = int(number[:5]) if number.isdigit() else NUMBERS[number]
        length = _LENGTH[unit]
        # "Two weeks ago" is a week, not a day.
        found.append(_back(today, count * length + length // 2, count * length - length // 2))
    for which, unit in _LAST.findall(question):
        if unit in DAYS:
            found.append(_weekday(unit, today))
        elif unit == "night":
            found.append(_back(today, 1, 0))
        elif unit == "weekend":
            sunday = today - timedelta(days=(today.weekday() + 1) % 7 or 7)
            found.append(Span(sunday - timedelta(days=1), sunday))
        elif which == "this":
            found.append(_back(today, _LENGTH[unit], 0))
        else:
            found.append(_back(today, 2 * _LENGTH[unit], 1))
    found += [_weekday(day, today) for day in _ON_DAY.findall(question)]
    return found


def _weekday(name: str, today: date) -> Span:
    """The last such day before today."""
    back = (today.weekday() - DAYS.index(name)) % 7 or 7
    return _back(today, back, back)


def _back(today: date, first: int, last: int) -> Span:
    """The days from `first` to `last` days ago."""
    earliest = (today - date.min).days
    return Span(
        today - timedelta(days=min(first, earliest)), today - timedelta(days=min(last, earliest))
    )
