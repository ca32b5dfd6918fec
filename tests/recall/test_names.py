"""Whom a question is about, and which days it names."""

from datetime import UTC, date, datetime

import numpy as np
import pytest

from titans.recall import TextMemory
from titans.recall.text import names
from titans.recall.text.dates import named_days, nearness
from titans.recall.text.names import introduces, is_assistant, is_variant, resolve_speakers

PAIR = ["Melanie", "John Smith"]
TODAY = date(2024, 5, 15)  # a Wednesday


def resolve(question: str, speakers: list[str], used: dict[str, set[str]] | None = None):
    return resolve_speakers(question, speakers, (used or {}).get).speakers


@pytest.mark.parametrize(
    ("question", "speakers", "named"),
    [
        ("What did Melanie buy?", PAIR, ["Melanie"]),
        ("what did melanie buy?", PAIR, ["Melanie"]),
        ("What is Smith's job?", PAIR, ["John Smith"]),
        ("Where did Mel go?", PAIR, ["Melanie"]),
        ("Where did Jon go?", PAIR, ["John Smith"]),
        ("What did Melany say?", PAIR, ["Melanie"]),
        ("What do John and Melanie share?", PAIR, PAIR),
        ("What happened in Paris?", PAIR, []),
        ("What might Anna do?", ["May", "Anna"], ["Anna"]),
        ("Where do I live?", ["user", "assistant"], ["user"]),
        ("What did you recommend to me?", ["user", "assistant"], ["assistant"]),
        ("Do you know where I live?", ["user", "assistant"], ["user"]),
        ("Where do I live?", ["Ann", "Bob"], []),
        ("Where do I live?", ["Ann"], ["Ann"]),
    ],
)
def test_speakers_are_named_as_people_use_names(question, speakers, named):
    assert resolve(question, speakers) == named


def test_of_many_speakers_only_those_in_the_question_are_looked_for(monkeypatch):
    searched: list[str] = []
    search = names.re.search

    def count(pattern: str, *rest):
        searched.append(pattern)
        return search(pattern, *rest)

    monkeypatch.setattr(names.re, "search", count)
    many = [f"Speaker {number}" for number in range(600)]
    assert resolve("What did speaker 77 say?", many)[0] == "Speaker 77"
    assert len(searched) < 5
    for asked, speaker in (("ALI", "al\u0131"), ("İpek", "ipek"), ("STRA\u017fSE", "strasse")):
        assert resolve(f"what did {asked} say?", [speaker]) == [speaker]


def test_another_spelling_is_no_variant_if_somebody_else_has_that_name():
    assert resolve("What did Jean say?", ["Jan", "Ann"]) == ["Jan"]
    assert resolve("What did Jean say?", ["Jan", "Ann"], {"Jean": set()}) == []


def test_a_name_that_the_speaker_gave_is_theirs(real_memory: TextMemory):
    real_memory.remember("Please call me Kit, everybody does.", speaker="Christopher")
    real_memory.remember("I keep bees on the roof.", speaker="Christopher", id="bees")
    real_memory.remember("I keep hens in the garden.", speaker="Ann", id="hens")
    assert real_memory.recall("Which animals does Kit keep?", 1)[0].id == "bees"
    assert introduces("My name is Kit.", "Kit") and not introduces("I saw Kit.", "Kit")


def test_variants_and_assistants():
    assert is_variant("sara", "sarah") and is_variant("stephen", "steven")
    assert is_variant("katherine", "catherine") and not is_variant("anna", "hannes")
    assert is_assistant("assistant") and is_assistant("ChatGPT") and not is_assistant("Aidan")


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [
        ("Where was Ann on 3 May 2023?", date(2023, 5, 3), date(2023, 5, 3)),
        ("Where was Ann on May 3rd, 2023?", date(2023, 5, 3), date(2023, 5, 3)),
        ("What happened on 2023-05-03?", date(2023, 5, 3), date(2023, 5, 3)),
        ("What did I say yesterday?", date(2024, 5, 14), date(2024, 5, 14)),
        ("What did Ann do last Friday?", date(2024, 5, 10), date(2024, 5, 10)),
        ("What did we plan three days ago?", date(2024, 5, 12), date(2024, 5, 12)),
        ("Where was I two weeks ago?", date(2024, 4, 28), date(2024, 5, 4)),
        ("What did I do last weekend?", date(2024, 5, 11), date(2024, 5, 12)),
    ],
)
def test_days_by_date_and_by_phrase(question, first, last):
    assert named_days(question, TODAY) == [(first, last)]


def test_no_day_is_found_where_none_is_named():
    for question in ("What may Ann do?", "Who won 3 mayoral races?", "Where on 31 June?", ""):
        assert named_days(question, TODAY) == []


def test_nearness_is_one_on_the_day_in_any_year_and_falls_off():
    spans = named_days("Who came on 3 May?", TODAY)
    days = [datetime(2021, 5, 3, 23, tzinfo=UTC), datetime(2023, 5, 3, tzinfo=UTC)]
    days += [datetime(2023, 5, 6, tzinfo=UTC), datetime(2023, 11, 1, tzinfo=UTC)]
    times = np.array([int(day.timestamp() * 1e6) for day in days])
    near = nearness(spans, times)
    assert near[0] == near[1] == 1 and 0.3 < near[2] < 1 and near[3] < 1e-6


def test_the_day_decides_between_equals(real_memory: TextMemory):
    for day in ("03", "10", "17"):
        real_memory.remember(
            "I had dinner with a friend.", speaker="Ann", time=f"2023-05-{day}", id=day
        )
        real_memory.remember("How nice!", speaker="Bob", time=f"2023-05-{day}")
    found = real_memory.recall("With whom did Ann have dinner on May 10, 2023?", 1)[0]
    assert found.id == "10"
