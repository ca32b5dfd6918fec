"""The application: every door of the server on one port.

`create_app` puts it together; `rest` has the routes under /v1/memories.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from mcp.server.transport_security import TransportSecuritySettings
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from titans.files import package_version
from titans.recall import Encoder, RecallConfig, TextGenerator, TextMemory
from titans.server import page, rest
from titans.server.completions import Completions, Speaker
from titans.server.config import ServerConfig
from titans.server.gate import Gate, Metrics
from titans.server.hub import Hub
from titans.server.keys import KeyRing
from titans.server.playground import Playground
from titans.server.refusal import Refusal
from titans.server.schemas import ErrorBody, Health
from titans.server.tools import make_tools
from titans.server.verbs import Verbs

if TYPE_CHECKING:
    from titans.analysis.subject import Subject

log = logging.getLogger("titans.server")
DESCRIPTION = (
    "Text memory for conversations: it remembers what was said, finds it again, and forgets it "
    "for good. A key of `titans keys make` goes into `Authorization: Bearer`; the scope into "
    "`X-Titans-Scope`. Every error says what to do."
)
ERRORS = {
    400: "the request cannot be read",
    401: "no key, or one that is not known",
    403: "the key lacks a right or the scope",
    404: "there is nothing of this name",
    413: "the body is too large",
    422: "a value cannot be meant",
    429: "too many requests; Retry-After says when",
    503: "too much is waiting; Retry-After says when",
}


@dataclass(frozen=True)
class Parts:
    """What the doors share."""

    config: ServerConfig
    verbs: Verbs
    metrics: Metrics


def create_app(
    place: str | Path,
    ring: KeyRing,
    server: ServerConfig | None = None,
    config: RecallConfig | None = None,
    *,
    encoder: Encoder | None = None,
    llm: TextGenerator | None = None,
    remember_answers: bool = True,
    playground: "Subject | None" = None,
) -> ASGIApp:
    """A server's application (ASGI) on a store.

    Args:
        place: the store, as `TextMemory` takes it.
        ring: the keys.
        config: settings of the text memory.
        encoder: loaded already; by default the one that the store or `config` names.
        llm: the model that answers in chats.
        remember_answers: whether its answers are remembered.
        playground: the model that reads texts on the page.
    """
    server = server or ServerConfig()
    if encoder is None:
        # Opening it once makes a new store and finds what cannot work before anybody calls.
        with TextMemory(place, config=config) as memory:
            encoder = memory.encoder
    hub = Hub(place, config, encoder, queue=server.queue, open_scopes=server.open_scopes)
    metrics = Metrics()
    metrics.gauge("titans_calls_pending", "Calls that wait or run", lambda: hub.pending)
    metrics.gauge("titans_scopes_open", "Scopes in memory", lambda: hub.num_open)
    parts = Parts(server, Verbs(hub), metrics)

    speaker = None
    if llm is not None:
        speaker = Speaker(
            llm, answers=server.answers, waiting=server.queue, timeout=server.upstream_timeout
        )
    tools = make_tools(parts.verbs)
    # Every request brings its own key, so there are no sessions that another key could enter. The
    # gate checks host and origin.
    tools_app = tools.streamable_http_app(
        streamable_http_path="/mcp",
        stateless_http=True,
        json_response=True,
        max_request_body_size=server.body_limit,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    chat = Completions(parts.verbs, speaker, remember_answers=remember_answers)

    reader = Playground(playground)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with tools.session_manager.run():
            yield
        chat.close()
        reader.close()
        await hub.close()

    app = FastAPI(
        title="Titans text memory",
        version=package_version() or "0",
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # its page loads code of other sites
        redoc_url=None,
        responses={
            status: {"model": ErrorBody, "description": text} for status, text in ERRORS.items()
        },
        redirect_slashes=False,
    )
    _add_errors(app)
    _add_operation(app, parts)
    app.include_router(rest.router(parts.verbs))
    app.include_router(chat.router())
    app.include_router(reader.router())
    app.include_router(page.router())
    app.router.routes.extend(tools_app.routes)
    inner: ASGIApp = app
    if server.cors:
        inner = CORSMiddleware(
            app, allow_origins=server.cors, allow_methods=["*"], allow_headers=["*"]
        )
    return Gate(inner, server, ring, metrics)


def _add_errors(app: FastAPI) -> None:
    """Every error in one shape."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return error.response()

    async def unreadable(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        status = 400 if first["type"] in ("json_invalid", "missing_content_type") else 422
        return Refusal(status, "invalid", f"{place}: {first['msg']}").response()

    async def other(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = Refusal(error.status_code, "http_error", str(error.detail)).response()
        answer.headers.update(error.headers or {})
        return answer

    async def failed(_: Request, error: Exception) -> Response:
        # The type only: a message may quote a text.
        log.error("unexpected %s", type(error).__name__)
        return Refusal(500, "failed", "the server failed: its log says where").response()

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(RequestValidationError, unreadable)
    app.add_exception_handler(HTTPException, other)
    app.add_exception_handler(Exception, failed)


def _add_operation(app: FastAPI, parts: Parts) -> None:
    @app.get("/health", tags=["operation"])
    async def health() -> Health:
        """Whether the server works."""
        return Health(status="ok", version=package_version())

    @app.get(
        "/metrics",
        tags=["operation"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(request: Request) -> Response:
        """Counters for Prometheus; needs the right `admin`."""
        request.state.caller.need("admin")
        content = generate_latest(parts.metrics.registry)
        return Response(content, media_type=CONTENT_TYPE_LATEST)
