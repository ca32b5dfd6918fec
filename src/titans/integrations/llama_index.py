"""LlamaIndex on the text memory: a memory block for `llama_index.core.memory.Memory`.

block = TextMemoryBlock(memory=TextMemory("memory.db", scope="ann"))
agent.run("Hello", memory=Memory.from_defaults(memory_blocks=[block]))
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import BaseMemoryBlock
from pydantic import ConfigDict, Field

from titans.recall import TextMemory
from titans.recall.prompt import RULES, memory_line

ROLES = ("user", "assistant")
"""Messages that are remembered; the role is the speaker."""


class TextMemoryBlock(BaseMemoryBlock[str]):
    """What was said in this session and in earlier ones, as far as it bears on the last message.

    Messages are remembered when the session is read for a model, and when it grows too long; the
    same message of a session is one record, however often it is seen.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = "text_memory"
    memory: TextMemory = Field(exclude=True)

    async def _aget(
        self,
        messages: list[ChatMessage] | None = None,
        session_id: str = "",
        **block_kwargs: Any,
    ) -> str:
        return await asyncio.to_thread(self._recall, messages or [], session_id)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        await asyncio.to_thread(self._remember, messages, "")

    def _recall(self, messages: Sequence[ChatMessage], session: str) -> str:
        self._remember(messages, session)
        said = [_text(message) for message in messages if message.role == "user"]
        if not said or not said[-1]:
            return ""
        known = {_text(message) for message in messages}
        config = self.memory.config
        found = self.memory.recall(said[-1], config.top_k + len(known), threshold=config.threshold)
        lines = [memory_line(answer) for answer in found if answer.text not in known]
        return "\n".join([RULES, *lines[: config.top_k]]) if lines else ""

    def _remember(self, messages: Sequence[ChatMessage], session: str) -> None:
        for message in messages:
            text = _text(message)
            if message.role in ROLES and text:
                said_in = message.additional_kwargs.get("session_id", session)
                parts = "\n".join((said_in, message.role.value, text))
                id = hashlib.sha256(parts.encode()).hexdigest()[:32]
                self.memory.remember(text, speaker=message.role.value, id=id)


def _text(message: ChatMessage) -> str:
    return (message.content or "").strip()
