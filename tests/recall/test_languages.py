"""Texts in languages that the default encoder does not know are found by words and their pieces."""

import pytest

from titans.recall import TextMemory
from titans.tasks.recall_sets import LANGUAGES, language


@pytest.mark.parametrize("name", LANGUAGES)
def test_plain_questions_find_their_record_and_nothing_is_a_false_duplicate(
    real_memory: TextMemory, name: str
):
    chat = language(name)
    for turn in chat.said:
        record = real_memory.remember(turn.text, speaker=turn.speaker, time=turn.time, id=turn.id)
        assert record.duplicate_of is None and record.successor_of is None, turn.text
    first = next(turn for turn in chat.said if turn.id in chat.asked[0].answers)
    again = real_memory.remember(first.text, speaker=first.speaker, time=first.time, id="again")
    assert again.duplicate_of == first.id
    found = [(asked, real_memory.recall(asked.text, 1)[0]) for asked in chat.asked]
    wrong = [asked.text for asked, r in found if not asked.answers & {r.id, *r.duplicates}]
    assert len(wrong) <= 0.2 * len(chat.asked), wrong


def test_another_language_does_not_answer_for_sure(real_memory: TextMemory):
    real_memory.remember("我住在北京的朝阳区。", speaker="A")
    real_memory.remember("The code of the safe in the cellar is 7719.", speaker="A", id="safe")
    found = real_memory.recall("What is the code of the safe?", 2)
    assert found[0].id == "safe" and found[1].score < found[0].score / 2


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("I live in Oslo.", True),
        ("def area(r): return 3.14 * r ** 2", True),
        ("555 0134", True),
        ("I flew to Los Angeles and La Paz.", True),
        ("Ich wohne in Berlin.", False),
        ("¿Dónde vivo?", False),
        ("Le chat dort sur le canapé.", False),
        ("Я живу в Москве.", False),
        ("我爱北京", False),
    ],
)
def test_what_the_encoder_knows(minilm, text, is_known):
    assert minilm.covers(text) is is_known
