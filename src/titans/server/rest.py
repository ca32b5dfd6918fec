"""REST under /v1/memories."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer

from titans.errors import DataError
from titans.files import parse_json
from titans.recall.store import Scalar
from titans.server import schemas as s
from titans.server.caller import Caller
from titans.server.refusal import Refusal
from titans.server.verbs import Verbs

NDJSON = "application/x-ndjson"
BEARER = HTTPBearer(auto_error=False, description="a key of `titans keys make`")


def caller_of(request: Request) -> Caller:
    """Who asks: the gate has found out."""
    return request.state.caller


def scope_of(
    scope: Annotated[
        str | None, Query(min_length=1, description="whose memory; else X-Titans-Scope")
    ] = None,
    x_titans_scope: Annotated[
        str | None, Header(min_length=1, description="whose memory; else that of the key")
    ] = None,
) -> str | None:
    """The scope that is asked for."""
    if scope and x_titans_scope and scope != x_titans_scope:
        raise Refusal(422, "ambiguous", "scope and X-Titans-Scope name two scopes: send one")
    return scope or x_titans_scope


Who = Annotated[Caller, Depends(caller_of)]
Asked = Annotated[str | None, Depends(scope_of)]


def router(verbs: Verbs) -> APIRouter:
    """The routes on some verbs."""
    routes = APIRouter(prefix="/v1", tags=["memories"], dependencies=[Depends(BEARER)])

    @routes.post("/memories", response_model=s.Memory)
    async def remember(body: s.NewMemory, who: Who, asked: Asked) -> Any:
        """Remember a text. The same id and text again change nothing."""
        return (await verbs.remember(who, asked, [body.model_dump()]))[0]

    @routes.post("/memories/batch", response_model=s.Memories)
    async def remember_many(body: s.NewMemories, who: Who, asked: Asked) -> Any:
        """Remember several texts in their order; all are checked before the first is stored."""
        texts = [memory.model_dump() for memory in body.memories]
        return {"memories": await verbs.remember(who, asked, texts)}

    @routes.post("/memories/recall", response_model=s.Answers)
    async def recall(body: s.Query, who: Who, asked: Asked) -> Any:
        """The memories that answer a query best, with what their scores rest on."""
        wanted = body.model_dump(exclude={"query"})
        return {"memories": await verbs.recall(who, asked, body.query, wanted)}

    @routes.get("/memories", response_model=s.Page)
    async def list_memories(
        who: Who,
        asked: Asked,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Query(description="`next` of the page before")] = None,
        newest_first: bool = False,
        before: s.Time | None = None,
        after: s.Time | None = None,
        speaker: str | None = None,
        metadata: Annotated[
            str | None, Query(description="only with these fields and values: a JSON object")
        ] = None,
        writer: str | None = None,
        trust: s.Trust | None = None,
    ) -> Any:
        """The memories of a scope in the order of writing, page by page."""
        found, following = await verbs.page(
            who,
            asked,
            limit=limit,
            cursor=cursor,
            newest_first=newest_first,
            before=before,
            after=after,
            speaker=speaker,
            metadata=_fields(metadata),
            writer=writer,
            trust=trust,
        )
        return {"memories": found, "next": following}

    @routes.get("/memories/id/{id:path}", response_model=s.Memory)
    async def get(id: s.RecordId, who: Who, asked: Asked) -> Any:
        """One memory."""
        return await verbs.get(who, asked, id)

    @routes.patch("/memories/id/{id:path}", response_model=s.Memory)
    async def mark(id: s.RecordId, body: s.Marks, who: Who, asked: Asked) -> Any:
        """Change how long a memory is kept and how much it weighs."""
        return await verbs.mark(who, asked, id, body.model_dump())

    @routes.get("/memories/why/{id:path}", response_model=s.Reasons)
    async def why(
        id: s.RecordId,
        who: Who,
        asked: Asked,
        query: Annotated[
            str | None, Query(min_length=1, description="how the memory answers this")
        ] = None,
    ) -> Any:
        """Why a memory was (not) written, what it updates, and how it answers a query."""
        return await verbs.why(who, asked, id, query)

    @routes.delete("/memories/id/{id:path}", response_model=s.Forgotten)
    async def forget_one(id: s.RecordId, who: Who, asked: Asked) -> Any:
        """Forget one memory for good."""
        return await verbs.forget(who, asked, id=id)

    @routes.post("/memories/forget", response_model=s.Forgotten)
    async def forget(body: s.Forget, who: Who, asked: Asked) -> Any:
        """Forget one memory, those that are wanted, or the scope; or see what would go."""
        return await verbs.forget(who, asked, **body.model_dump())

    @routes.post("/memories/expire", response_model=s.Forgotten)
    async def expire(body: s.Expire, who: Who, asked: Asked) -> Any:
        """Forget for good what has expired; what is pinned stays."""
        return await verbs.expire(who, asked, body.before)

    @routes.get("/memories/summary", response_model=s.Summary)
    async def summary(
        who: Who,
        asked: Asked,
        count: Annotated[int, Query(ge=1, le=100, description="how many of each")] = 5,
    ) -> Any:
        """The most surprising, most recalled and most updated memories."""
        return await verbs.summary(who, asked, count)

    @routes.get("/memories/stats", response_model=s.Stats)
    async def stats(who: Who, asked: Asked) -> Any:
        """What a scope holds and how surprised it was."""
        return await verbs.stats(who, asked)

    @routes.get(
        "/memories/export",
        response_class=StreamingResponse,
        responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}},
    )
    async def export(who: Who, asked: Asked) -> Response:
        """A scope as JSON lines, which `import` and `titans memory import` read."""
        lines = await verbs.export(who, asked)

        def blocks() -> Iterator[str]:
            for first in range(0, len(lines), 1000):
                yield "".join(lines[first : first + 1000])

        named = {"Content-Disposition": 'attachment; filename="memories.jsonl"'}
        return StreamingResponse(blocks(), media_type=NDJSON, headers=named)

    @routes.post(
        "/memories/import",
        response_model=s.Imported,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    NDJSON: {
                        "schema": {"type": "string"},
                        "example": '{"text": "My dog is called Rex.", "speaker": "Ann"}\n',
                    }
                },
            }
        },
    )
    async def load(request: Request, who: Who, asked: Asked) -> Any:
        """Remember every line of a file of JSON lines; lines that are there change nothing."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != NDJSON:
            raise Refusal(422, "invalid", f"send JSON lines with Content-Type: {NDJSON}")
        try:
            lines = (await request.body()).decode().split("\n")
        except UnicodeDecodeError as error:
            raise Refusal(422, "invalid", f"the file is not UTF-8 at byte {error.start}") from error
        return {"imported": await verbs.load(who, asked, lines)}

    @routes.get("/scopes", response_model=s.Scopes)
    async def scopes(who: Who) -> Any:
        """The scopes that the key covers; needs the right `admin`."""
        return {"scopes": await verbs.scopes(who)}

    return routes


def _fields(text: str | None) -> dict[str, Scalar] | None:
    """The fields of metadata that a query asks for."""
    if text is None:
        return None
    try:
        value = parse_json(text, "metadata")
    except DataError as error:
        raise Refusal(422, "invalid", str(error)) from error
    if not isinstance(value, dict):
        raise Refusal(422, "invalid", 'metadata must be a JSON object like {"topic": "dogs"}')
    return value
