"""Spans of the text memory, in an exporter of OpenTelemetry's SDK."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from recall.conftest import HASHING
from titans.errors import DataError
from titans.integrations.telemetry import instrument, uninstrument
from titans.recall import AsyncTextMemory, ScriptedGenerator, TextMemory
from titans.server import KeyRing, create_app


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def take(self) -> list[ReadableSpan]:
        """The spans since the last look."""
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    opened = Spans()
    yield opened
    uninstrument()
    opened.provider.shutdown()


def told(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("gen_ai."): value for name, value in (span.attributes or {}).items()}


def test_spans_count_and_hold_nothing_that_was_said(spans: Spans, memory: TextMemory):
    instrument(spans.provider)
    memory.remember("My dog is called Rex.", id="rex")
    memory.remember_many([{"text": "I live in Oslo."}, {"text": "I like tea."}])
    memory.recall("dog", 1)
    memory.turn("Where do I live?", ScriptedGenerator(["In Oslo."]))
    memory.forget("rex")
    with pytest.raises(DataError):
        memory.forget("the secret id")
    found = spans.take()
    assert [(span.name, told(span).get("memory.record.count")) for span in found] == [
        ("create_memory", 1), ("create_memory", 2), ("search_memory", 1), ("search_memory", 3),
        ("create_memory", 1), ("delete_memory", 1), ("delete_memory", None),
    ]  # fmt: skip
    assert told(found[-1])["error.type"] == "DataError" and not found[-1].status.is_ok
    assert all(span.name == told(span)["operation.name"] for span in found)
    everything = " ".join(span.to_json() for span in found)
    for secret in ("Rex", "rex", "dog", "Oslo", "secret", "default", "memory.db"):
        assert secret not in everything
    uninstrument()
    memory.recall("dog")
    assert spans.take() == []


def test_content_on_request(spans: Spans, memory: TextMemory):
    instrument(spans.provider, content=True)
    instrument(spans.provider, content=True)  # twice makes no span within a span
    memory.remember("My dog is called Rex.", id="rex")
    memory.recall("Which dog?", 1)
    create, search = (told(span) for span in spans.take())
    assert json.loads(str(create["memory.records"])) == [
        {"id": "rex", "content": "My dog is called Rex."}
    ]
    assert create["memory.store.id"] == "default"
    assert search["memory.query.text"] == "Which dog?" and "Rex" in str(search["memory.records"])


def test_spans_of_other_threads_have_their_caller_as_parent(spans: Spans, tmp_path: Path):
    instrument(spans.provider)
    tracer = spans.provider.get_tracer("test")

    async def use() -> None:
        async with await AsyncTextMemory.open(tmp_path / "m.db", "ann", HASHING) as memory:
            with tracer.start_as_current_span("asked"):
                await memory.remember("My dog is called Rex.")

    asyncio.run(use())
    inner, outer = spans.take()
    assert inner.parent is not None and inner.parent.span_id == outer.context.span_id


def test_every_door_of_the_server_makes_spans(spans: Spans, tmp_path: Path):
    instrument(spans.provider)
    app = create_app(tmp_path / "m.db", KeyRing(tmp_path / "keys"), None, HASHING)
    with TestClient(app, base_url="http://localhost") as client:
        id = client.post("/v1/memories", json={"text": "My dog is called Rex."}).json()["id"]
        client.post("/v1/memories/recall", json={"query": "dog"})
        client.delete(f"/v1/memories/id/{id}")
    assert [span.name for span in spans.take()] == [
        "create_memory", "search_memory", "delete_memory"
    ]  # fmt: skip
