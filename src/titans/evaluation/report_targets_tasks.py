"""Targets of single models: MQAR, S-NIAH and BABILong."""

from collections.abc import Sequence
from typing import NamedTuple

from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score
from titans.evaluation.report_cells import by_haystack, by_model, first_score, model_name
from titans.evaluation.report_mqar import mean_accuracy, own_terms
from titans.evaluation.report_target_parts import (
    ABSENT,
    REPORTED,
    VARIANTS,
    Target,
    in_percent,
    is_titans,
    named,
    verdict,
)

MQAR_AIMS = {64: 0.95, 128: 0.995}
"""Accuracy that deep memory should reach, by width."""
RIVALS = ("delta", "gated_delta", "ttt")
NEEDLE_LENGTH, NEEDLE_SAMPLES = 16_384, 100
FAR_LENGTH, FAR_SAMPLES = 2 << 20, 20
QUESTIONS = ("qa1", "qa2", "qa3", "qa4", "qa5")
QUESTION_LENGTHS = tuple(1_024 << power for power in range(8))
QA1_LEAST = {16_384: 0.95, 131_072: 0.90}


def recall_targets(records: Sequence[Record]) -> list[Target]:
    """MQAR, setting B: deep memory ahead of the published rules, and how far it gets."""
    chosen = {
        r.model.name: r for r in records if r.task == "mqar" and r.options.get("setting") == "b"
    }
    targets = []
    for width, aim in MQAR_AIMS.items():
        ours = chosen.get(f"titans {width}")
        own = None if ours is None else mean_accuracy(ours)
        shown = {f"titans {width}": ABSENT if own is None else in_percent(own)}
        ahead: list[bool | None] = []
        for name in (f"{rule} {width}" for rule in RIVALS):
            other = chosen.get(name)
            if other is None or ours is None or own is None:
                shown[name] = ABSENT if other is None else in_percent(mean_accuracy(other))
                ahead.append(None)
            elif _terms(other) != _terms(ours):
                shown[name] = "of another state or budget"
                ahead.append(None)
            else:
                shown[name] = in_percent(mean_accuracy(other))
                ahead.append(own > mean_accuracy(other))
        text = f"MQAR setting B, width {width}: deep LMM"
        budget = ""
        if ours is not None:
            budget = f"; {ours.model.settings.get('minutes')} CPU minutes each"
            chosen_for_ours = own_terms(ours)
            if chosen_for_ours:
                budget += f"; chosen for `titans {width}`: {chosen_for_ours}"
        targets += [
            Target(
                f"{text} ahead of {', '.join(RIVALS)} of equal state, at an equal budget "
                "(planned: 60 CPU minutes)",
                named(shown) + budget,
                verdict(ahead),
            ),
            Target(
                f"{text} at least {100 * aim:g} % (aim)",
                named(dict([*shown.items()][:1])),
                verdict([None if own is None else own >= aim]),
            ),
        ]
    return targets


def _terms(record: Record) -> tuple[object, ...]:
    """What two rules must have in common to be compared."""
    return tuple(record.model.settings.get(name) for name in ("state_numbers", "minutes"))


class _Cell(NamedTuple):
    """One model's score, on one haystack."""

    model: str
    """The model, and the haystack where it was asked in several."""
    record: Record
    score: Score

    @property
    def variant(self) -> str:
        """What kind of model it is."""
        return self.record.model.variant

    def reaches(self, least: float, samples: int) -> bool:
        """Whether it is good enough, on samples enough."""
        return self.score.value >= least and self.score.samples >= samples

    @property
    def shown(self) -> str:
        """Model, value and samples."""
        return f"{self.model}: {in_percent(self.score.value)} ({self.score.samples} samples)"


def _cells(records: Sequence[Record], length: int, kind: str) -> list[_Cell]:
    """The score of every model that has one, on each of its haystacks."""
    cells = []
    for name, ours in by_haystack(records, kind).items():
        score = first_score(ours, "accuracy", length, kind=kind)
        if score is not None:
            cells.append(_Cell(name, ours[0], score))
    return cells


def _worst_cells(cells: Sequence[_Cell]) -> list[_Cell]:
    """Each model's cell on the haystack in which it is worst."""
    worst: dict[str, _Cell] = {}
    for cell in cells:
        model = model_name(cell.record)
        if model not in worst or cell.score.value < worst[model].score.value:
            worst[model] = cell
    return list(worst.values())


def needle_targets(records: Sequence[Record]) -> list[Target]:
    """S-NIAH at 16K for MAC and a second variant, at 2M, and the aim for all."""
    ours = [r for r in records if r.task == "s-niah" and is_titans(r)]
    place = f"at {format_length(NEEDLE_LENGTH)}"
    targets = []
    for kind in ("pk", "n"):
        cells = _cells(ours, NEEDLE_LENGTH, kind)
        good = {c.variant for c in _worst_cells(cells) if c.reaches(0.95, NEEDLE_SAMPLES)}
        targets.append(
            Target(
                f"S-NIAH {kind.upper()} {place}: at least 95 % for MAC and one more variant, "
                f"{NEEDLE_SAMPLES} samples",
                "; ".join(cell.shown for cell in cells),
                verdict(["mac" in good, bool(good - {"mac"})] if cells else [None]),
            )
        )
    words = _cells(ours, NEEDLE_LENGTH, "w")
    shown = "; ".join(cell.shown for cell in words)
    return [
        *targets,
        Target(f"S-NIAH W {place}: reported", shown, REPORTED if words else ABSENT),
        _far_needle(ours),
        _all_needles(ours, place),
    ]


def _far_needle(records: Sequence[Record]) -> Target:
    """Passkeys at 2M tokens, in a state that is the same at every length."""
    shown, parts = [], []
    for cell in _cells(records, FAR_LENGTH, "pk"):
        scores = [s for r in by_haystack(records, "pk")[cell.model] for s in r.scores]
        states = {s.value for s in scores if s.matches("state_bytes", kind="pk")}
        sizes = " to ".join(f"{size:.0f}" for size in sorted({min(states), max(states)}))
        shown.append(f"{cell.shown}, state of {sizes} bytes at all lengths")
        parts.append(cell.reaches(0.95, FAR_SAMPLES) and len(states) == 1)
    text = f"S-NIAH PK at {format_length(FAR_LENGTH)}: at least 95 % ({FAR_SAMPLES} samples)"
    result = verdict([any(parts)] if parts else [None])
    return Target(f"{text}, with flat memory", "; ".join(shown), result)


def _all_needles(records: Sequence[Record], place: str) -> Target:
    """The twelve cells of four variants and three tasks, the best model of a variant in each."""
    shown, parts = [], []
    for variant in VARIANTS:
        values = []
        for kind in ("pk", "n", "w"):
            cells = _worst_cells(_cells(records, NEEDLE_LENGTH, kind))
            ours = [cell for cell in cells if cell.variant == variant]
            best = max(ours, key=lambda cell: cell.score.value, default=None)
            parts.append(None if best is None else best.reaches(0.98, NEEDLE_SAMPLES))
            value = ABSENT if best is None else in_percent(best.score.value)
            values.append(f"{kind.upper()} {value}")
        shown.append(f"{variant.upper()}: {', '.join(values)}")
    return Target(
        f"S-NIAH {place}: 98 % for four variants and three tasks, {NEEDLE_SAMPLES} samples (aim)",
        "; ".join(shown),
        verdict(parts),
    )


def question_targets(records: Sequence[Record]) -> list[Target]:
    """BABILong: qa1 far beyond training by one MAC, and five tasks reported."""
    ours = [r for r in records if r.task == "babilong" and is_titans(r)]
    models = by_model([r for r in ours if r.model.variant == "mac"])
    best: list[bool | None] = [None] * len(QA1_LEAST)
    shown, complete = [], []
    for name, own in models.items():
        scores = {n: first_score(own, "accuracy", n, task="qa1") for n in QA1_LEAST}
        parts = [None if s is None else s.value >= QA1_LEAST[n] for n, s in scores.items()]
        best = max(best, parts, key=lambda found: sum(part is True for part in found))
        values = [
            f"{ABSENT if s is None else in_percent(s.value)} at {format_length(n)}"
            for n, s in scores.items()
        ]
        shown.append(f"{name}: {', '.join(values)}")
        if all(
            first_score(own, "accuracy", length, task=task)
            for task in QUESTIONS
            for length in QUESTION_LENGTHS
        ):
            complete.append(name)
    least = " and ".join(f"{100 * v:g} % at {format_length(n)}" for n, v in QA1_LEAST.items())
    ends = " to ".join(format_length(n) for n in (QUESTION_LENGTHS[0], QUESTION_LENGTHS[-1]))
    return [
        Target(f"BABILong qa1, one MAC: at least {least}", "; ".join(shown), verdict(best)),
        Target(
            f"BABILong qa1 to qa5 at {ends}: reported",
            "; ".join(complete),
            REPORTED if complete else ABSENT,
        ),
    ]
