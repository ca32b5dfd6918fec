"""OpenTelemetry: a span for each time that a text memory remembers, recalls or forgets.

    instrument()  # the global tracer provider

Names and attributes are those of the GenAI conventions for memory. A span has how many records
there were and what went wrong by its type; texts, questions, ids and scopes only with `content`.
"""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider, get_tracer

from titans.recall import TextMemory

OPERATIONS = {
    "remember": "create_memory",
    "remember_many": "create_memory",
    "attend": "search_memory",
    "recall": "search_memory",
    "forget": "delete_memory",
}
"""Method of the text memory -> operation. `attend`, a chat's, remembers the question, too."""
_ORIGINALS: dict[str, Callable[..., Any]] = {}


def instrument(provider: TracerProvider | None = None, *, content: bool = False) -> None:
    """Make spans from now on, in every door to a text memory of this process.

    Args:
        provider: where they go; by default the global provider, as the environment sets it up.
        content: whether spans hold texts, questions, ids and scopes.
    """
    uninstrument()
    tracer = get_tracer("titans", tracer_provider=provider)

    def spanned(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        operation = OPERATIONS[name]

        @functools.wraps(method)
        def run(self: TextMemory, *args: Any, **kwargs: Any) -> Any:
            values: dict[str, Any] = {"gen_ai.operation.name": operation}
            if content:
                values["gen_ai.memory.store.id"] = self.scope
                if operation == "search_memory":
                    values["gen_ai.memory.query.text"] = str(args[0] if args else None)
            with tracer.start_as_current_span(
                operation,
                kind=SpanKind.INTERNAL,
                attributes=values,
                record_exception=False,  # a message may quote a text
                set_status_on_exception=False,
            ) as span:
                try:
                    result = method(self, *args, **kwargs)
                except Exception as error:
                    span.set_attribute("error.type", type(error).__name__)
                    span.set_status(Status(StatusCode.ERROR))
                    raise
                found = _records(result)
                count = result.records if name == "forget" else len(found)
                span.set_attribute("gen_ai.memory.record.count", count)
                if content and found:
                    records = [{"id": record.id, "content": record.text} for record in found]
                    span.set_attribute("gen_ai.memory.records", json.dumps(records))
                return result

        return run

    for name in OPERATIONS:
        _ORIGINALS[name] = getattr(TextMemory, name)
        setattr(TextMemory, name, spanned(name, _ORIGINALS[name]))


def uninstrument() -> None:
    """Make no spans any more."""
    while _ORIGINALS:
        setattr(TextMemory, *_ORIGINALS.popitem())


def _records(result: Any) -> Sequence[Any]:
    """The records among what a method gave back."""
    if isinstance(result, tuple):  # of `attend`: the question, and what was recalled
        return result[1]
    if isinstance(result, list):
        return result
    return [result] if hasattr(result, "text") else []
