"""Language modelling on the results page: by length, by position, and of how much text."""

import math
from collections.abc import Sequence

from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score
from titans.evaluation.report_cells import file_name, lengths_of, model_name, with_interval
from titans.evaluation.report_tables import table

METRICS = {"bits_per_byte": ("bits per byte", ".4f"), "perplexity": ("perplexity per token", ".2f")}
"""What is shown of a text, how it is called and how it is written."""
INTERVALS = (
    "Intervals (95 %) are over the windows. Models of one table read the same text, so their "
    "order can be surer than two intervals that overlap tell."
)


def language_section(records: Sequence[Record]) -> str:
    """A table by length and one by position for each text."""
    parts = []
    for text in sorted({str(record.options["text"]) for record in records}):
        ours = [r for r in records if r.options["text"] == text]
        parts.append(f"`{file_name(text)}`: {covered_text(ours)}\n\n{_by_length(ours)}")
        parts += [_by_position(record) for record in ours if _octaves(record)]
    return "\n".join(parts)


def _by_length(records: Sequence[Record]) -> str:
    lengths = lengths_of(records, "bits_per_byte")
    rows = []
    for record in records:
        for metric, (title, style) in METRICS.items():
            found = {s.length: s for s in whole_windows(record, metric)}
            if found:
                cells = [with_interval(found.get(n), style) for n in lengths]
                rows.append([model_name(record), title, *cells])
    return table(["model", "measured", *map(format_length, lengths)], rows)


def whole_windows(record: Record, metric: str = "bits_per_byte") -> list[Score]:
    """The scores of whole windows, not of positions in them."""
    return [s for s in record.scores if s.metric == metric and not s.detail]


def _octaves(record: Record) -> list[tuple[int, int]]:
    """The positions [from, to) that have scores of their own."""
    details = [s.detail for s in record.scores if s.metric in METRICS]
    found = {(int(str(d["from"])), int(str(d["to"]))) for d in details if "from" in d}
    return sorted(found)


def _by_position(record: Record) -> str:
    rows = []
    for low, end in _octaves(record):
        place = {"from": low, "to": end}
        cells = [
            with_interval(record.find(metric, **place), style)
            for metric, (_, style) in METRICS.items()
        ]
        before = str(low) if end == low + 1 else f"{low} to {end - 1}"
        rows.append([model_name(record), before, *cells])
    length = max(s.length or 0 for s in whole_windows(record))
    titles = [title for title, _ in METRICS.values()]
    return (
        f"By position in windows of {format_length(length)}, each read from an empty state; few "
        "tokens stand at the first positions, so their intervals are wide:\n\n"
        + table(["model", "tokens read before", *titles], rows)
    )


def covered_text(records: Sequence[Record]) -> str:
    """How much of the text the bits per byte are of; one sentence for all that agree."""
    found = dict.fromkeys(_covered(record) for record in records if whole_windows(record))
    return " ".join([*found, INTERVALS]) if found else ""


def _covered(record: Record) -> str:
    """The part of its text that a record is of: windows are cut from the first token on."""
    score = whole_windows(record)[0]
    unit = "byte" if _reads_bytes(record) else "token"
    tail = record.options.get("tail_bytes")
    whole = f"the last {tail:,} bytes of the test text" if tail else "the test text"
    return (
        f"Bits per byte are of the first {score.samples * (score.length or 0):,} {unit}s of "
        f"{whole}, cut into windows of each length (a window's first {unit} is not predicted)."
    )


def _reads_bytes(record: Record) -> bool:
    """Whether a token is a byte: then both metrics are of the same thing.

    Within a per cent: older records count the bytes of a character that a window cuts differently.
    """
    bits, perplexity = (next(iter(whole_windows(record, metric)), None) for metric in METRICS)
    if bits is None or perplexity is None:
        return False
    return math.isclose(math.log2(perplexity.value), bits.value, rel_tol=0.01)
