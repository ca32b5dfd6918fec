"""From ranked passages to the records that users get: one per group, with parts and links."""

from dataclasses import dataclass

from titans.recall.records import Recalled, ScoreParts, from_microseconds
from titans.recall.replica import Replica
from titans.recall.search.features import FEATURES
from titans.recall.search.fusion import FusionWeights
from titans.recall.search.search import Hits
from titans.recall.store import StoredRecord
from titans.recall.text.passages import split_passages


@dataclass(frozen=True)
class Assembly:
    """Builds results for one scope, inside a read transaction."""

    replica: Replica
    fusion: FusionWeights
    explain: bool

    def build(self, hits: Hits, k: int, threshold: float, exclude: str | None) -> list[Recalled]:
        """The first k records; texts that say the same appear once, by their best wording.

        Args:
            exclude: the id of a record that must not appear, nor what says the same.
        """
        if self.replica.scope_id is None:
            return []
        index = self.replica.index
        seqs, groups = index.column("seq"), index.column("group")
        hidden = (
            None if exclude is None else self.replica.store.find(self.replica.scope_id, exclude)
        )
        seen: set[int] = set()
        if hidden is not None:
            seen.add(hidden.seq if hidden.duplicate_of is None else hidden.duplicate_of)
        chosen: list[int] = []
        for place, row in enumerate(hits.rows):
            if len(chosen) == k or hits.scores[place] < threshold:
                break
            if int(groups[row]) not in seen:
                seen.add(int(groups[row]))
                chosen.append(place)
        found = [int(seqs[hits.rows[place]]) for place in chosen]
        records = self.replica.store.records(self.replica.scope_id, found)
        return [
            self._recalled(hits, place, records[seq])
            for place, seq in zip(chosen, found, strict=True)
        ]

    def _recalled(self, hits: Hits, place: int, record: StoredRecord) -> Recalled:
        index_row = int(hits.rows[place])
        successor, predecessor = self._succession(record)
        return Recalled(
            id=record.id,
            text=record.text,
            speaker=record.speaker,
            time=from_microseconds(record.time),
            score=float(hits.scores[place]),
            parts=self._parts(hits, place),
            passage=self._passage(record, index_row),
            metadata=record.metadata,
            surprise=record.surprise,
            duplicates=self._duplicates(record, index_row),
            successor_of=predecessor,
            succeeded_by=successor,
            explanation=self._explanation(hits, place) if self.explain else None,
        )

    def _parts(self, hits: Hits, place: int) -> ScoreParts:
        if not hits.features.shape[1]:
            return ScoreParts(0.0, 0.0, float(hits.scores[place]), float(hits.recency[place]))
        value = dict(zip(FEATURES, hits.features[place].tolist(), strict=True))
        return ScoreParts(
            lexical=_share(value["lexical"]),
            vector=_share(max(value["bare"], value["first_person"], value["in_context"])),
            memory=_share(value["memory"]),
            recency=_share(float(hits.recency[place])),
        )

    def _explanation(self, hits: Hits, place: int) -> dict[str, dict[str, float]] | None:
        if not hits.features.shape[1]:
            return None
        weights = self.fusion.weights
        return {
            name: {"value": value, "weight": weights[name], "contribution": value * weights[name]}
            for name, value in zip(FEATURES, hits.features[place].tolist(), strict=True)
        }

    def _passage(self, record: StoredRecord, index_row: int) -> str | None:
        """The passage that was found, if the record has several."""
        index = self.replica.index
        seqs = index.column("seq")
        first = index_row
        while first > 0 and seqs[first - 1] == record.seq:
            first -= 1
        alone = first + 1 >= len(seqs) or seqs[first + 1] != record.seq
        if alone:
            return None
        prefix = f"{record.speaker}: " if record.speaker else ""
        return split_passages(self.replica.encoder, prefix, record.text)[index_row - first]

    def _duplicates(self, record: StoredRecord, index_row: int) -> tuple[str, ...]:
        index = self.replica.index
        group = index.column("group")[index_row]
        members = {int(s) for s in index.column("seq")[index.column("group") == group]}
        members.discard(record.seq)
        if not members or self.replica.scope_id is None:
            return ()
        found = self.replica.store.records(self.replica.scope_id, sorted(members))
        return tuple(found[seq].id for seq in sorted(found))

    def _succession(self, record: StoredRecord) -> tuple[str | None, str | None]:
        assert self.replica.scope_id is not None
        successor = self.replica.store.successor_id(self.replica.scope_id, record.seq)
        if record.successor_of is None:
            return successor, None
        found = self.replica.store.records(self.replica.scope_id, [record.successor_of])
        return successor, found[record.successor_of].id if record.successor_of in found else None


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
