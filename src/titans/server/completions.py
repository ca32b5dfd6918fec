"""`POST /v1/chat/completions` and `GET /v1/models`: OpenAI's interface in front of any model.

A request goes the way of every turn (`recall/chat.py`): remember, recall, answer, remember. Which
memories were used stands in the field `titans` of the answer, which OpenAI clients pass on.
"""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from titans.errors import DataError, GeneratorError
from titans.recall import Message, Record, Sampling, TextGenerator, TextMemory
from titans.recall.chat import OpenTurn, close_turn, open_turn, stream_answer
from titans.recall.generator import Finish
from titans.recall.prompt import SYSTEM
from titans.server import schemas as s
from titans.server.caller import Caller
from titans.server.refusal import Refusal
from titans.server.rest import BEARER, Who
from titans.server.verbs import TRUST, Verbs, only, shown, stamp

R = TypeVar("R")
ALIAS = "titans"
"""A name by which every server's model can be asked for."""
PASSED_ON = (400, 404, 413, 422, 429)
"""Statuses of an upstream that the caller can do something about."""
UNSUPPORTED = ("tools", "functions", "audio", "logprobs")
EVENTS = "text/event-stream"


class Part(BaseModel):
    """A part of a message: text only."""

    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = Field(None, max_length=200, description="who the user is")


class StreamOptions(BaseModel):
    """What a stream says at its end."""

    include_usage: bool = False


class Limits(s.Given):
    """Which memories may be used: an extension of OpenAI's request."""

    trust: s.Trust | None = Field(None, description="only what such keys wrote")
    writer: str | None = Field(None, description="only what this key wrote")


class ChatRequest(BaseModel):
    """A request as OpenAI clients send it; unknown fields are ignored."""

    model_config = ConfigDict(extra="allow")

    model: str = ALIAS
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**31), lt=2**31)
    stop: str | list[str] | None = None
    n: int | None = Field(None, ge=1)
    user: str | None = Field(None, min_length=1, description="the scope, if no header names one")
    titans: Limits | None = None


class Used(BaseModel):
    """The extension of the answer: what the memory did."""

    scope: str
    memories: list[s.RecalledMemory]
    remembered: s.Memory
    answer: s.Memory | None


class Choice(BaseModel):
    """The one choice."""

    index: int
    message: dict[str, Any]
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    """An answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: dict[str, int]
    titans: Used


class Model(BaseModel):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(BaseModel):
    """The models that can be asked."""

    object: Literal["list"]
    data: list[Model]


@dataclass(frozen=True)
class End:
    """Why an answer ended and what it took."""

    finish: Finish
    usage: dict[str, int]


class Speaker:
    """A model that answers several callers at once, without blocking the event loop.

    Args:
        answers: how many at once; further ones wait.
        waiting: how many may wait.
        timeout: seconds until a model that says nothing is given up.
    """

    def __init__(self, llm: TextGenerator, *, answers: int, waiting: int, timeout: float) -> None:
        self.llm = llm
        self._timeout, self._places = timeout, answers + waiting
        self._slots = asyncio.Semaphore(answers)
        self._threads = ThreadPoolExecutor(answers, "titans-answer")
        self.count = 0

    async def answer(
        self, messages: list[Message], sampling: Sampling
    ) -> AsyncGenerator[str | End, None]:
        """The answer piece by piece, then its end; closing the generator ends the work."""
        if self.count >= self._places:
            raise Refusal(
                503,
                "model_busy",
                f"{self.count} answers are asked for at once: try again in a second",
                retry_after=1,
            )
        self.count += 1
        try:
            async with self._slots, aclosing(self._pieces(messages, sampling)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self.count -= 1

    async def _pieces(
        self, messages: list[Message], sampling: Sampling
    ) -> AsyncGenerator[str | End, None]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[str | End | Exception] = asyncio.Queue()
        is_left = threading.Event()

        def put(item: str | End | Exception) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def work() -> None:
            try:
                with closing(stream_answer(self.llm, messages, sampling)) as stream:
                    said: list[str] = []
                    while not is_left.is_set():
                        try:
                            said.append(next(stream))
                        except StopIteration as end:
                            put(End(end.value, self._usage(messages, "".join(said))))
                            return
                        put(said[-1])
            except Exception as error:  # handed to the task that reads
                put(error)

        self._threads.submit(work)
        try:
            while True:
                item = await asyncio.wait_for(queue.get(), self._timeout)
                if isinstance(item, Exception):
                    raise item
                yield item
                if isinstance(item, End):
                    return
        except TimeoutError as error:
            raise Refusal(
                504,
                "upstream_timeout",
                f"the model said nothing for {self._timeout:g} s: ask for less, or raise "
                "--upstream-timeout",
            ) from error
        except GeneratorError as error:
            raise upstream_refusal(error) from error
        except DataError as error:
            raise Refusal(400, "context_length_exceeded", str(error)) from error
        finally:
            is_left.set()

    def _usage(self, messages: list[Message], said: str) -> dict[str, int]:
        prompt = self.llm.count_tokens(messages)
        answer = self.llm.count_tokens([Message(role="assistant", content=said)])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }

    def close(self) -> None:
        """Take no more work."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def upstream_refusal(error: GeneratorError) -> Refusal:
    """What an upstream's error means to the caller."""
    cause = error.__cause__
    status = getattr(cause, "status_code", None)
    if type(cause).__name__ == "APITimeoutError":
        return Refusal(504, "upstream_timeout", f"the model did not answer in time: {cause}")
    if status in PASSED_ON:
        retry = 1 if status == 429 else None
        return Refusal(status, "upstream_refused", str(error), retry_after=retry)
    if status in (401, 403):
        return Refusal(502, "upstream_key", "the model refused the server's own key: set it there")
    return Refusal(502, "upstream_failed", str(error))


class Completions:
    """The routes of the chat, on some verbs and a model."""

    def __init__(self, verbs: Verbs, speaker: Speaker | None, *, remember_answers: bool) -> None:
        self.verbs, self._speaker = verbs, speaker
        self._remember_answers = remember_answers
        self._begin = int(time.time())

    def close(self) -> None:
        """Take no more work."""
        if self._speaker is not None:
            self._speaker.close()

    @property
    def speaker(self) -> Speaker:
        """The model, if there is one."""
        if self._speaker is None:
            raise Refusal(
                503,
                "no_model",
                "the server has no model: start it with --llm (titans serve --help)",
            )
        return self._speaker

    def router(self) -> APIRouter:
        """The routes."""
        routes = APIRouter(prefix="/v1", tags=["chat"], dependencies=[Depends(BEARER)])

        @routes.get("/models", response_model=Models)
        async def models(who: Who) -> Any:
            """The models that can be asked."""
            who.need("read")
            names = [] if self._speaker is None else [self._speaker.llm.name, ALIAS]
            kind = {"object": "model", "created": self._begin, "owned_by": "titans"}
            return {"object": "list", "data": [{"id": name, **kind} for name in names]}

        @routes.post(
            "/chat/completions",
            response_model=Completion,
            responses={
                200: {"content": {EVENTS: {"schema": {"type": "string"}}}},
                502: {"model": s.ErrorBody, "description": "the model failed"},
                504: {"model": s.ErrorBody, "description": "the model did not answer in time"},
            },
        )
        async def chat(
            request: Request,
            body: ChatRequest,
            who: Who,
            x_titans_scope: Annotated[
                str | None, Header(min_length=1, description="whose memory; else `user`")
            ] = None,
        ) -> Any:
            """Answer the last message with the memory's help, and remember both."""
            turn = _Turn(self, who, x_titans_scope or body.user, body)
            if not body.stream:
                return await unless_left(request, turn.completion())
            events = turn.events()
            # An error before the first piece is an error of the request, not of the stream.
            first = await unless_left(request, anext(events))
            return StreamingResponse(_joined(first, events), media_type=EVENTS)

        return routes

    async def open(self, turn: "_Turn") -> OpenTurn:
        """Remember what the user said, and recall."""
        metadata = stamp(turn.caller, None)

        def work(memory: TextMemory) -> OpenTurn:
            return open_turn(
                memory,
                turn.text,
                history=turn.history,
                speaker=turn.speaker,
                system=turn.system,
                metadata=metadata,
                only=turn.only,
            )

        return await self.verbs.call(turn.scope, work)

    async def end(self, turn: "_Turn", opened: OpenTurn, said: str) -> Record | None:
        """Remember the answer: it is as trusted as everything that it rests on."""
        if not self._remember_answers:
            return None
        sources = [(memory.metadata or {}).get(TRUST) for memory in opened.memories]
        trusted = turn.caller.is_trusted and all(trust == "trusted" for trust in sources)
        metadata = stamp(turn.caller, None, is_trusted=trusted)
        return await self.verbs.call(turn.scope, lambda memory: close_turn(memory, said, metadata))


class _Turn:
    """One request: what it asks for, and the answer in both forms."""

    def __init__(
        self, chat: Completions, caller: Caller, asked: str | None, body: ChatRequest
    ) -> None:
        caller.need("read", "write")
        self.chat, self.caller, self.body = chat, caller, body
        self.scope = caller.scope(asked)
        self.llm = chat.speaker.llm
        self._check()
        given = [(m.role, content_of(m)) for m in body.messages]
        system = [text for role, text in given if role in ("system", "developer")]
        self.system = "\n\n".join(system) or SYSTEM
        talk = [Message(role=r, content=t) for r, t in given if r in ("user", "assistant")]
        if not talk or talk[-1]["role"] != "user" or not talk[-1]["content"].strip():
            raise Refusal(400, "invalid", "messages: the last one must be the user's, with a text")
        self.history, self.text = talk[:-1], talk[-1]["content"]
        self.speaker = body.messages[-1].name or "user"
        self.only = None if body.titans is None else only(body.titans.model_dump())
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        self.sampling = Sampling(
            max_tokens=body.max_completion_tokens or body.max_tokens or Sampling.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            stop=tuple(text for text in stop if text),
        )
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.llm.name,
        }

    def _check(self) -> None:
        if self.body.model not in (self.llm.name, ALIAS):
            raise Refusal(
                404,
                "model_not_found",
                f"there is no model of this name: use {self.llm.name!r} or {ALIAS!r}",
            )
        extra = self.body.model_extra or {}
        asked = [name for name in UNSUPPORTED if extra.get(name)]
        shape = extra.get("response_format")
        if isinstance(shape, dict) and shape.get("type", "text") != "text":
            asked.append("response_format")
        if (self.body.n or 1) > 1:
            asked.append("n above 1")
        if asked:
            raise Refusal(
                400, "unsupported", f"{asked[0]} is not supported with a memory: leave it out"
            )

    async def completion(self) -> dict[str, Any]:
        """The answer in one piece."""
        opened = await self.chat.open(self)
        pieces: list[str] = []
        end = End("stop", {})
        async with aclosing(self.chat.speaker.answer(opened.messages, self.sampling)) as answer:
            async for piece in answer:
                if isinstance(piece, End):
                    end = piece
                else:
                    pieces.append(piece)
        said = "".join(pieces)
        kept = await self.chat.end(self, opened, said)
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": end.finish}
        used = self._used(opened, kept)
        whole = {**self._head, "object": "chat.completion", "choices": [choice]}
        return {**whole, "usage": end.usage, "titans": used}

    async def events(self) -> AsyncGenerator[str, None]:
        """The answer as server-sent events; the first says which memories are used."""
        opened = await self.chat.open(self)
        pieces: list[str] = []
        async with aclosing(self.chat.speaker.answer(opened.messages, self.sampling)) as answer:
            async for piece in answer:
                if not pieces:
                    used = self._used(opened, None)
                    yield self._event({"role": "assistant", "content": ""}, titans=used)
                if isinstance(piece, str):
                    pieces.append(piece)
                    yield self._event({"content": piece})
                    continue
                kept = await self.chat.end(self, opened, "".join(pieces))
                used = self._used(opened, kept)
                yield self._event({}, finish=piece.finish, titans=used)
                if self.body.stream_options and self.body.stream_options.include_usage:
                    yield self._event(None, usage=piece.usage)
        yield "data: [DONE]\n\n"

    def _event(
        self, delta: dict[str, str] | None, *, finish: str | None = None, **more: Any
    ) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        choices = [] if delta is None else [choice]
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"

    def _used(self, opened: OpenTurn, kept: Record | None) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "memories": [shown(memory) for memory in opened.memories],
            "remembered": shown(opened.record),
            "answer": None if kept is None else shown(kept),
        }


def content_of(message: ChatMessage) -> str:
    """The text of a message; anything else in it is refused."""
    if message.role in ("tool", "function"):
        raise Refusal(400, "unsupported", "messages of tools are not supported: leave them out")
    if message.content is None:
        raise Refusal(400, "invalid", "messages: each needs a content")
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise Refusal(
                400, "unsupported", "messages hold only texts: leave out images and sound"
            )
    return "".join(part.text or "" for part in message.content)


async def _joined(first: str, events: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    """The stream; an error in the middle of it as OpenAI sends it."""
    async with aclosing(events):
        yield first
        try:
            async for event in events:
                yield event
        except Refusal as refusal:
            yield f"data: {json.dumps(refusal.body(), ensure_ascii=False)}\n\n"


async def unless_left(request: Request, work: Coroutine[Any, Any, R]) -> R:
    """Some work's result; it is cancelled if the client hangs up."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(499, "client_left", "the client hung up: nothing more is done")
        return task.result()
    finally:
        for pending in (task, leaving):
            if not pending.done():
                pending.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)
