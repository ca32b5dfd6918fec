"""From ranked passages to the records that users get: one per group, with parts and links."""

from dataclasses import dataclass

from titans.recall.features import FEATURES
from titans.recall.fusion import FusionWeights
from titans.recall.records import Parts, Recalled, from_microseconds
from titans.recall.scope import OpenScope
from titans.recall.search import Hits
from titans.recall.store import Row, SQLiteStore
from titans.recall.views import split_passages


@dataclass(frozen=True)
class Assembly:
    """Builds results for one scope, inside a read transaction."""

    store: SQLiteStore
    scope: OpenScope
    fusion: FusionWeights
    explain: bool

    def build(self, hits: Hits, k: int, threshold: float, exclude: str | None) -> list[Recalled]:
        """The first k records; texts that say the same appear once, by their best wording.

        Args:
            exclude: the id of a record that must not appear, nor what says the same.
        """
        if self.scope.id is None:
            return []
        index = self.scope.index
        seqs, groups = index.column("seq"), index.column("group")
        hidden = None if exclude is None else self.store.find(self.scope.id, exclude)
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
        rows = self.store.rows(self.scope.id, [int(seqs[hits.rows[p]]) for p in chosen])
        return [self._recalled(hits, p, rows[int(seqs[hits.rows[p]])]) for p in chosen]

    def _recalled(self, hits: Hits, place: int, row: Row) -> Recalled:
        index_row = int(hits.rows[place])
        successor, predecessor = self._succession(row)
        return Recalled(
            id=row.id,
            text=row.text,
            speaker=row.speaker,
            time=from_microseconds(row.time),
            score=float(hits.scores[place]),
            parts=self._parts(hits, place),
            passage=self._passage(row, index_row),
            metadata=row.metadata,
            surprise=row.surprise,
            duplicates=self._duplicates(row, index_row),
            successor_of=predecessor,
            succeeded_by=successor,
            explanation=self._explanation(hits, place) if self.explain else None,
        )

    def _parts(self, hits: Hits, place: int) -> Parts:
        if not hits.features.shape[1]:
            return Parts(0.0, 0.0, float(hits.scores[place]), float(hits.recency[place]))
        value = dict(zip(FEATURES, hits.features[place].tolist(), strict=True))
        return Parts(
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

    def _passage(self, row: Row, index_row: int) -> str | None:
        """The passage that was found, if the record has several."""
        index = self.scope.index
        seqs = index.column("seq")
        first = index_row
        while first > 0 and seqs[first - 1] == row.seq:
            first -= 1
        alone = first + 1 >= len(seqs) or seqs[first + 1] != row.seq
        if alone:
            return None
        prefix = f"{row.speaker}: " if row.speaker else ""
        return split_passages(self.scope.encoder, prefix, row.text)[index_row - first]

    def _duplicates(self, row: Row, index_row: int) -> tuple[str, ...]:
        index = self.scope.index
        group = index.column("group")[index_row]
        members = {int(s) for s in index.column("seq")[index.column("group") == group]}
        members.discard(row.seq)
        if not members or self.scope.id is None:
            return ()
        found = self.store.rows(self.scope.id, sorted(members))
        return tuple(found[seq].id for seq in sorted(found))

    def _succession(self, row: Row) -> tuple[str | None, str | None]:
        assert self.scope.id is not None
        successor = self.store.successor_id(self.scope.id, row.seq)
        if row.successor_of is None:
            return successor, None
        found = self.store.rows(self.scope.id, [row.successor_of])
        return successor, found[row.successor_of].id if row.successor_of in found else None


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
