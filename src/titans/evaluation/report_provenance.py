"""How the numbers of a section were made, and what the training of its models took."""

import re
from collections.abc import Sequence

from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record
from titans.evaluation.report_cells import model_name
from titans.evaluation.report_sources import Sources
from titans.evaluation.report_tables import table

TRAINING = (
    "What the training of these models took by its logs, all stages together, on one CPU thread"
)


def provenance_section(records: Sequence[Record], sources: Sources) -> str:
    """Commands and costs: of the training where it is known, of each measurement."""
    rows = [
        [
            model_name(record),
            record.model.variant,
            f"{record.model.num_parameters:,}",
            f"`{record.command}`" if record.command else "-",
            f"{record.seconds:.0f} s",
            record.commit or "-",
        ]
        for record in records
    ]
    head = ["model", "variant", "parameters", "command", "time", "commit"]
    made = f"\nHow these were made:\n\n{table(head, rows)}{_where_models_are(records, sources)}"
    return _training_table(records, sources) + made


def _training_table(records: Sequence[Record], sources: Sources) -> str:
    """One row per model; nothing where none of them is shipped."""
    models = {record.model.name: sources.training(record) for record in records}
    if not any(models.values()):
        return ""
    rows = []
    for name, trained in models.items():
        cells = ["-"] * 5
        if trained is not None:
            stages, steps, tokens, minutes, longest = trained
            cells = [str(stages), f"{steps:,}", f"{tokens:,}", f"{minutes:.0f}"]
            cells.append(format_length(longest))
        rows.append([f"`{name}`", *cells])
    head = ["model", "stages", "steps", "training tokens", "minutes", "longest text (tokens)"]
    unknown = "" if all(models.values()) else " (`-`: the model is not shipped)"
    return f"\n{TRAINING}{unknown}:\n\n{table(head, rows)}"


def _where_models_are(records: Sequence[Record], sources: Sources) -> str:
    """Which models that a command names without a folder are shipped, and which are not."""
    named = [re.search(r"--model ([^\s/]+)(?!\S)", record.command) for record in records]
    models = dict.fromkeys(found[1] for found in named if found)
    shipped = [name for name in models if sources.checkpoint(name)]
    others = [name for name in models if name not in shipped]
    sentences = []
    if shipped:
        sentences.append(
            "Models that a command names without a folder are in `checkpoints/`: "
            f"{_listed(shipped)}."
        )
    if others:
        sentences.append(f"Not shipped: {_listed(others)} ([how they were made](evaluation.md)).")
    return "\n" + " ".join(sentences) + "\n" if sentences else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
