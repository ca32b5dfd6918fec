"""Maps of depth and length on the results page: a picture each, with what it is of."""

from collections.abc import Sequence
from pathlib import Path

from titans.evaluation.heatmap import depth_scores, draw_heat_map
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score
from titans.evaluation.report_cells import model_name, percent
from titans.evaluation.report_needles import TERMS, needle_terms

ABOUT = (
    "Accuracy in per cent by the needle's depth (0 %: at the beginning of the text) and by the "
    "length of the text."
)


def depth_section(records: Sequence[Record], figures: Path) -> str:
    """Draws a map for each record that has depths; nothing where none has."""
    parts = []
    for record in records:
        if depth_scores(record):
            file = figures / f"{record.task}-{record.model.name}.png"
            draw_heat_map(record, file)
            link = f"![{record.model.name}, depth and length]({figures.name}/{file.name})"
            parts.append(f"{link}\n\n{depth_caption(record)}\n")
    return f"\n## Depth and length\n\n{ABOUT}\n\n" + "\n".join(parts) if parts else ""


def depth_caption(record: Record) -> str:
    """Model and terms of a map, where it is worst, and how it was made."""
    scores = depth_scores(record)
    kinds = dict.fromkeys(str(score.detail.get("kind", "")) for score in scores)
    told = []
    for kind in kinds:
        cells = [score for score in scores if str(score.detail.get("kind", "")) == kind]
        told.append(_about_kind(record, cells, kind))
    made = f"Made by `{record.command}`, commit {record.commit or '-'}."
    return f"{model_name(record)}. {' '.join(told)} {made}"


def _about_kind(record: Record, cells: Sequence[Score], kind: str) -> str:
    """The terms of one panel, and where it is worst."""
    terms = [f"{cells[0].samples} samples per cell"]
    if record.task == "s-niah":
        found = dict(zip(TERMS, needle_terms(record, cells[0], kind), strict=True))
        terms += [f"{name} {value}" for name, value in found.items() if name != "samples"]
    title = f"{record.task.upper()}-{kind.upper()}" if kind else record.task
    return f"{title}: {', '.join(terms)}. {_worst(cells)}"


def _worst(cells: Sequence[Score]) -> str:
    """The lowest value, all the places that have it, and how many cells miss anything."""
    lowest = min(cells, key=lambda cell: cell.value)
    missed = sum(cell.value < 1 for cell in cells)
    if not missed:
        return f"No cell of {len(cells)} is below 100."
    places = " and ".join(_place(cell) for cell in cells if cell.value == lowest.value)
    return f"Worst: {percent(lowest)} {places}; {missed} of {len(cells)} cells are below 100."


def _place(cell: Score) -> str:
    depth = float(str(cell.detail["depth"]))
    return f"at {format_length(cell.length or 0)}, depth {100 * depth:.0f} %"
