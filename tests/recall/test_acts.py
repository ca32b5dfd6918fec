"""Questions, orders and greetings are no facts."""

import pytest

from titans.recall import TextMemory
from titans.recall.text.acts import acts_of


@pytest.mark.parametrize(
    ("text", "act"),
    [
        ("What is the name of my dog?", "asks"),
        ("where do i live", "asks"),
        ("Do you like tea?", "asks"),
        ("\u4f60\u4f4f\u5728\u54ea\u91cc\uff1f", "asks"),
        ("Please write a poem about the sea.", "orders"),
        ("Remind me to call my sister.", "orders"),
        ("Can you help me with my tax return?", "orders"),
        ("Good morning!", "greets"),
        ("Thanks a lot, that's great!", "greets"),
        ("Hi Ann!", "greets"),
        ("I live in Oslo.", "tells"),
        ("My dog is called Rex.", "tells"),
        ("Where I live it rains a lot.", "tells"),
        ("Play is what children need.", "tells"),
    ],
)
def test_acts_are_told_apart(text, act):
    assert getattr(acts_of(text), act) == 1.0


def test_a_text_may_do_several_things():
    acts = acts_of("I moved to Oslo last week. Do you know a good bakery?")
    assert acts.tells == pytest.approx(6 / 12) and acts.asks == pytest.approx(6 / 12)


def test_a_question_does_not_answer_a_question(real_memory: TextMemory):
    real_memory.remember("What is the name of my dog?", speaker="Ann")
    real_memory.remember("Where should I live?", speaker="Ann")
    real_memory.remember("I live in Oslo.", speaker="Ann", id="home")
    real_memory.remember("Tell me where I live.", speaker="Ann")
    assert real_memory.recall("Where do I live?", 1)[0].id == "home"
    assert real_memory.recall("Where does Ann live?", 1)[0].id == "home"


def test_a_question_asked_before_does_not_answer_itself(real_memory: TextMemory):
    said = ("I live in Oslo.", "What is the name of my dog?", "Where do I live?", "Hello, hello!")
    said = (*said, "Remind me where I live.", "My dog is called Rex.", "I like dogs.")
    for day, text in enumerate(said, 1):
        real_memory.remember(text, speaker="user", time=f"2024-05-{day:02}")
    for question, answer in (
        ("Where do I live?", "I live in Oslo."),
        ("What is the name of my dog?", "My dog is called Rex."),
    ):
        assert real_memory.recall(question, 1)[0].text == answer
