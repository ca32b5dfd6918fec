"""Throughput on the results page: one row per model, phase and memory depth."""

from collections.abc import Mapping, Sequence

from titans.evaluation import paper
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score, Value
from titans.evaluation.report_cells import (
    WITHOUT_MEMORY,
    between,
    by_model,
    lengths_of,
    memory_depth,
    with_interval,
)
from titans.evaluation.report_tables import table


def throughput_section(records: Sequence[Record]) -> str:
    """Ours, then the paper's figures 8 and 9."""
    lengths = lengths_of(records, "tokens_per_second")
    rows = []
    for name, ours in by_model(records).items():
        kinds = dict.fromkeys((s.detail["phase"], s.detail.get("depth")) for s in _speeds(ours))
        for phase, depth in kinds:
            cells = [_cell(ours, n, phase, depth) for n in lengths]
            label = _own_depth(ours[0]) if depth is None else str(depth)
            rows.append([name, str(phase), label, *cells])
    head = ["tokens/s", "phase", "memory depth", *map(format_length, lengths)]
    samples = sorted({score.samples for score in _speeds(records)})
    note = (
        f"On one thread, means of {between(samples)} repetitions with their 95 % intervals (normal "
        "ones, which are too narrow for so few repetitions); in round brackets the memory's share "
        "of the time, against the same model without its memories."
    )
    notes = " ".join([note, *_two_readings(records)])
    return f"{notes}\n\n{table(head, rows)}\n{_published()}"


def _own_depth(record: Record) -> str:
    """The depth that a model has by itself, with its number where the record tells it."""
    depth = memory_depth(record)
    if depth == "-":
        return depth if record.model.variant in WITHOUT_MEMORY else "own"
    return f"own ({depth})"


def _two_readings(records: Sequence[Record]) -> list[str]:
    """Of each model with two readings of one thing, at its own depth and at that depth given, how
    far they lie apart."""
    notes = []
    for name, ours in by_model(records).items():
        depth = memory_depth(ours[0])
        apart: dict[str, list[float]] = {}
        for given in (s for s in _speeds(ours) if str(s.detail.get("depth")) == depth):
            phase = given.detail["phase"]
            for own in _speeds(ours):
                if own.matches("tokens_per_second", given.length, phase=phase, depth=None):
                    slow, fast = sorted((own.value, given.value))
                    apart.setdefault(str(phase), []).append(fast / slow - 1)
        if apart:
            spread = ", ".join(
                f"{between(sorted({round(100 * gap) for gap in gaps}))} % ({phase})"
                for phase, gaps in apart.items()
            )
            notes.append(
                f"{name} was read twice at depth {depth}, as its own depth and as a given one: the "
                "same model at different moments of a shared machine. The two readings lie apart "
                f"by {spread}; rows that differ by no more than that are not told apart."
            )
    return notes


def _speeds(records: Sequence[Record]) -> list[Score]:
    return [s for record in records for s in record.scores if s.metric == "tokens_per_second"]


def _cell(records: Sequence[Record], length: int, phase: Value, depth: Value) -> str:
    """Speed and share of the memory, both from the first record that has the cell."""
    for record in records:
        speed = record.find("tokens_per_second", length, phase=phase, depth=depth)
        share = record.find("memory_share", length, phase=phase, depth=depth)
        if speed is not None:
            in_memory = "" if share is None else f" ({100 * share.value:.0f} %)"
            return with_interval(speed, ".0f") + in_memory
    return "-"


def _published() -> str:
    depths = _italic(paper.DEPTH_THROUGHPUT, "memory depth", paper.DEPTH_THROUGHPUT_LENGTHS)
    models = _italic(paper.THROUGHPUT, "model", paper.THROUGHPUT_LENGTHS)
    unit = "training, thousand tokens per second"
    return (
        f"Published by memory depth (figure 8, {paper.PLOT}), {unit}:\n\n{depths}\n"
        f"Published by model (figure 9, {paper.PLOT}), {unit}:\n\n{models}"
    )


def _italic(
    values: Mapping[int, Sequence[float]] | Mapping[str, Sequence[float]],
    title: str,
    lengths: Sequence[int],
) -> str:
    rows = [[f"*{name}*", *(f"*{value}*" for value in row)] for name, row in values.items()]
    return table([title, *map(format_length, lengths)], rows)
