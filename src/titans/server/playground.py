"""A model with a neural memory reads a text while one looks on: the playground of the page."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from titans.server import schemas as s
from titans.server.refusal import Refusal
from titans.server.rest import BEARER, NDJSON, Who

if TYPE_CHECKING:  # a server without a playground starts without the models
    from titans.analysis.subject import Subject
    from titans.analysis.watching import Call
    from titans.models.cache import TitansCache

STEP = 8
"""Tokens read between two looks."""
LONGEST = 20_000
"""Characters of a text."""
GOES_ON = 80
"""Tokens that the model adds."""
TEMPERATURE = 0.5


class Reading(s.Given):
    """What to read, and from where to go on."""

    text: str = Field(min_length=1, max_length=LONGEST)
    prompt: str = Field("", max_length=1000, description="the model goes on from here; or empty")


class ReadingModel(BaseModel):
    """Which model reads."""

    model: str


class Playground:
    """The routes; `subject` is the model that reads, None if there is none."""

    def __init__(self, subject: "Subject | None") -> None:
        self._subject = subject
        self._thread = ThreadPoolExecutor(1, "titans-playground")
        self._is_busy = False

    def close(self) -> None:
        """Take no more work."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def subject(self) -> "Subject":
        """The model, if there is one."""
        if self._subject is None:
            raise Refusal(
                404,
                "no_model",
                "there is no model to read: start the server with --playground CHECKPOINT, for "
                "example checkpoints/bytes-mac of the project",
            )
        return self._subject

    def router(self) -> APIRouter:
        """The routes."""
        routes = APIRouter(prefix="/v1", tags=["playground"], dependencies=[Depends(BEARER)])

        @routes.get("/playground", response_model=ReadingModel)
        async def model(who: Who) -> Any:
            """Which model reads."""
            who.need("read")
            return {"model": self.subject.name}

        @routes.post(
            "/playground",
            response_class=StreamingResponse,
            responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}},
        )
        async def read(body: Reading, who: Who) -> StreamingResponse:
            """Read a text token by token: surprise, gates and writes as they happen, as JSON
            lines; then go on from the prompt, with what was read and without it.
            """
            who.need("read")
            subject = self.subject
            if self._is_busy:
                raise Refusal(
                    503, "playground_busy", "another text is being read: wait", retry_after=5
                )
            return StreamingResponse(self._lines(subject, body), media_type=NDJSON)

        return routes

    async def _lines(self, subject: "Subject", body: Reading) -> AsyncGenerator[str, None]:
        self._is_busy = True
        steps = read_and_go_on(subject, body.text, body.prompt)
        loop = asyncio.get_running_loop()
        step: asyncio.Future[dict[str, Any] | None] | None = None
        try:
            while True:
                step = loop.run_in_executor(self._thread, next, steps, None)
                event = await asyncio.shield(step)
                if event is None:
                    return
                yield json.dumps(event, ensure_ascii=False) + "\n"
        finally:
            # The step under way is not interrupted.
            if step is not None and not step.done():
                step.add_done_callback(lambda _: self._free())
            else:
                self._free()

    def _free(self) -> None:
        self._is_busy = False


def read_and_go_on(subject: "Subject", text: str, prompt: str) -> Iterator[dict[str, Any]]:
    """Read a text some tokens at a time; then what the model adds to a beginning.

    `said` is what it adds after it read the text, `without` what it would add if it had not.
    """
    from titans.analysis.text import tokenize
    from titans.analysis.watching import memories, watching

    found, cache = memories(subject.model), subject.model.new_cache(1)
    seen: list[float] = []
    for passage in tokenize(iter([text]), subject.tokenizer):
        for first in range(0, len(passage.ids), STEP):
            ids = passage.ids[first : first + STEP][None]
            with torch.no_grad(), watching(found):
                subject.model(ids, past_key_values=cache)
                calls = [watched.take()[0] for watched in found]
            tokens = _describe(calls, passage.texts[first : first + STEP])
            seen += [token["surprise"] for token in tokens]
            yield {"tokens": tokens, "low": min(seen), "high": max(seen)}
    if prompt:
        for name, before in (("said", cache), ("without", subject.model.new_cache(1))):
            for piece in _go_on(subject, prompt, before):
                yield {name: piece}


def _describe(
    calls: "list[list[Call]]", texts: tuple[str, ...] | list[str]
) -> list[dict[str, Any]]:
    """What the memories of all layers did with some tokens, on average."""

    def mean(pick: Callable[["Call"], torch.Tensor]) -> list[float]:
        layers = [torch.cat([pick(c)[0] for c in layer]).float().mean(-1) for layer in calls]
        return torch.stack(layers).mean(0).tolist()

    columns = {
        "loss": mean(lambda c: c.trace.surprise.loss),
        "surprise": mean(lambda c: c.trace.surprise.grad_norm),
        "step_size": mean(lambda c: c.trace.gates.step_size),
        "forget_gate": mean(lambda c: c.trace.gates.forget_gate),
        "momentum_decay": mean(lambda c: c.trace.gates.momentum_decay),
        "written": mean(lambda c: c.trace.written),
    }
    rows = zip(*columns.values(), strict=True)
    return [
        {"text": text, **dict(zip(columns, row, strict=True))}
        for text, row in zip(texts, rows, strict=True)
    ]


@torch.no_grad()
def _go_on(subject: "Subject", prompt: str, cache: "TitansCache") -> Iterator[str]:
    """What the model adds, piece by piece; drawn with the same random numbers every time."""
    from titans.analysis.text import tokenize

    generator = torch.Generator().manual_seed(0)
    (passage,) = tokenize(iter([prompt]), subject.tokenizer)
    ids, made, shown = passage.ids[None], [], ""
    for _ in range(GOES_ON):
        logits = subject.model(ids, past_key_values=cache).logits[0, -1].float()
        drawn = torch.multinomial((logits / TEMPERATURE).softmax(-1), 1, generator=generator)
        ids = drawn[None]
        made.append(int(drawn))
        text = str(subject.tokenizer.decode(made, skip_special_tokens=True))
        # Half of a character is not text yet.
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
