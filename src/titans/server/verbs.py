"""What callers can ask for. REST, chat, MCP and the page all go through here.

Each verb checks the right and the scope first, and stamps what is remembered with the key that
wrote it: `titans.key` and `titans.trust` in the metadata, which no caller can set.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from titans.errors import DataError, StoreError
from titans.recall import Recalled, Record, TextMemory
from titans.recall.exchange import exporting, importing
from titans.recall.store import Scalar
from titans.server.caller import DEFAULT_SCOPE, Caller
from titans.server.hub import Hub
from titans.server.refusal import Refusal

log = logging.getLogger("titans.server")
R = TypeVar("R")
RESERVED = "titans."
KEY, TRUST = "titans.key", "titans.trust"
"""Fields of the metadata that say who wrote a record."""
WEIGHTS = ("importance", "pinned")
"""What only trusted keys may give a record."""
SHOWN_BEFORE_FORGETTING = 20
WHY_DEPTH = 100
"""Ranks among which `why` looks for a memory."""


class Verbs:
    """The verbs of a server on the scopes of a hub."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def call(self, scope: str, work: Callable[[TextMemory], R]) -> R:
        """Some work on a scope; what goes wrong there as refusals."""
        return await self._explained(self.hub.run(scope, work))

    async def look(self, scope: str, work: Callable[[TextMemory], R]) -> R:
        """Some work on a scope that changes nothing."""
        return await self._explained(self.hub.read(scope, work))

    async def call_in_slices(
        self, scope: str, steps: Callable[[TextMemory], Generator[object, None, R]]
    ) -> R:
        """Long work on a scope, in steps."""
        return await self._explained(self.hub.run_in_slices(scope, steps))

    async def _explained(self, work: Any) -> Any:
        try:
            return await work
        except Refusal:
            raise
        except StoreError as error:
            log.error("store: %s", error)
            raise Refusal(
                503,
                "store_failed",
                "the store cannot do this now; the server's log says why: mend it, then try again",
                retry_after=5,
            ) from error
        except (DataError, ValueError) as error:
            raise Refusal(422, "invalid", str(error)) from error

    async def remember(
        self, caller: Caller, asked: str | None, texts: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Remember texts in their order; all are checked before the first is stored."""
        caller.need("write")
        scope = caller.scope(asked)
        if any(text.get(name) for text in texts for name in WEIGHTS):
            _need_trust(caller)
        stamped = [{**text, "metadata": stamp(caller, text.get("metadata"))} for text in texts]
        found = await self.call(scope, lambda memory: memory.remember_many(stamped))
        return [shown(record) for record in found]

    async def recall(
        self, caller: Caller, asked: str | None, query: str, wanted: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The memories that answer a query best."""
        caller.need("read")
        arguments = dict(wanted)
        arguments["metadata"] = only(arguments)
        scope = caller.scope(asked)
        found = await self.look(scope, lambda memory: memory.recall(query, **arguments))
        return [shown(answer) for answer in found]

    async def page(
        self,
        caller: Caller,
        asked: str | None,
        *,
        limit: int,
        cursor: str | None,
        newest_first: bool,
        **wanted: Any,
    ) -> tuple[list[dict[str, Any]], str | None]:
        """A page of the records, and the cursor of the next one."""
        caller.need("read")
        metadata = only(wanted)
        scope = caller.scope(asked)
        found = await self.look(
            scope,
            lambda memory: memory.records(
                **wanted,
                metadata=metadata,
                newest_first=newest_first,
                limit=limit + 1,
                beyond=cursor,
            ),
        )
        has_more = len(found) > limit
        page = [shown(record) for record in found[:limit]]
        return page, page[-1]["id"] if has_more else None

    async def get(self, caller: Caller, asked: str | None, id: str) -> dict[str, Any]:
        """One record."""
        caller.need("read")
        return shown(await self.look(caller.scope(asked), lambda memory: _found(memory, id)))

    async def why(
        self, caller: Caller, asked: str | None, id: str, query: str | None
    ) -> dict[str, Any]:
        """Why a record was (not) written, what it updates, and how it answers a query."""
        caller.need("read")

        def work(memory: TextMemory) -> tuple[Record, list[Record], list[Recalled]]:
            record = _found(memory, id)
            answers = memory.recall(query, WHY_DEPTH, explain=True) if query else []
            return record, memory.history(id), answers

        record, statements, answers = await self.look(caller.scope(asked), work)
        ranked = [a.id for a in answers]
        rank = ranked.index(id) if id in ranked else None
        return {
            "memory": shown(record),
            "chain": [shown(r) for r in statements],
            "rank": None if rank is None else rank + 1,
            "answer": None if rank is None else shown(answers[rank]),
        }

    async def mark(
        self, caller: Caller, asked: str | None, id: str, marks: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change how long a record is kept and how much it weighs."""
        caller.need("write")
        _need_trust(caller)
        if marks.get("expires") is not None or marks.get("pinned") is False:
            # What expires is removed: whoever may not forget may not have it forgotten.
            caller.need("forget")

        def work(memory: TextMemory) -> Record:
            _found(memory, id)
            return memory.mark(id, **marks)

        return shown(await self.call(caller.scope(asked), work))

    async def expire(self, caller: Caller, asked: str | None, before: str | None) -> dict[str, Any]:
        """Forget what has expired, and what was said before a time; not what is pinned."""
        caller.need("forget")
        done = await self.call(caller.scope(asked), lambda memory: memory.expire(before))
        return {**asdict(done), "preview": None}

    async def summary(self, caller: Caller, asked: str | None, count: int) -> dict[str, Any]:
        """What stands out in a scope."""
        caller.need("read")
        found = await self.call(caller.scope(asked), lambda memory: memory.summary(count))
        lists = {
            name: [shown(record) for record in getattr(found, name)]
            for name in ("surprising", "recalled", "updated")
        }
        return {"records": found.records, **lists, "updates": found.updates}

    async def forget(
        self,
        caller: Caller,
        asked: str | None,
        *,
        id: str | None = None,
        all: bool = False,
        preview: bool = False,
        **wanted: Any,
    ) -> dict[str, Any]:
        """Forget one record, those that are wanted, or the whole scope; or only say what would."""
        caller.need("forget")
        if preview:
            caller.need("read")
        wanted["metadata"] = only(wanted)
        is_filter = any(value is not None for value in wanted.values())
        if (id is not None) + all + is_filter != 1:
            raise Refusal(
                422,
                "ambiguous",
                "name exactly one of id, a filter (before, after, speaker, ...) and all",
            )
        scope = caller.scope(asked)

        def work(memory: TextMemory) -> dict[str, Any]:
            if id is not None:
                chosen = [_found(memory, id)]
            else:
                chosen = memory.records(**wanted) if preview else []
            if preview:
                first = [shown(record) for record in chosen[:SHOWN_BEFORE_FORGETTING]]
                nothing = {"replayed": 0, "seconds": 0.0, "is_complete": False}
                return {"records": len(chosen), "preview": first, **nothing}
            if all:
                _check_exists(memory)
            done = memory.forget(scope=scope) if all else memory.forget(id, **wanted)
            return {**asdict(done), "preview": None}

        return await self.call(scope, work)

    async def stats(self, caller: Caller, asked: str | None) -> dict[str, Any]:
        """What the scope holds; nothing about the store as a whole."""
        caller.need("read")
        found = await self.look(caller.scope(asked), TextMemory.stats)
        for name in ("store", "scopes", "file_bytes"):
            del found[name]
        return found

    async def export(self, caller: Caller, asked: str | None) -> list[str]:
        """The scope as JSON lines."""
        caller.need("read")

        def steps(memory: TextMemory) -> Generator[object, None, list[str]]:
            lines: list[str] = []
            _check_exists(memory)
            for line, _ in exporting(memory):
                lines.append(line)
                yield
            return lines

        return await self.call_in_slices(caller.scope(asked), steps)

    async def load(self, caller: Caller, asked: str | None, lines: Iterable[str]) -> int:
        """Remember every line of an export; how many were new. The writer is the caller."""
        caller.need("write")

        def stamped(values: dict[str, Any]) -> dict[str, Any]:
            if not caller.is_trusted:
                values = {name: value for name, value in values.items() if name not in WEIGHTS}
            return {**values, "metadata": stamp(caller, values.get("metadata"), quiet=True)}

        def steps(memory: TextMemory) -> Generator[object, None, int]:
            return importing(memory, lines, stamped)

        return await self.call_in_slices(caller.scope(asked), steps)

    async def scopes(self, caller: Caller) -> list[str]:
        """The names of the scopes that the caller covers."""
        caller.need("admin")
        first = DEFAULT_SCOPE if caller.key is None else caller.key.scopes[0].removesuffix("*")

        def work(memory: TextMemory) -> list[str]:
            with memory.store.reading():
                return memory.store.scopes()

        names = await self.call(first or DEFAULT_SCOPE, work)
        return [name for name in names if caller.key is None or caller.key.covers(name)]


def stamp(
    caller: Caller,
    metadata: Mapping[str, Any] | None,
    *,
    is_trusted: bool | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Metadata with who wrote it.

    Args:
        is_trusted: None for whether the caller is.
        quiet: drop what a caller may not set; otherwise it is refused.
    """
    taken = sorted(name for name in metadata or {} if name.startswith(RESERVED))
    if taken and not quiet:
        raise Refusal(
            422,
            "reserved_metadata",
            f"metadata {taken[0]!r}: names beginning with {RESERVED} are set by the server; "
            "choose another",
        )
    trusted = caller.is_trusted if is_trusted is None else is_trusted
    own = {name: value for name, value in (metadata or {}).items() if name not in taken}
    return {**own, KEY: caller.name, TRUST: "trusted" if trusted else "untrusted"}


def only(wanted: dict[str, Any]) -> dict[str, Scalar] | None:
    """The metadata that a filter asks for; `writer` and `trust` are taken out of it."""
    fields = dict(wanted.pop("metadata", None) or {})
    for name, field in (("writer", KEY), ("trust", TRUST)):
        value = wanted.pop(name, None)
        if value is not None:
            fields[field] = value
    return fields or None


def shown(found: Record | Recalled) -> dict[str, Any]:
    """A record as callers see it: who wrote it beside its metadata, not in it."""
    values = asdict(found)
    metadata = dict(values["metadata"] or {})
    values["writer"], values["trust"] = metadata.pop(KEY, None), metadata.pop(TRUST, None)
    values["metadata"] = metadata or None
    values["time"] = found.time.isoformat()
    if isinstance(found, Record) and found.expires is not None:
        values["expires"] = found.expires.isoformat()
    return values


def _need_trust(caller: Caller) -> None:
    if not caller.is_trusted:
        raise Refusal(
            403, "untrusted", "an untrusted key cannot mark or pin memories: use a trusted one"
        )


def _check_exists(memory: TextMemory) -> None:
    with memory.store.reading(memory.scope):
        if memory.store.head(memory.scope) is None:
            raise Refusal(404, "not_found", "nothing was ever remembered in this scope")


def _found(memory: TextMemory, id: str) -> Record:
    record = memory.get(id)
    if record is None:
        raise Refusal(404, "not_found", "there is no memory with this id in the scope: list them")
    return record
