from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titans.errors import DataError
from titans.recall.encoder import HashingEncoder
from titans.recall.text import words as texts
from titans.recall.text.passages import split_passages


def test_terms_drop_stop_words_and_endings():
    assert texts.terms("The dogs were walking to the parks") == ["dog", "walk", "park"]
    assert texts.terms("Ann walks", skip={"ann"}) == ["walk"]


def test_scripts_without_spaces_are_cut_into_characters():
    assert texts.words("我爱北京") == ["我", "爱", "北", "京"]


def test_question_in_first_person():
    assert texts.in_first_person("What did Ann buy?", ["Ann"]) == "I buy"
    assert texts.in_first_person("What is Ann's dog called?", ["Ann"]) == "my dog called"
    assert texts.in_first_person("??", []) == "??"


@pytest.mark.parametrize(
    ("question", "months", "years"),
    [
        ("What happened in May 2023?", {5}, {2023}),
        ("What may Ann do?", set(), set()),
        ("Where were they on 3 July?", {7}, set()),
    ],
)
def test_named_months(question, months, years):
    assert texts.named_months(question) == (months, years)


def test_times_are_utc_unless_they_say_otherwise():
    assert texts.parse_time("2024-05-31T14:30") == datetime(2024, 5, 31, 14, 30, tzinfo=UTC)
    east = datetime(2024, 5, 31, 14, 30, tzinfo=timezone(timedelta(hours=2)))
    assert texts.parse_time(east).hour == 12
    with pytest.raises(DataError, match="ISO 8601"):
        texts.parse_time("yesterday")


@given(st.integers(0, 60), st.lists(st.integers(0, 60)), st.integers(1, 9))
def test_cut_spans_cover_everything_within_the_limit(length, breaks, limit):
    inside = sorted(b for b in breaks if b <= length)
    spans = texts.cut_spans(length, iter(inside), limit)
    assert [p for begin, end in spans for p in range(begin, end)] == list(range(length))
    assert all(end - begin <= limit for begin, end in spans)


@given(st.text(max_size=400))
def test_passages_lose_nothing_but_white_space(text):
    encoder = HashingEncoder(16)
    encoder.max_tokens = 12
    parts = split_passages(encoder, "", text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(len(encoder.token_spans(part)) <= 12 for part in parts)
