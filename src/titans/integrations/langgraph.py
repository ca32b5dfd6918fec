"""LangGraph on the text memory: a `BaseStore` in one file, and automatic recall for agents.

store = TitansStore("memory.db")
agent = create_agent(model, tools, store=store, middleware=[RecallMiddleware(memory)])
"""

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.channels import UntrackedValue
from langgraph.runtime import Runtime
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    get_text_at_path,
    validate_op_namespace,
)

from titans.integrations.documents import Document, Documents
from titans.recall import Encoder, Message, RecallConfig, TextMemory
from titans.recall.chat import close_turn, open_turn
from titans.recall.prompt import RULES

Namespace = tuple[str, ...]
SCOPE = "langgraph:"
"""What the scope of a namespace begins with; its labels follow, joined by dots."""
OPEN_NAMESPACES = 64
"""Namespaces kept in memory; the one that was not used longest is closed for another."""
FILTERED = 1000
"""Answers that a filter is applied to."""
COMPARISONS = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
NO_TEXT = "-"
"""The text of an item that is not searched."""


class TitansStore(BaseStore):
    """A LangGraph store on a text memory: each namespace is a scope.

    Search finds items by words, meaning, speakers and dates, without an embedding service. A time
    to live is refused, as `InMemoryStore` does.

    Args:
        place: the store, as `TextMemory` takes it.
        fields: which parts of a value are searched, as paths ("text", "notes[*].body"); by default
            all texts in it.
    """

    def __init__(
        self,
        place: str | Path,
        config: RecallConfig | None = None,
        *,
        encoder: Encoder | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        self._place, self._config, self._fields = place, config, fields
        self._lock = threading.RLock()
        self._open: OrderedDict[Namespace, TextMemory] = OrderedDict()
        # Names the scopes, and holds the encoder for all.
        self._root = TextMemory(place, SCOPE, config, encoder=encoder)

    def close(self) -> None:
        """Let go of the store's file."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
            self._root.close()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same in another thread: the event loop goes on."""
        return await asyncio.to_thread(self.batch, list(ops))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: all that read before all that write, of one key the last write."""
        results: list[Result] = []
        puts: dict[tuple[Namespace, str], PutOp] = {}
        with self._lock:
            for op in ops:
                validate_op_namespace(op)
                if isinstance(op, PutOp):
                    puts[op.namespace, op.key] = op
                    results.append(None)
                elif isinstance(op, GetOp):
                    found = self._documents(op.namespace).get(op.key)
                    held = None if found is None else Item(**_values(op.namespace, found))
                    results.append(held)
                elif isinstance(op, SearchOp):
                    results.append(self._search(op))
                else:
                    results.append(self._list_namespaces(op))
            for op in puts.values():
                self._put(op)
        return results

    def _documents(self, namespace: Namespace) -> Documents:
        memory = self._open.get(namespace)
        if memory is None:
            if len(self._open) >= OPEN_NAMESPACES:
                self._open.popitem(last=False)[1].close()
            memory = self._open[namespace] = TextMemory(
                self._place,
                scope_of(namespace),
                self._config,
                encoder=self._root.encoder,
            )
        self._open.move_to_end(namespace)
        return Documents(memory)

    def _put(self, op: PutOp) -> None:
        documents = self._documents(op.namespace)
        if op.value is None:
            documents.delete(op.key)
            return
        value = dict(op.value)
        text = self._text(value, op.index)
        documents.put(op.key, text or NO_TEXT, value)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        end = op.offset + op.limit
        query = (op.query or "").strip()
        scored: list[tuple[float, SearchItem]] = []
        others: list[SearchItem] = []
        for namespace in self._namespaces(op.namespace_prefix):
            documents = self._documents(namespace)
            seen: set[str] = set()
            if query and end > 0:
                # A filter is applied to what was found, so more is looked at.
                for found, score in documents.search(query, FILTERED if op.filter else end):
                    if found.record.text != NO_TEXT and _fits(found.value, op.filter or {}):
                        seen.add(found.key)
                        scored.append((score, _search_item(namespace, found, score)))
            if len(seen) < end:
                others += [
                    _search_item(namespace, found, None)
                    for found in documents.all()
                    if found.key not in seen and _fits(found.value, op.filter or {})
                ]
        best = [item for _, item in sorted(scored, key=lambda pair: -pair[0])]
        return [*best, *others][op.offset : end]

    def _text(self, value: dict[str, Any], index: Any) -> str:
        """What an item is searched by."""
        if index is False:
            return ""
        paths = self._fields if index is None else index
        if paths is None:
            texts = list(_texts(value)) or [json.dumps(value, ensure_ascii=False)]
        else:
            texts = [text for path in paths for text in get_text_at_path(value, path)]
        return "\n".join(texts).strip()

    def _namespaces(self, prefix: Namespace = ()) -> list[Namespace]:
        """The namespaces under a prefix that hold something, sorted."""
        store = self._root.store
        with store.reading():
            names = [name.removeprefix(SCOPE) for name in store.scopes() if name.startswith(SCOPE)]
            found = sorted(tuple(name.split(".")) for name in names)
            found = [name for name in found if name[: len(prefix)] == tuple(prefix)]
            heads = [store.head(scope_of(name)) for name in found]
        return [n for n, head in zip(found, heads, strict=True) if head and head.num_records]

    def _list_namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        conditions = op.match_conditions or ()
        found = [n for n in self._namespaces() if all(_matches(c, n) for c in conditions)]
        if op.max_depth is not None:
            found = sorted({namespace[: op.max_depth] for namespace in found})
        return found[op.offset : op.offset + op.limit]


def scope_of(namespace: Namespace) -> str:
    """The scope that keeps a namespace."""
    return SCOPE + ".".join(namespace)


def _search_item(namespace: Namespace, found: Document, score: float | None) -> SearchItem:
    return SearchItem(**_values(namespace, found), score=score)


def _values(namespace: Namespace, found: Document) -> dict[str, Any]:
    """The arguments of an item."""
    times = {"created_at": found.created, "updated_at": found.record.time}
    return {"namespace": namespace, "key": found.key, "value": found.value, **times}


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value, in their order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is as a filter asks: equal, in all named fields, or by operators ($gt)."""
    if isinstance(wanted, dict):
        if any(name.startswith("$") for name in wanted):
            return all(_compare(value, name, bound) for name, bound in wanted.items())
        return isinstance(value, dict) and all(_fits(value.get(n), w) for n, w in wanted.items())
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(wanted)
            and all(map(_fits, value, wanted))
        )
    return value == wanted


def _compare(value: Any, operator: str, bound: Any) -> bool:
    if operator in ("$eq", "$ne"):
        return (value == bound) is (operator == "$eq")
    if operator not in COMPARISONS:
        raise ValueError(f"filter operator {operator!r} is unknown: use {', '.join(COMPARISONS)}")
    return isinstance(value, int | float) and COMPARISONS[operator](value, bound)


def _matches(condition: MatchCondition, namespace: Namespace) -> bool:
    """Whether a namespace begins or ends with a path, in which * stands for any label."""
    path = condition.path
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return len(part) == len(path) and all(
        p in ("*", label) for p, label in zip(path, part, strict=True)
    )


class RecallState(AgentState):
    """What the middleware keeps during a run, out of checkpoints."""

    titans_memories: NotRequired[Annotated[str, UntrackedValue, PrivateStateAttr]]


class RecallMiddleware(AgentMiddleware[RecallState, Any, Any]):
    """Recall by itself: the agent need not think of a memory tool.

    At the beginning of a run it remembers what the user says and puts what bears on it in front of
    it, as quotations, for the model only; at the end it remembers the answer.

    Args:
        memory: whose memory, or a function that chooses it by the run.
    """

    state_schema = RecallState

    def __init__(
        self,
        memory: TextMemory | Callable[[Runtime[Any]], TextMemory],
        *,
        speaker: str | None = "user",
    ) -> None:
        super().__init__()
        self._memory, self._speaker = memory, speaker

    def _of(self, runtime: Runtime[Any]) -> TextMemory:
        return self._memory if isinstance(self._memory, TextMemory) else self._memory(runtime)

    def before_agent(self, state: RecallState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Remember the user's text, recall what bears on it."""
        *earlier, last = state["messages"]
        if not isinstance(last, HumanMessage) or not last.text.strip():
            return {"titans_memories": ""}
        history: list[Message] = [
            Message(role="assistant" if isinstance(m, AIMessage) else "user", content=m.text)
            for m in earlier
        ]
        memory = self._of(runtime)
        opened = open_turn(memory, last.text, history=history, speaker=self._speaker)
        return {"titans_memories": opened.enriched.removesuffix(last.text)}

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Show the model what was recalled."""
        return handler(_enriched(request))

    def after_agent(self, state: RecallState, runtime: Runtime[Any]) -> None:
        """Remember the answer."""
        last = state["messages"][-1]
        if isinstance(last, AIMessage):
            close_turn(self._of(runtime), last.text)

    async def abefore_agent(
        self, state: RecallState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """The same in another thread."""
        return await asyncio.to_thread(self.before_agent, state, runtime)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Show the model what was recalled."""
        return await handler(_enriched(request))

    async def aafter_agent(self, state: RecallState, runtime: Runtime[Any]) -> None:
        """The same in another thread."""
        await asyncio.to_thread(self.after_agent, state, runtime)


def _enriched(request: ModelRequest[Any]) -> ModelRequest[Any]:
    """A request with the memories in front of what the user said last."""
    memories = request.state.get("titans_memories")
    places = [n for n, m in enumerate(request.messages) if isinstance(m, HumanMessage)]
    if not memories or not places:
        return request
    messages: list[AnyMessage] = list(request.messages)
    content = messages[places[-1]].content
    if isinstance(content, str):
        content = memories + content
    else:
        content = [{"type": "text", "text": memories}, *content]
    messages[places[-1]] = messages[places[-1]].model_copy(update={"content": content})
    told = "" if request.system_message is None else f"{request.system_message.text} "
    return request.override(messages=messages, system_message=SystemMessage(told + RULES))
