"""From ranked passages to the records that users get: one per group, with parts and links."""

from dataclasses import dataclass

import numpy as np

from titans.recall.records import Recalled, ScoreParts, from_microseconds
from titans.recall.replica import Replica
from titans.recall.search.features import FEATURES, PARTS
from titans.recall.search.fusion import IMPORTANCE_WEIGHT, RECENCY_WEIGHT
from titans.recall.search.search import Hits
from titans.recall.store import StoredRecord
from titans.recall.text.passages import split_passages


@dataclass(frozen=True)
class Assembly:
    """Builds results for one scope, inside a read transaction."""

    replica: Replica
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
        records = self.replica.records(found)
        return [
            # Beside a record that must not appear, the first one is not what was judged.
            self._recalled(hits, place, records[seq], is_judged=place == 0 and exclude is None)
            for place, seq in zip(chosen, found, strict=True)
        ]

    def _recalled(
        self, hits: Hits, place: int, record: StoredRecord, *, is_judged: bool
    ) -> Recalled:
        index_row = int(hits.rows[place])
        predecessor, successor = self._succession(index_row, hits)
        return Recalled(
            id=record.id,
            text=record.text,
            speaker=record.speaker,
            time=from_microseconds(record.time),
            score=float(hits.scores[place]),
            parts=self._parts(hits, place),
            confidence=hits.confidence if is_judged else None,
            why=reason(hits, place, record.speaker, is_replaced=successor is not None),
            passage=self._passage(record, index_row),
            metadata=record.metadata,
            surprise=record.surprise,
            duplicates=self._duplicates(record, index_row),
            successor_of=predecessor,
            succeeded_by=successor,
            explanation=self._explanation(hits, place) if self.explain else None,
        )

    def _parts(self, hits: Hits, place: int) -> ScoreParts:
        """The score, divided among what speaks for the record."""
        score, recency = float(hits.scores[place]), float(hits.recency[place])
        if not hits.features.shape[1]:
            return ScoreParts(memory=score)
        value = dict(zip(FEATURES, hits.contributions[place].tolist(), strict=True))
        for_it = {
            part: max(sum(value[name] for name in names), 0.0) for part, names in PARTS.items()
        }
        for_it["recency"] = RECENCY_WEIGHT * recency
        for_it["importance"] = IMPORTANCE_WEIGHT * float(hits.importance[place])
        total = sum(for_it.values())
        return ScoreParts(**{part: score * share / total for part, share in for_it.items()})

    def _explanation(self, hits: Hits, place: int) -> dict[str, dict[str, float]] | None:
        values, products = hits.features[place].tolist(), hits.contributions[place].tolist()
        return {
            name: {"value": value, "contribution": product}
            for name, value, product in zip(FEATURES, values, products, strict=False)
        } or None

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

    def _succession(self, row: int, hits: Hits) -> tuple[str | None, str | None]:
        """The ids of the statements of the same fact before and after this one."""
        index = self.replica.index
        history = index.histories(np.array([row])).get(int(index.column("fact")[row]))
        if history is None or self.replica.scope_id is None:
            return None, None
        if hits.allowed is not None:
            history = history[hits.allowed[history]]
        groups = index.column("group")[history]
        own = np.flatnonzero(groups == index.column("group")[row])
        first, last = int(own[0]), int(own[-1])
        seqs = index.column("seq")[history].tolist()
        wanted = [seqs[place] for place in (first - 1, last + 1) if 0 <= place < len(seqs)]
        found = self.replica.records(wanted)
        before = found[seqs[first - 1]].id if first else None
        return before, found[seqs[last + 1]].id if last + 1 < len(seqs) else None


CLAUSES: tuple[tuple[str, float, str], ...] = (
    ("exact", 0.5, "it holds the rare word or number that you named"),
    ("day", 0.99, "it was said on the day you asked about"),
    ("day", 0.3, "it was said near the day you asked about"),
    ("date", 1.0, "it was said in the month you asked about"),
    ("when", 1.0, "it says when"),
    ("late", 0.6, "it speaks of the same things"),
    ("lexical", 0.25, "it shares words with the question"),
    ("answered", 0.5, "it answers a question like yours"),
    ("late_wide", 0.6, "what was said around it speaks of the same things"),
    ("lexical_nearby", 0.5, "the words of the question stand near it"),
    ("bare", 0.4, "it is close in meaning"),
)
"""Features with the value from which on a reader is told of them, and how; weightiest first."""
MOST_CLAUSES = 3


def reason(hits: Hits, place: int, speaker: str | None, is_replaced: bool) -> str:
    """What speaks for a record, as a sentence."""
    if not hits.features.shape[1]:
        return "The neural memory answers with something like it."
    value = dict(zip(FEATURES, hits.features[place].tolist(), strict=True))
    clauses: list[str] = []
    if value["speaker"] == 1.0:
        clauses.append(f"{speaker} said it, whom you asked about")
    told: set[str] = set()
    for name, least, clause in CLAUSES:
        if value[name] >= least and name not in told:
            told.add(name)
            clauses.append(clause)
    clauses = clauses[:MOST_CLAUSES] or ["nothing fits well, it is only the nearest there is"]
    if value["idle"] >= 0.9:
        clauses.append("but it asks or greets and tells nothing")
    if is_replaced:
        clauses.append("but it was updated later")
    text = ", ".join(clauses)
    return text[0].upper() + text[1:] + "."
