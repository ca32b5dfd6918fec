"""A conversation with a memory: the one way from what a user says to an answer.

`TextMemory.turn`, `titans chat` and the server all go this way:

    1. open_turn      remember what the user said, recall what bears on it, put it into the prompt
    2. stream_answer  the conversation within the model's window, an answer without loops
    3. close_turn     remember the answer as the assistant's
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from titans.errors import DataError
from titans.recall.generator import Finish, Message, Sampling, TextGenerator
from titans.recall.prompt import RULES, SYSTEM, build_prompt
from titans.recall.records import Recalled, Record, Turn
from titans.recall.store import Scalar

if TYPE_CHECKING:
    from titans.recall.forgetting import Forgotten
    from titans.recall.memory import TextMemory

LONGEST_LOOP = 400
"""Characters of the longest piece of text whose repetition is recognised."""
HELD_CHARS, LOOP_CHARS, LOOP_TIMES = 24, 160, 4
"""A repetition is held back from so many characters on; so many and so often, it is a loop."""


@dataclass(frozen=True)
class OpenTurn:
    """A turn before its answer."""

    text: str
    record: Record
    """What the user said, as it is remembered."""
    memories: list[Recalled]
    enriched: str
    """The user's text with persistent texts and memories."""
    messages: list[Message]
    """The whole conversation as the model is to see it."""


class ChatSession:
    """A conversation that stays in memory while it lasts, and in the text memory permanently.

    Args:
        speaker: who the user is.
        history: the conversation so far, without a system message.
    """

    def __init__(
        self,
        memory: "TextMemory",
        llm: TextGenerator,
        *,
        speaker: str | None = "user",
        history: Sequence[Message] = (),
        sampling: Sampling | None = None,
    ) -> None:
        self.memory, self.llm, self.speaker = memory, llm, speaker
        self.sampling = sampling or Sampling()
        self.history = list(history)

    def turn(self, text: str, on_text: Callable[[str], None] | None = None) -> Turn:
        """Answer a text; `on_text` is called with each piece of the answer as it comes."""
        opened = open_turn(self.memory, text, history=self.history, speaker=self.speaker)
        pieces: list[str] = []
        with closing(stream_answer(self.llm, opened.messages, self.sampling)) as stream:
            for piece in stream:
                pieces.append(piece)
                if on_text is not None:
                    on_text(piece)
        said = "".join(pieces)
        kept = close_turn(self.memory, said)
        self.history += [
            Message(role="user", content=text),
            Message(role="assistant", content=said),
        ]
        return Turn(text, opened.enriched, said, opened.record, opened.memories, kept)

    def forget(self, id: str) -> "Forgotten":
        """Remove a record from the text memory, and what it says from this conversation."""
        record = self.memory.get(id)
        done = self.memory.forget(id)
        if record is not None:
            self.history = [m for m in self.history if m["content"] != record.text]
        return done


def open_turn(
    memory: "TextMemory",
    text: str,
    *,
    history: Sequence[Message],
    speaker: str | None,
    system: str = SYSTEM,
    metadata: dict[str, Any] | None = None,
    only: Mapping[str, Scalar] | None = None,
) -> OpenTurn:
    """Remember a text and recall what bears on it, but for what the history says anyway.

    Args:
        system: what the model is told before the conversation.
        metadata: of the text, as it is remembered.
        only: recall only records whose metadata has these fields with these values.
    """
    said = {message["content"] for message in history}
    record, memories = memory.attend(
        text, speaker=speaker, metadata=metadata, known=said, only=only
    )
    enriched = build_prompt(memory.persistent_texts, memories, text)
    system = f"{system} {RULES}" if memories else system
    messages = [
        Message(role="system", content=system),
        *history,
        Message(role="user", content=enriched),
    ]
    return OpenTurn(text, record, memories, enriched, messages)


def stream_answer(
    llm: TextGenerator, messages: Sequence[Message], sampling: Sampling
) -> Generator[str, None, Finish]:
    """The answer piece by piece; closing the generator ends the model's work."""
    return (yield from without_loops(llm.stream(within_window(llm, messages, sampling), sampling)))


def close_turn(
    memory: "TextMemory", said: str, metadata: dict[str, Any] | None = None
) -> Record | None:
    """Remember an answer, if the memory is set to and there is one."""
    if memory.config.remember_answers and said.strip():
        return memory.remember(said, speaker="assistant", metadata=metadata)
    return None


def within_window(
    llm: TextGenerator, messages: Sequence[Message], sampling: Sampling
) -> list[Message]:
    """The newest part of a conversation that leaves room for the answer, and its system message."""
    kept = list(messages)
    if llm.window is None:
        return kept
    room = llm.window - sampling.max_tokens
    first = int(kept[0]["role"] == "system")
    while (size := llm.count_tokens(kept)) > room:
        if len(kept) == first + 1:
            raise DataError(
                f"the prompt has about {size} tokens; {llm.name} has room for {room} and an answer "
                f"of {sampling.max_tokens}: shorten it, or give the model a larger window"
            )
        del kept[first]
        # An answer without its question would open the conversation.
        while len(kept) > first + 1 and kept[first]["role"] == "assistant":
            del kept[first]
    return kept


def without_loops(pieces: Iterable[str]) -> Generator[str, None, Finish]:
    """An answer up to where it says the same again and again without end; why it ended.

    A repetition is held back until it is clear whether it is a loop, so that little of one is seen.
    """
    said, shown = "", 0
    source = iter(pieces)
    try:
        while True:
            try:
                said += next(source)
            except StopIteration as end:
                if shown < len(said):
                    yield said[shown:]
                return end.value or "stop"
            unit, times = repeated_end(said)
            size = unit * times
            clear = len(said) - (size - unit if size >= HELD_CHARS else 0)
            if clear > shown:
                yield said[shown:clear]
                shown = clear
            if size >= LOOP_CHARS and times >= LOOP_TIMES:
                return "stop"
    finally:
        if isinstance(source, Generator):
            source.close()


def repeated_end(text: str) -> tuple[int, int]:
    """How long the piece is that a text ends with again and again, and how often it stands there.

    Of several, the one that covers most of the text; (0, 0) if nothing is repeated.
    """
    best = (0, 0)
    for unit in range(1, min(LONGEST_LOOP, len(text) // 2) + 1):
        piece, times = text[-unit:], 1
        while text[-unit * (times + 1) : -unit * times] == piece:
            times += 1
        if times > 1 and unit * times > best[0] * best[1]:
            best = (unit, times)
    return best
