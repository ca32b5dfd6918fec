"""Arguments of the text memory: those that cannot be meant are refused before anything is done."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from titans.errors import DataError
from titans.files import check_unicode
from titans.recall.records import to_microseconds
from titans.recall.store import NO_MARKS, Filter, Marks, Scalar
from titans.recall.text.passages import MAX_CHARS
from titans.recall.text.words import parse_time

SAID = ("text", "speaker", "time", "id", "metadata")
FIELDS = (*SAID, "expires", "importance", "pinned")
"""What a record is remembered with."""
NEVER = "never"
"""As an expiry: none."""


def checked_record(
    text: Any,
    speaker: Any = None,
    time: Any = None,
    id: Any = None,
    metadata: Any = None,
    expires: Any = None,
    importance: Any = 0.0,
    pinned: Any = False,
) -> tuple[int, Marks]:
    """Refuse what cannot be a record; its time in microseconds, and its marks."""
    check_text(text, metadata)
    check_words(speaker=speaker, id=id)
    when = to_microseconds(datetime.now(UTC) if time is None else parse_time(time))
    return when, changed_marks(NO_MARKS, expires, importance, pinned)


def changed_marks(marks: Marks, expires: Any, importance: Any, pinned: Any) -> Marks:
    """Marks with those that are given (not None) in the place of their own."""
    if expires is not None:
        end = None if expires == NEVER else to_microseconds(parse_time(expires))
        marks = replace(marks, expires=end)
    if importance is not None:
        is_number = isinstance(importance, int | float) and not isinstance(importance, bool)
        if not is_number or not 0 <= importance <= 1:
            raise DataError(f"importance must be a number in [0, 1], got {importance!r}")
        marks = replace(marks, importance=float(importance))
    if pinned is not None:
        if not isinstance(pinned, bool):
            raise DataError(f"pinned must be True or False, got {pinned!r}")
        marks = replace(marks, pinned=pinned)
    return marks


def check_text(text: Any, metadata: Any) -> None:
    """Refuse what cannot be remembered."""
    if text is None:
        raise DataError("text must be a str, got None")
    check_words(text=text)
    if not text.strip():
        raise DataError("text is empty: there is nothing to remember")
    if len(text) > MAX_CHARS:
        raise DataError(
            f"text has {len(text):,} characters, at most {MAX_CHARS:,}: remember it in parts, such "
            "as chapters"
        )
    if metadata is not None:
        if not isinstance(metadata, dict):
            raise DataError(f"metadata must be a dict, got {type(metadata).__name__}")
        try:
            json.dumps(metadata, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"metadata must be JSON-serialisable: {error}") from error


def check_query(query: Any, threshold: Any) -> None:
    """Refuse what cannot be asked."""
    if query is None:
        raise DataError("query must be a str, got None")
    check_words(query=query)
    if not query.strip():
        raise ValueError("query is empty: ask something")
    if len(query) > MAX_CHARS:
        raise ValueError(f"query has {len(query):,} characters, at most {MAX_CHARS:,}: cut it")
    if threshold is not None and not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be in [0, 1], got {threshold}")


def check_words(**given: Any) -> None:
    """Refuse what is neither None nor a text that UTF-8 can hold, by the argument's name."""
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, str):
            raise DataError(f"{name} must be a str, got {value!r}")
        check_unicode(value, name)


def check_count(least: int, **given: Any) -> None:
    """Refuse what is no whole number of at least `least`, by the argument's name."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def as_filter(
    before: datetime | str | None,
    after: datetime | str | None,
    speaker: str | None,
    metadata: Mapping[str, Scalar] | None,
) -> Filter:
    """Which records are wanted."""
    check_words(speaker=speaker)
    if not isinstance(metadata, Mapping | None):
        raise DataError(f"metadata must be a mapping, got {metadata!r}")
    for name, value in (metadata or {}).items():
        if not isinstance(name, str):
            raise DataError(f"a field of metadata has a name, got {name!r}")
        is_large = isinstance(value, int) and not -(2**63) <= value < 2**63
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if is_large or not is_finite or not isinstance(value, Scalar):
            raise DataError(
                f"metadata can be compared with a text, a number of up to 64 bits, true, false or "
                f"null; {name!r} is {value!r}"
            )
        check_words(name=name, value=value if isinstance(value, str) else None)
    return Filter(
        before=None if before is None else to_microseconds(parse_time(before)),
        after=None if after is None else to_microseconds(parse_time(after)),
        speaker=speaker,
        metadata=tuple(sorted((metadata or {}).items())),
    )
