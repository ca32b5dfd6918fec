"""The LangGraph store beside `InMemoryStore`, and automatic recall in a real agent."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from recall.conftest import HASHING
from titans.integrations import langgraph
from titans.integrations.langgraph import RecallMiddleware, TitansStore
from titans.recall import TextMemory, load_encoder

ENCODER = load_encoder("hashing:64")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TitansStore]:
    opened = TitansStore(tmp_path / "memory.db", HASHING, encoder=ENCODER)
    yield opened
    opened.close()


NAMESPACES = [("users", "ann"), ("users", "bob"), ("users",), ("docs", "ann", "v1")]
VALUES: list[dict[str, Any]] = [
    {"text": "My dog is called Rex.", "n": 1, "tags": ["dog"]},
    {"text": "The cat sleeps.", "n": 2.5, "deep": {"kind": "cat", "none": None}},
    {"n": 3, "flag": True},
    {},
]
FILTERS: list[dict[str, Any] | None] = [
    None,
    {},
    {"n": 1},
    {"n": {"$eq": 2.5, "$ne": 1}},
    {"text": {"$ne": "The cat sleeps."}},
    {"deep": {"kind": "cat"}},
    {"deep": {"none": None}},
    {"tags": ["dog"]},
    {"flag": None},
]
CONDITIONS = [
    (),
    (MatchCondition("prefix", ("users",)),),
    (MatchCondition("suffix", ("ann",)),),
    (MatchCondition("prefix", ("*", "ann")), MatchCondition("suffix", ("v1",))),
]


def some_operation(draw: random.Random) -> Op:
    namespace, key = draw.choice(NAMESPACES), draw.choice(["a", "b/c", "key: ü"])
    some = {"limit": draw.randint(0, 4), "offset": draw.randint(0, 3)}
    reads: list[Op] = [
        GetOp(namespace, key),
        SearchOp(draw.choice([(), ("users",), ("docs",), ("no",)])),
        SearchOp(draw.choice(NAMESPACES), draw.choice(FILTERS), limit=20),
        ListNamespacesOp(draw.choice(CONDITIONS), draw.choice([None, 1, 2]), **some),
    ]
    return draw.choice([*reads, *[PutOp(namespace, key, draw.choice([*VALUES, None]))] * 3])


def plain(result: Any) -> Any:
    """A result without its times, searches without their order: no query gives none."""
    if isinstance(result, list):
        return sorted(map(plain, result), key=repr)
    return result if result is None or isinstance(result, tuple) else (
        result.namespace, result.key, repr(sorted(result.value.items())), type(result)
    )  # fmt: skip


def forget_empty_namespaces(store: InMemoryStore) -> None:
    """`InMemoryStore` lists namespaces that were only looked at."""
    for namespace in [name for name, items in store._data.items() if not items]:
        del store._data[namespace]


@pytest.mark.parametrize("seed", range(2))
def test_it_answers_as_the_store_of_langgraph(store: TitansStore, seed: int):
    draw, theirs = random.Random(seed), InMemoryStore()
    for _ in range(40):
        batch = [some_operation(draw) for _ in range(draw.choice([1, 1, 3]))]
        # A look makes a namespace of theirs, which a later operation of the batch would list.
        if not any(isinstance(op, ListNamespacesOp) for op in batch[1:]):
            expected, found = theirs.batch(batch), store.batch(batch)
            assert [plain(r) for r in found] == [plain(r) for r in expected], batch
        forget_empty_namespaces(theirs)


def test_pages_cover_everything_once(store: TitansStore):
    for number in range(7):
        store.put(("docs",), f"d{number}", {"text": f"about number{number}", "n": number})
    for wanted in ({}, {"query": "number3"}, {"filter": {"n": {"$gte": 0}}, "query": "number3"}):
        pages = [store.search(("docs",), limit=3, offset=o, **wanted) for o in (0, 3, 6)]
        found = [item.key for page in pages for item in page]
        assert sorted(found) == [f"d{n}" for n in range(7)]
        assert "query" not in wanted or found[0] == "d3"


def test_search_finds_what_was_meant(store: TitansStore):
    store.put(("u", "ann"), "dog", {"text": "My dog is called Rex."})
    store.put(("u", "ann"), "city", {"text": "I live in Oslo.", "secret": "Rex"}, index=["text"])
    store.put(("u", "bob"), "dog", {"text": "My dog is called Tom."})
    store.put(("u", "bob"), "not", {"text": "dog dog dog"}, index=False)
    (best,) = store.search(("u", "ann"), query="What is the dog called?", limit=1)
    assert best.key == "dog" and best.score is not None and 0 < best.score <= 1
    assert [i.key for i in store.search(("u", "ann"), query="Rex", limit=1)] == ["dog"]
    both = store.search(("u",), query="dog called", limit=10)
    assert {i.namespace for i in both[:2]} == {("u", "ann"), ("u", "bob")}
    assert [i.key for i in both if i.score is None] == ["not"]
    assert [i.score for i in both[:-1]] == sorted((i.score for i in both[:-1]), reverse=True)
    found = store.search(("u",), query="dog", filter={"text": {"$ne": "My dog is called Rex."}})
    assert "Rex" not in {i.value["text"] for i in found} and len(found) == 3


def test_comparisons_are_of_numbers(store: TitansStore):
    for key, value in enumerate([1, 2.5, "3", None, "x", [4]]):
        store.put(("n",), str(key), {"n": value})
    for wanted, keys in (
        ({"$gt": 1}, "1"), ({"$gte": 1}, "01"), ({"$lt": 9, "$gt": 2}, "1"), ({"$lte": 0}, ""),
    ):  # fmt: skip
        found = store.search(("n",), filter={"n": wanted})
        assert "".join(sorted(i.key for i in found)) == keys, wanted


def test_fields_of_the_store(tmp_path: Path):
    store = TitansStore(tmp_path / "m.db", HASHING, encoder=ENCODER, fields=["notes[*].body"])
    store.put(("n",), "a", {"title": "zebra", "notes": [{"body": "apples"}, {"body": "pears"}]})
    assert store.search(("n",), query="pears")[0].score is not None
    assert store._documents(("n",)).get("a").record.text == "apples\npears"  # type: ignore[union-attr]
    store.close()


def test_replaced_values_keep_their_birthday_and_leave_no_trace(tmp_path: Path):
    store = TitansStore(tmp_path / "m.db", HASHING, encoder=ENCODER)
    store.put(("u",), "k", {"text": "the first secret"})
    first = store.get(("u",), "k")
    store.put(("u",), "k", {"text": "the second one"})
    second = store.get(("u",), "k")
    assert first is not None and second is not None
    assert second.created_at == first.created_at < second.updated_at
    store.close()
    reopened = TitansStore(tmp_path / "m.db")
    assert reopened.get(("u",), "k") == second
    assert b"first secret" not in (tmp_path / "m.db").read_bytes()
    reopened.delete(("u",), "k")
    assert reopened.list_namespaces() == []
    reopened.close()


def test_two_stores_on_one_file(tmp_path: Path, store: TitansStore):
    other = TitansStore(tmp_path / "memory.db", HASHING, encoder=ENCODER)
    for number, writer in enumerate([store, other, store, other, other, store]):
        writer.put(("u",), "k", {"n": number})
        for reader in (store, other):
            item = reader.get(("u",), "k")
            assert item is not None and item.value == {"n": number}
    other.close()


@pytest.mark.parametrize("crash", ["remember", "forget"])
def test_a_crash_leaves_the_old_value_or_the_new_one(
    store: TitansStore, monkeypatch: pytest.MonkeyPatch, crash: str
):
    store.put(("u",), "k", {"n": 1})
    with monkeypatch.context() as broken:
        broken.setattr(TextMemory, crash, lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.put(("u",), "k", {"n": 2})
    held = {"n": 1 if crash == "remember" else 2}
    assert [i.value for i in store.search(("u",))] == [held]
    assert store.get(("u",), "k").value == held  # type: ignore[union-attr]
    store.put(("u",), "k", {"n": 3})
    assert [i.value for i in store.search(("u",))] == [{"n": 3}]
    assert len(store._documents(("u",)).memory.records()) == 1
    store.delete(("u",), "k")
    assert store._documents(("u",)).memory.records() == []


def test_wrong_use_is_refused_as_by_langgraph(store: TitansStore):
    with pytest.raises(NotImplementedError, match="TTL"):
        store.put(("u",), "k", {"n": 1}, ttl=5)
    for namespace in [(), ("a.b",), ("",)]:
        with pytest.raises(ValueError, match=r"[Nn]amespace"):
            store.put(namespace, "k", {"n": 1})
    with pytest.raises(ValueError, match="cannot contain periods"):
        store.batch([GetOp(("a.b",), "k")])
    store.put(("u",), "k", {"n": 1})
    with pytest.raises(ValueError, match="'\\$in' is unknown"):
        store.search(("u",), filter={"n": {"$in": [1]}})


def test_more_namespaces_than_stay_open(store: TitansStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(langgraph, "OPEN_NAMESPACES", 2)
    for number in range(4):
        store.put(("many", str(number)), "k", {"n": number})
    assert len(store._open) == 2 and len(store.list_namespaces(prefix=("many",))) == 4
    assert store.get(("many", "0"), "k").value == {"n": 0}  # type: ignore[union-attr]


def test_the_event_loop_goes_on(store: TitansStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TitansStore, "_put", lambda *_: time.sleep(0.2))

    async def use() -> int:
        ticks = 0
        task = asyncio.create_task(store.aput(("u",), "k", {"n": 1}))
        while not task.done():
            ticks += 1
            await asyncio.sleep(0.01)
        return ticks

    assert asyncio.run(use()) > 5


class Model(GenericFakeChatModel):
    """Answers as told, and keeps what it was shown."""

    shown: list[list[BaseMessage]] = []  # noqa: RUF012

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.shown.append(messages)
        return super()._generate(messages, *args, **kwargs)


def said(*texts: str) -> Model:
    return Model(messages=iter([AIMessage(text) for text in texts]), shown=[])


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_recalls_by_itself(tmp_path: Path, is_async: bool):
    model = said("Nice name.", "It is Rex.", "No idea.")
    with (
        TextMemory(tmp_path / "m.db", "ann", HASHING) as ann,
        TextMemory(tmp_path / "m.db", "bob", HASHING) as bob,
    ):
        middleware = RecallMiddleware(lambda runtime: {"ann": ann, "bob": bob}[runtime.context])
        agent = create_agent(
            model,
            middleware=[middleware],
            system_prompt="Be brief.",
            checkpointer=InMemorySaver(),
        )

        def ask(text: str, user: str, thread: str) -> dict[str, Any]:
            config: Any = {"configurable": {"thread_id": thread}}
            given: Any = {"messages": [{"role": "user", "content": text}]}
            if is_async:
                return asyncio.run(agent.ainvoke(given, config, context=user))  # type: ignore[arg-type]
            return agent.invoke(given, config, context=user)  # type: ignore[arg-type]

        ask("My dog is called <b>Rex</b>.", "ann", "1")
        done = ask("What is the dog called?", "ann", "2")
        ask("What is the dog called?", "bob", "3")
        system, user = model.shown[1]
        assert "dog is called &lt;b&gt;Rex" in user.text and user.text.endswith("dog called?")
        assert system.text.startswith("Be brief. Lines inside <memory>")
        assert done["messages"][0].text == "What is the dog called?"
        assert "titans_memories" not in done
        assert [r.text for r in ann.records()][1] == "Nice name."
        assert [r.speaker for r in ann.records()] == ["user", "assistant"] * 2
        assert "Rex" not in model.shown[2][1].text and len(bob.records()) == 2
