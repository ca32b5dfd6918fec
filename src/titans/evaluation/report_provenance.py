"""How the numbers of a section were made, and what the training of its models took."""

import re
from collections.abc import Mapping, Sequence

from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record
from titans.evaluation.report_cells import model_name
from titans.evaluation.report_sources import Sources, Training
from titans.evaluation.report_tables import table

TRAINING = (
    "What the training of these models took by its logs, all stages together, on one CPU thread"
)
KINDS = {"pk": "PK", "n": "N", "w": "W (uuids)"}
"""S-NIAH's kinds of needle; other tasks go by their own names."""


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
        cells = ["-"] * 6
        if trained is not None:
            stages, steps, tokens, minutes, longest, kinds = trained
            cells = [str(stages), f"{steps:,}", f"{tokens:,}", f"{minutes:.0f}"]
            cells += [format_length(longest), ", ".join(map(_kind, kinds)) or "-"]
        rows.append([f"`{name}`", *cells])
    head = ["model", "stages", "steps", "training tokens", "minutes", "longest text (tokens)"]
    head.append("trained on")
    if not any(trained and trained.kinds for trained in models.values()):
        head, rows = head[:-1], [row[:-1] for row in rows]
    unknown = "" if all(models.values()) else " (`-`: the model is not shipped, nor is its log)"
    not_seen = _not_seen(records, models)
    return f"\n{TRAINING}{unknown}:\n\n{table(head, rows)}{not_seen}"


def _not_seen(records: Sequence[Record], models: Mapping[str, Training | None]) -> str:
    """Which kinds of task some models were asked, but had not seen in training."""
    asked: dict[str, set[str]] = {}
    for record in records:
        for score in record.scores:
            for key in ("kind", "task"):
                if key in score.detail:
                    asked.setdefault(str(score.detail[key]), set()).add(record.model.name)
    trained = {name: t.kinds for name, t in models.items() if t and t.kinds}
    sentences = []
    for kind in sorted(asked):
        known = {name: kinds for name, kinds in trained.items() if name in asked[kind]}
        seen = [name for name, kinds in known.items() if kind in kinds]
        others = [name for name in known if name not in seen]
        if others:
            but = f"; it was in that of {_listed(seen)}" if seen else ""
            sentences.append(f"{_kind(kind)} was not in the training of {_listed(others)}{but}.")
    return "\n" + " ".join(sentences) + "\n" if sentences else ""


def _kind(kind: str) -> str:
    """A kind of task as the tables name it."""
    return KINDS.get(kind, kind)


def _where_models_are(records: Sequence[Record], sources: Sources) -> str:
    """Where the models that commands name are to be found, or that they are not shipped."""
    named = [re.search(r"--model (\S+)", record.command) for record in records]
    models = dict.fromkeys(found[1] for found in named if found)
    shipped = [name for name in models if _is_shipped(name, sources)]
    plain = [name for name in shipped if "/" not in name]
    others = [name for name in models if name not in shipped]
    sentences = []
    if plain:
        sentences.append(
            f"Models that a command names without a folder are in `checkpoints/`: {_listed(plain)}."
        )
    if others:
        sentences.append(
            f"Not shipped: {_listed(others)}. To have them, use the files of `configs/` or "
            "`sweeps/` as [evaluation.md](evaluation.md) tells."
        )
    return "\n" + " ".join(sentences) + "\n" if sentences else ""


def _is_shipped(model: str, sources: Sources) -> bool:
    """Whether a command's model, with its folder or without, is in `checkpoints/`."""
    folder, _, name = model.rpartition("/")
    return folder in ("", "checkpoints") and sources.checkpoint(name) is not None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
