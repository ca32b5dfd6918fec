"""What every request passes before anything else: origin, key, limits; and what is counted of it.

Nothing of a text or a key is logged: a line has the route's template, not the path.
"""

import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from titans.server.caller import Caller
from titans.server.config import ServerConfig, is_loopback
from titans.server.keys import KeyRing
from titans.server.refusal import Refusal

log = logging.getLogger("titans.server")
OPEN_PATHS = ("/", "/health", "/openapi.json", "/favicon.ico")
"""Served without a key, as are the files of the page: nothing of a memory is in them."""
ASSETS = "/assets/"
IMPORT_PATH = "/v1/memories/import"


class Metrics:
    """What is counted, for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "titans_requests",
            "Requests by route and status",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "titans_request_seconds",
            "Time until the end of the answer",
            ("method", "route"),
            registry=self.registry,
        )
        self.under_way = Gauge("titans_requests_under_way", "Requests", registry=self.registry)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A value that is asked for when it is looked at."""
        Gauge(name, text, registry=self.registry).set_function(value)


class Gate:
    """The outermost application: lets a request in, or refuses it."""

    def __init__(self, app: ASGIApp, config: ServerConfig, ring: KeyRing, metrics: Metrics) -> None:
        self.app, self.config, self.ring, self.metrics = app, config, ring, metrics
        self._has_keys = bool(ring)
        self._count = 0
        self._buckets: dict[str, tuple[float, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; everything else goes through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = 500
        caller: Caller | None = None

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _harden(message)
            await send(message)

        self._count += 1
        self.metrics.under_way.set(self._count)
        try:
            try:
                headers = Headers(scope=scope)
                caller = self._admit(scope["path"], headers)
                scope.setdefault("state", {})["caller"] = caller
                limit = self._body_limit(scope["path"], headers)
                await self.app(scope, _limited(receive, limit), counted_send)
            except Refusal as refusal:
                await refusal.response()(scope, receive, counted_send)
        finally:
            self._count -= 1
            self.metrics.under_way.set(self._count)
            seconds = time.perf_counter() - begin
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if route != "other" else "other"
            self.metrics.requests.labels(method, route, status).inc()
            self.metrics.seconds.labels(method, route).observe(seconds)
            who = caller.key.id if caller is not None and caller.key is not None else "none"
            log.info("%s %s %d %.0f ms key %s", method, route, status, 1e3 * seconds, who)

    def _admit(self, path: str, headers: Headers) -> Caller:
        self._check_origin(headers)
        if self._count > self.config.concurrency:
            raise Refusal(
                503,
                "server_busy",
                f"{self.config.concurrency} requests are under way: try again in a second",
                retry_after=1,
            )
        if path in OPEN_PATHS or path.startswith(ASSETS):
            return Caller()
        caller = self._caller(headers)
        self._check_rate(caller)
        return caller

    @property
    def needs_key(self) -> bool:
        """Whether calls need a key: not on loopback as long as there was none since the start."""
        self._has_keys = self._has_keys or bool(self.ring)
        return self._has_keys or not self.config.is_local

    def _check_origin(self, headers: Headers) -> None:
        """Keep pages of other sites from calling a server that their visitor can reach."""
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or ""
        if not self.needs_key and not is_loopback(name):
            raise Refusal(
                403,
                "host_forbidden",
                "without keys the server answers only to localhost: make a key (titans keys make)",
            )
        origin = headers.get("origin")
        if origin and origin not in self.config.cors and urlsplit(origin).netloc != host:
            raise Refusal(
                403,
                "origin_forbidden",
                "pages of this origin may not call the server: allow it with --cors ORIGIN",
            )

    def _caller(self, headers: Headers) -> Caller:
        if not self.needs_key:
            return Caller()
        kind, _, token = headers.get("authorization", "").partition(" ")
        key = self.ring.find(token.strip()) if kind.lower() == "bearer" else None
        if key is None:
            raise Refusal(
                401,
                "key_missing" if not token else "key_unknown",
                "send a key as `Authorization: Bearer titans_...`; `titans keys make` makes one",
            )
        return Caller(key)

    def _check_rate(self, caller: Caller) -> None:
        name = "" if caller.key is None else caller.key.id
        now, most = time.monotonic(), max(2 * self.config.rate, 1)
        left, then = self._buckets.get(name, (most, now))
        left = min(left + (now - then) * self.config.rate, most)
        if left < 1:
            wait = int((1 - left) / self.config.rate) + 1
            raise Refusal(
                429,
                "rate_exceeded",
                f"more than {self.config.rate:g} requests per second: wait {wait} s, or raise "
                "--rate",
                retry_after=wait,
            )
        self._buckets[name] = (left - 1, now)

    def _body_limit(self, path: str, headers: Headers) -> int:
        limit = self.config.import_limit if path == IMPORT_PATH else self.config.body_limit
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise _too_large(limit)
        return limit


def _too_large(limit: int) -> Refusal:
    return Refusal(
        413,
        "body_too_large",
        f"the body has more than {limit} bytes: send less at once, or raise --body-limit",
    )


def _limited(receive: Receive, limit: int) -> Receive:
    """The request, up to a number of bytes of its body."""
    read = 0

    async def counted() -> Message:
        nonlocal read
        message = await receive()
        if message["type"] == "http.request":
            read += len(message.get("body", b""))
            if read > limit:
                raise _too_large(limit)
        return message

    return counted


HARDENING: dict[bytes, bytes] = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; "
    b"connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'",
}


def _harden(message: dict[str, Any] | Message) -> None:
    present = {name.lower() for name, _ in message["headers"]}
    message["headers"] = [
        *message["headers"],
        *((name, value) for name, value in HARDENING.items() if name not in present),
    ]
