"""Any operations on two scopes, in any order, with crashes and second handles: the store says at
every moment what a plain dictionary says that has done the same."""

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from soak.victims import Acknowledge, kill_while
from support.postgres import new_place
from titans.errors import DataError, StoreError
from titans.recall import RecallConfig, TextMemory, import_records
from titans.recall.store.postgres import PostgresStore
from titans.recall.store.rows import Answer
from titans.recall.upkeep import find_damage

CONFIG = RecallConfig(encoder="hashing:16", snapshot_every=3)
SCOPES = ("ann", "bob")
IDS = tuple("abcdefg")
TEXTS = (
    *("my dog is called Rex", "my dog is called Max now", "I live in Oslo", "I moved to Rome"),
    *("größe and max_token", "the code is 4711", "The code is 4711", "a b", "?", "x" * 300),
)
SPEAKERS = (None, "Ann", "Łukasz")


class Said(NamedTuple):
    """A record as the dictionary has it."""

    text: str
    speaker: str | None
    metadata: dict[str, int] | None


Model = dict[str, dict[str, Said]]
scopes, ids, handles = st.sampled_from(SCOPES), st.sampled_from(IDS), st.integers(0, 1)
said = st.builds(
    Said,
    st.sampled_from(TEXTS),
    st.sampled_from(SPEAKERS),
    st.none() | st.fixed_dictionaries({"n": st.integers(0, 2)}),
)


class Memories(RuleBasedStateMachine):
    """Two handles for each of two scopes of one store, and a dictionary."""

    def new_place(self) -> str:
        """Where an empty store may be."""
        return str(self.folder / "m.db")

    @initialize()
    def begin(self) -> None:
        """An empty store."""
        self.folder = Path(tempfile.mkdtemp())
        self.place = self.new_place()
        self.model: Model = {scope: {} for scope in SCOPES}
        self.persistent: dict[str, list[str]] = {scope: [] for scope in SCOPES}
        self.open: dict[tuple[str, int], TextMemory] = {}

    def memory(self, scope: str, handle: int) -> TextMemory:
        """A handle of a scope; it stays open."""
        key = (scope, handle)
        if key not in self.open:
            self.open[key] = TextMemory(self.place, scope, CONFIG)
        return self.open[key]

    @rule(scope=scopes, handle=handles, id=ids, new=said)
    def remember(self, scope: str, handle: int, id: str, new: Said) -> None:
        """A record is stored once; another text under its id is refused."""
        known = self.model[scope].get(id)
        try:
            record = self.memory(scope, handle).remember(
                new.text, speaker=new.speaker, metadata=new.metadata, id=id
            )
        except DataError:
            assert known is not None and known.text != new.text
        else:
            assert record.is_new == (known is None)
            assert known is None or known.text == new.text
            self.model[scope].setdefault(id, new)

    @rule(scope=scopes, handle=handles, items=st.lists(st.tuples(ids, said), max_size=4))
    def load(self, scope: str, handle: int, items: list[tuple[str, Said]]) -> None:
        """An import stores its lines up to the first that contradicts a record."""
        lines = [json.dumps({"id": id, **new._asdict()}) for id, new in items]
        wanted, is_refused = dict(self.model[scope]), False
        for id, new in items:
            if wanted.setdefault(id, new).text != new.text:
                is_refused = True
                break
        try:
            import_records(self.memory(scope, handle), lines)
        except DataError:
            assert is_refused
        else:
            assert not is_refused
        self.model[scope] = wanted

    @rule(scope=scopes, handle=handles, id=ids)
    def forget(self, scope: str, handle: int, id: str) -> None:
        """A record goes, or there is none."""
        try:
            self.memory(scope, handle).forget(id)
        except DataError:
            assert id not in self.model[scope]
        else:
            del self.model[scope][id]

    @rule(scope=scopes, handle=handles, speaker=st.sampled_from(SPEAKERS[1:]))
    def forget_speaker(self, scope: str, handle: int, speaker: str) -> None:
        """All that somebody said goes."""
        records = self.model[scope]
        gone = [id for id, record in records.items() if record.speaker == speaker]
        assert self.memory(scope, handle).forget(speaker=speaker).records == len(gone)
        self.model[scope] = {id: record for id, record in records.items() if id not in gone}

    @rule(scope=scopes, gone=scopes, handle=handles)
    def forget_scope(self, scope: str, gone: str, handle: int) -> None:
        """A whole scope goes, through a handle of any scope."""
        try:
            self.memory(scope, handle).forget(scope=gone)
        except DataError:
            assert not self.model[gone] and not self.persistent[gone]
        self.model[gone], self.persistent[gone] = {}, []

    @rule(scope=scopes, handle=handles, texts=st.lists(st.sampled_from(TEXTS), max_size=2))
    def persist(self, scope: str, handle: int, texts: list[str]) -> None:
        """The texts of every prompt are replaced."""
        self.memory(scope, handle).persistent_texts = texts
        self.persistent[scope] = texts

    @rule(scope=scopes, handle=handles, number=st.integers(0, 6), metadata=st.booleans())
    def ask(self, scope: str, handle: int, number: int, metadata: bool) -> None:
        """All records of the scope are recalled, or those with a field; none of another scope."""
        wanted = {"n": 1} if metadata else None
        found = self.memory(scope, handle).recall(TEXTS[number], 99, metadata=wanted)
        ids = {name for one in found for name in (one.id, *one.duplicates)}
        assert all(self.model[scope][one.id].text == one.text for one in found)
        if not metadata:
            assert ids == set(self.model[scope])
        else:
            assert all((self.model[scope][one.id].metadata or {}).get("n") == 1 for one in found)

    @rule(scope=scopes, handle=handles)
    def reopen(self, scope: str, handle: int) -> None:
        """A handle is closed; the next use opens it."""
        if (memory := self.open.pop((scope, handle), None)) is not None:
            memory.close()

    @rule(scope=scopes, handle=handles, id=ids, new=said, after=st.integers(1, 40))
    def fail(self, scope: str, handle: int, id: str, new: Said, after: int) -> None:
        """A write fails in the middle: nothing of it is there, and the handle goes on."""
        if id in self.model[scope]:
            return
        memory = self.memory(scope, handle)
        self.disturb(memory, after)
        try:
            memory.remember(new.text, speaker=new.speaker, metadata=new.metadata, id=id)
        except StoreError:
            pass
        else:
            self.model[scope][id] = new
        finally:
            self.leave_alone(memory)

    def disturb(self, memory: TextMemory, after: int) -> None:
        """Let a store fail after so many steps."""
        looks = iter(range(after))
        # SQLite asks again and again whether to stop.
        memory.store.db.set_progress_handler(  # type: ignore[attr-defined]
            lambda: int(next(looks, None) is None), 50
        )

    def leave_alone(self, memory: TextMemory) -> None:
        """Let it work again."""
        memory.store.db.set_progress_handler(None, 0)  # type: ignore[attr-defined]

    @rule(scope=scopes, id=ids, new=said, seed=st.integers(0, 99), forgets=st.booleans())
    def crash(self, scope: str, id: str, new: Said, seed: int, forgets: bool) -> None:
        """A process is killed while it writes or forgets: it is done, or it was never begun."""
        known = self.model[scope].get(id)
        if forgets == (known is None):
            return

        def work(acknowledge: Acknowledge) -> None:
            with TextMemory(self.place, scope, CONFIG) as memory:
                if forgets:
                    memory.forget(id)
                else:
                    memory.remember(new.text, speaker=new.speaker, metadata=new.metadata, id=id)
                acknowledge("done")

        is_done = bool(kill_while(work, random.Random(seed), seconds=0.03, calls=60))
        is_there = self.memory(scope, 0).get(id) is not None
        if is_done:
            assert is_there == (not forgets)
        if is_there and known is None:
            self.model[scope][id] = new
        if not is_there:
            self.model[scope].pop(id, None)

    @invariant()
    def agrees(self) -> None:
        """Every handle that is open says what the dictionary says."""
        for (scope, _), memory in self.open.items():
            found = {r.id: Said(r.text, r.speaker, r.metadata) for r in memory.records()}
            assert list(found.items()) == list(self.model[scope].items())
            assert memory.persistent_texts == self.persistent[scope]
            for id in IDS:
                one = memory.get(id)
                assert (None if one is None else one.text) == getattr(found.get(id), "text", None)

    def teardown(self) -> None:
        """The store is sound after all of it."""
        try:
            with TextMemory(self.place, "ann", CONFIG) as memory:
                assert not list(find_damage(memory))
        finally:
            for memory in self.open.values():
                memory.close()
            shutil.rmtree(self.folder)


class PostgresMemories(Memories):
    """The same on PostgreSQL."""

    def new_place(self) -> str:
        """The address of a store of its own."""
        return new_place()

    def disturb(self, memory: TextMemory, after: int) -> None:
        """Let the connection break before one of the next statements."""
        store, looks = memory.store, iter(range(after // 2))
        assert isinstance(store, PostgresStore)
        execute = store.execute

        def fail(query: str, *values: object) -> Answer:
            if next(looks, None) is None and store._db is not None:
                store._db.close()
            return execute(query, *values)

        store.execute = fail

    def leave_alone(self, memory: TextMemory) -> None:
        """Let it work again."""
        del memory.store.execute  # type: ignore[attr-defined]


TestPostgresMemories = PostgresMemories.TestCase
TestPostgresMemories.settings = settings(
    max_examples=4, stateful_step_count=25, deadline=None, derandomize=True
)
TestMemories = Memories.TestCase
TestMemories.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, derandomize=True
)
