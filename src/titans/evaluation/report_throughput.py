"""Throughput on the results page: one row per model, phase and memory depth."""

from collections.abc import Mapping, Sequence

from titans.evaluation import paper
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score, Value
from titans.evaluation.report_cells import between, by_model, lengths_of, with_interval
from titans.evaluation.report_tables import table


def throughput_section(records: Sequence[Record]) -> str:
    """Ours, then the paper's figures 8 and 9."""
    lengths = lengths_of(records, "tokens_per_second")
    rows = []
    for name, ours in by_model(records).items():
        kinds = dict.fromkeys((s.detail["phase"], s.detail.get("depth")) for s in _speeds(ours))
        for phase, depth in kinds:
            cells = [_cell(ours, n, phase, depth) for n in lengths]
            rows.append([name, str(phase), "own" if depth is None else str(depth), *cells])
    head = ["tokens/s", "phase", "memory depth", *map(format_length, lengths)]
    samples = sorted({score.samples for score in _speeds(records)})
    note = (
        f"On one thread, means of {between(samples)} repetitions with their 95 % intervals (normal "
        "ones, which are too narrow for so few repetitions); in round brackets the memory's share "
        "of the time, against the same model without its memories.\n\n"
    )
    return note + table(head, rows) + "\n" + _published()


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
