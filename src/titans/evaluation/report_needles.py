"""Needles on the results page: those in noise, and S-NIAH with the terms of each row."""

from collections.abc import Sequence

from titans.evaluation import paper
from titans.evaluation.heatmap import depth_scores
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score
from titans.evaluation.report_cells import (
    between,
    by_haystack,
    file_name,
    haystack_name,
    lengths_of,
    model_name,
    percent,
    plain_score,
)
from titans.evaluation.report_tables import table

OUR_TOKENS = (
    "Our tokens are bytes or, where the checkpoint has a vocabulary of its own (1,024 entries), "
    "about 2.5 bytes of prose each."
)
TERMS = ("samples", "answer tokens", "key words", "haystack")
"""What rows of one table may differ in, besides the model."""


def needle_section(records: Sequence[Record]) -> str:
    """Needles in noise, with and without distractors."""
    plain = [r for r in records if not depth_scores(r)]
    lengths = lengths_of(plain)
    rows: list[list[str]] = []
    for record in plain:
        scores = [plain_score(record, "accuracy", length) for length in lengths]
        state = record.find("state_bytes")
        size = "-" if state is None else f"{state.value:.0f}"
        noise = "with" if record.options.get("distractors") else "without"
        rows.append([model_name(record), noise, size, *map(percent, scores)])
    head = ["model", "distractors", "state (bytes)", *map(format_length, lengths)]
    samples = sorted({s.samples for r in plain for s in r.scores})
    return (
        "Needles (marker, key, value) hidden in noise, asked for at the end; accuracy in per cent "
        f"with its 95 % interval, {between(samples)} texts per length, several needles in each. "
        "Distractors: keys and values also occur in the noise, without the marker.\n\n"
        + table(head, rows)
    )


def s_niah_section(records: Sequence[Record]) -> str:
    """A table per kind of needle; what was measured on other terms has a row of its own."""
    parts = []
    for kind in ("pk", "n", "w"):
        lengths = lengths_of(records, kind=kind, depth=None)
        if not lengths:
            continue
        rows = [
            [name, *terms, *(percent(scores.get(n)) for n in lengths)]
            for (name, terms), scores in _s_niah_rows(records, kind).items()
        ]
        for model, values in paper.S_NIAH.items():
            known = dict(zip(paper.S_NIAH_LENGTHS, values[kind], strict=True))
            cells = [f"*{known[n]:.1f}*" if n in known else "" for n in lengths]
            rows.append([f"*{model} (paper)*", *[""] * len(TERMS), *cells])
        head = [f"S-NIAH-{kind.upper()}", *TERMS, *(format_length(n) for n in lengths)]
        parts.append(table(head, rows))
    note = (
        f"Accuracy in per cent; lengths in each model's own tokens. {OUR_TOKENS} The task is "
        "defined with 500 samples, 128 tokens for the answer (they are part of the length) and "
        "RULER's key words (here `ruler_words`); the columns tell what a row was measured with. "
        "Passkeys lie in a noise that is the same for all. Each file: every file of the folder is "
        "a haystack of its own, and samples take turns. Thresholds, and in "
        "part haystacks for training and checkpoints, were chosen on the same test novels with "
        "other samples; the last runs of MAC and MAG, TTT's threshold and `niah-all-lmm` were "
        "judged on four other novels ([log](log/evaluation.md)). In the picture our models "
        "stand side by side at each length, and the grey area spans the paper's four variants.\n\n"
    )
    return note + "\n".join(parts)


Row = tuple[str, tuple[str, ...]]
"""A model, on a haystack where it has several, and the terms of its measurement."""


def _s_niah_rows(records: Sequence[Record], kind: str) -> dict[Row, dict[int, Score]]:
    """The scores of each row by length; of equal rows the first record that has a cell."""
    rows: dict[Row, dict[int, Score]] = {}
    for name, ours in by_haystack(records, kind).items():
        for record in ours:
            for score in record.scores:
                if score.length and score.matches("accuracy", kind=kind, depth=None):
                    row = (name, needle_terms(record, score, kind))
                    rows.setdefault(row, {}).setdefault(score.length, score)
    return rows


def needle_terms(record: Record, score: Score, kind: str) -> tuple[str, ...]:
    """The cells below `TERMS`."""
    words = record.options.get("words")
    return (
        str(score.samples),
        str(record.options.get("answer_tokens", "-")),
        f"`{file_name(words)}`" if words else "built in",
        haystack_name(record, kind),
    )
