"""MQAR on the results page: one table per setting, small states first, the best of each on top."""

import math
from collections.abc import Sequence

from titans.evaluation import paper
from titans.evaluation.records import Record
from titans.evaluation.report_cells import between, model_name, percent
from titans.evaluation.report_tables import table

SETTINGS_SHOWN = {
    "state_numbers": "state (numbers)",
    "learning_rate": "learning rate",
    "tokens": "training tokens",
    "minutes": "CPU minutes",
}
"""What a row tells of its model, and what stands above it."""
TERMS = {
    "memory_written": ("all", "of its layers the {} alone is written"),
    "memory_init": (None, "its first weights are not learned ({})"),
    "memory_key_lag": (None, "keys start with what stands {} token before"),
    "memory_gate_kernel": (0, "gates see {} tokens"),
    "memory_step_max": (1.0, "steps of at most {}"),
    "decorrelate": (
        0.0,
        "a loss that keeps keys, and values, apart in training, weight {}",
    ),
}
"""Settings that are chosen for single rows: what is usual, and what another value means."""
UNITS = (
    "Published sizes are bytes, 4 per number, and include the 3 d numbers of the convolution in "
    "front (d is the width); ours are numbers and leave the convolution out."
)


def mqar_section(records: Sequence[Record]) -> str:
    """Ours by setting, then the published accuracies by state."""
    parts = []
    for setting in ("a", "b", "forgetting"):
        ours = [r for r in records if r.options.get("setting") == setting]
        if ours:
            size = ours[0].options.get("vocab_size")
            counts = between(sorted({s.samples for r in ours for s in r.scores}))
            parts.append(
                f"Setting {setting}, vocabulary {size}, {counts} examples per segment:\n\n"
                f"{_table(ours)}{_terms(ours)}"
            )
    published = [
        [f"*{model}*", ", ".join(f"*{value}* at {size}" for size, value in points)]
        for model, points in paper.MQAR_STATE.items()
    ]
    note = (
        f"\nPublished for setting B with its full budget ({paper.PLOT}), by state in bytes. {UNITS}"
    )
    return "\n".join(parts) + f"{note}\n\n" + table(["model", "accuracy"], published)


def _table(records: Sequence[Record]) -> str:
    cells = [(s.length, s.detail) for s in records[0].scores]
    rows = [
        [
            model_name(record),
            f"{record.model.num_parameters:,}",
            *(_setting(record, name) for name in SETTINGS_SHOWN),
            f"{100 * mean_accuracy(record):.1f}",
            *(percent(record.find("accuracy", n, **detail)) for n, detail in cells),
        ]
        for record in sorted(records, key=_rank)
    ]
    segments = [f"{n}, {detail['pairs']} pairs" for n, detail in cells]
    return table(["model", "parameters", *SETTINGS_SHOWN.values(), "mean", *segments], rows)


def own_terms(record: Record) -> str:
    """What was chosen for a row, beyond what its rule is."""
    settings = record.model.settings
    return "; ".join(
        text.format(settings[name])
        for name, (usual, text) in TERMS.items()
        if settings.get(name, usual) != usual
    )


def _terms(records: Sequence[Record]) -> str:
    lines = [
        f"- {model_name(record)}: {own_terms(record)}."
        for record in sorted(records, key=_rank)
        if own_terms(record)
    ]
    if not lines:
        return ""
    return "\nChosen for single rows, beyond what their rule is:\n\n" + "\n".join(lines) + "\n"


def _rank(record: Record) -> tuple[float, float]:
    """Small states first, unknown ones last; of equal ones the best first."""
    state = record.model.settings.get("state_numbers")
    return state if isinstance(state, int | float) else math.inf, -mean_accuracy(record)


def mean_accuracy(record: Record) -> float:
    """Mean over the segments."""
    values = [s.value for s in record.scores if s.metric == "accuracy"]
    return math.fsum(values) / len(values)


def _setting(record: Record, name: str) -> str:
    """A number from the model's settings, where it has it."""
    value = record.model.settings.get(name)
    return f"{value:,}" if isinstance(value, int | float) else "-"
