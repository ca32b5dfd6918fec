"""Looking after a store: `find_damage` reads all of it, `repair` makes a new one of what is sound.

What is looked at: the pages of the file and the checksum of every row (the store's own part), then
what the text memory keeps twice: the blocks of the index against the rows, the words of each text
against the lexical index, and the snapshots of the neural memory against its log.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_arrays

from titans.files import replacing
from titans.recall.config import RecallConfig
from titans.recall.encoder import Encoder
from titans.recall.forgetting import rebuild
from titans.recall.memory import TextMemory
from titans.recall.neural.memory import Write
from titans.recall.replica import Replica
from titans.recall.search.blocks import unpack
from titans.recall.search.index import ScopeIndex
from titans.recall.store import SQLiteStore, StoredPassage, StoredRecord
from titans.recall.store.salvage import Salvage, SalvagedRecord
from titans.recall.text.passages import encode_passages, passage_terms, split_passages

Progress = Callable[[str], None]
SAME_STATE = 1e-3
"""Two kinds of processor compute states that differ by less than this share of their size."""
SETTINGS = ("encoder", "encoder_setting", "neural")
"""What a store keeps about how it was written."""
BATCH = 256
"""Records of a repair in one transaction."""


def find_damage(memory: TextMemory, progress: Progress = lambda _: None) -> Iterator[str]:
    """Everything in the store that cannot have been written like this, a line each.

    Args:
        progress: called with what is looked at next.
    """
    store, is_sound = memory.store, True
    with store.reading():
        for line in store.damages(progress):
            is_sound = False
            yield line
        if not is_sound:
            return  # what follows reads with checks, and would stop at the first of these
        for scope in store.scopes():
            replica = _replica(memory, scope)
            replica.refresh()
            for name, look in (("index", _index), ("words", _words), ("neural memory", _states)):
                progress(f"{name} of scope {scope!r}")
                for line in look(replica):
                    yield f"{name} of scope {scope!r}: {line}"


def _replica(memory: TextMemory, scope: str) -> Replica:
    return Replica(memory.store, scope, memory.config, memory.encoder, memory.neural)


def _index(replica: Replica) -> Iterator[str]:
    """Blocks that say other than the rows."""
    assert replica.scope_id is not None
    store, rows = replica.store, ScopeIndex(replica.encoder.dim)
    rows.extend(store.index_entries(replica.scope_id, 0))
    begin = 0
    for number, data in enumerate(store.blocks(replica.scope_id)):
        block = unpack(data)
        end = begin + len(block.columns["seq"])
        wanted = rows.rows(begin, end)
        same = block.speakers == wanted.speakers and all(
            np.array_equal(values, wanted.columns[name]) for name, values in block.columns.items()
        )
        if not same:
            yield f"block {number} is not what its records say"
        begin = end


def _words(replica: Replica) -> Iterator[str]:
    """Words of the texts that the lexical index does not know."""
    assert replica.scope_id is not None
    index = replica.index
    passages = iter(zip(index.column("passage").tolist(), index.column("flags"), strict=True))
    found: dict[str, list[int]] = {}
    for record in replica.store.list_records(replica.scope_id):
        for part in _parts(replica.encoder, record):
            number, flags = next(passages, (0, 0))
            for term in passage_terms(part, int(flags)):
                found.setdefault(term, []).append(number)
    for term, wanted in found.items():
        if replica.store.postings(replica.scope_id, term).tolist() != wanted:
            yield f"the word {term!r} is not where the records have it"


def _states(replica: Replica) -> Iterator[str]:
    """Snapshots that the log of writes does not lead to."""
    assert replica.scope_id is not None
    store, neural = replica.store, replica.neural
    state, last = neural.initial_state(), 0
    for seq, data in store.snapshots(replica.scope_id):
        for _, write in store.neural_writes(replica.scope_id, last, seq):
            state = neural.absorb(state, Write.from_bytes(write, neural.config.num_heads))
        last = seq
        replayed, kept = load_arrays(neural.dump(state)), load_arrays(data)
        if replayed.keys() != kept.keys() or not all(
            _same(kept[name], array) for name, array in replayed.items()
        ):
            yield f"the snapshot after record {seq} is not what the writes before it lead to"


def _same(kept: NDArray[Any], replayed: NDArray[Any]) -> bool:
    if kept.shape != replayed.shape:
        return False
    size = np.abs(replayed).max(initial=0)
    return bool((np.abs(kept - replayed) <= SAME_STATE * size + 1e-9).all())


@dataclass(frozen=True)
class Repaired:
    """What a repair has kept."""

    records: int
    remade: int
    """Of these, records whose vectors were damaged and made again from the text."""
    lost: int
    """Records that the scopes should have, as far as that is known, and that are gone."""
    damaged: Path
    """Where the damaged file is now."""


def repair(
    path: Path,
    config: RecallConfig | None = None,
    *,
    encoder: Encoder | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Repaired:
    """Put a new store with all that is sound in the place of a damaged one, which is kept beside.

    Args:
        progress: called with the number of records so far.
    """
    # Another process must not write into the damaged file while the new one takes its place.
    with closing(Salvage(path)) as salvage, replacing(path) as part:
        with closing(SQLiteStore(part)) as store, store.writing():
            for key in SETTINGS:
                if key in salvage.settings:
                    store.set_setting(key, salvage.settings[key])
        with TextMemory(part, config=config, encoder=encoder) as memory:
            refill = _Refill(memory, salvage)
            refill.run(progress)
        damaged = salvage.step_aside()
    wanted = sum(num_records for *_, num_records, _ in salvage.scopes.values())
    return Repaired(refill.records, refill.remade, max(wanted - refill.records, 0), damaged)


class _Refill:
    """Writing what was salvaged into a new store."""

    def __init__(self, memory: TextMemory, salvage: Salvage) -> None:
        self.memory, self.store, self.salvage = memory, memory.store, salvage
        self.records, self.remade = 0, 0
        self._numbers: dict[int, int] = {}
        """Old seq -> new one; also of a group's lost first record -> of the one that leads now."""

    def run(self, progress: Callable[[int], None]) -> None:
        """Everything, some records to a transaction."""
        found = self.salvage.records()
        while batch := list(islice(found, BATCH)):
            with self.store.writing():
                for one in batch:
                    self._add(one)
            progress(self.records)
        with self.store.writing():
            for scope, texts in groupby(self.salvage.texts, lambda row: row[0]):
                self.store.set_persistent_texts(self._scope(scope), [row[2] for row in texts])
            for scope in self.store.scopes():
                head = self.store.head(scope)
                assert head is not None
                rebuild(_replica(self.memory, scope), head.scope_id, None)

    def _scope(self, old: int) -> int:
        known = self.salvage.scopes.get(old)
        return self.store.create_scope(f"scope-{old}" if known is None else known[1])

    def _add(self, found: SalvagedRecord) -> None:
        scope, record = self._scope(found.scope_id), found.record
        if self.store.find(scope, record.id) is not None:
            return  # a damaged index let the same id in twice
        old, leader = record.seq, record.duplicate_of
        record = replace(
            record,
            written=record.written and found.neural_write is not None,
            duplicate_of=None if leader is None else self._numbers.get(leader),
            successor_of=self._numbers.get(record.successor_of or 0),
        )
        new = self.store.add_record(scope, record, self._passages(found), found.neural_write)
        self._numbers[old] = new
        if leader is not None:
            self._numbers.setdefault(leader, new)
        self.records += 1

    def _passages(self, found: SalvagedRecord) -> list[StoredPassage]:
        """The record's passages as they were, or made again if one of them is damaged."""
        record, encoder = found.record, self.memory.encoder
        parts = _parts(encoder, record)
        if len(parts) == len(found.passages):
            return [
                StoredPassage(passage_terms(part, flags), flags, vectors, tokens)
                for part, (flags, vectors, tokens) in zip(parts, found.passages, strict=True)
            ]
        self.remade += 1
        pooling = self.memory.config.pooling
        encoded = encode_passages(encoder, pooling, record.speaker, record.text)
        return [passage.to_stored() for passage in encoded]


def _parts(encoder: Encoder, record: StoredRecord) -> list[str]:
    """The texts of a record's passages."""
    return split_passages(encoder, f"{record.speaker}: " if record.speaker else "", record.text)
