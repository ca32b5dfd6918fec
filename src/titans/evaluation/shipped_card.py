"""The card of a shipped checkpoint (its README.md), from what lies in the checkpoint's folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from titans.data.synthetic import TOKEN_TASKS
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record, Score
from titans.evaluation.report_cells import haystack_name
from titans.evaluation.subject import ModelSubject
from titans.evaluation.training_log import add_up
from titans.evaluation.training_stages import Stage, read_stages

PROVENANCE_NAME = "provenance.json"
TEXTS_NAME = "texts.md"
"""What the training texts were, in words, where the names of their folders do not tell."""

CARD = """---
license: apache-2.0
library_name: transformers
tags: [titans, neural-memory]
---
# {name}

{variant} model with {parameters:,} parameters, trained on the `{source}` task{kinds} with
`titans train` (the whole configuration is in `config.yaml`, the log in `log.jsonl`).

| | |
|---|---|
{facts}
{texts}
## Evaluation

{table}
Intervals are 95 %. Records: `records/`.{depths}

## Use

```python
from titans.models import TitansForCausalLM

model = TitansForCausalLM.from_pretrained("checkpoints/{name}")
```

## Limits

{limits}
"""
TASK_LIMITS = """\
A small model of {tasks}: it knows no other language, and nothing else should be
expected of it. It shows what its kind of memory does with lengths far beyond those in training."""
TEXT_LIMITS = """\
A small model of bytes after {minutes:.0f} minutes of training: it spells words, and writes nothing
that makes sense. It shows what its kind of memory does for language modelling at lengths beyond
those in training."""
SHOWN = {"accuracy": "accuracy", "bits_per_byte": "bits per byte"}
"""Metrics that a card shows."""
THRESHOLDS = ("write_threshold", "surprise_threshold")
"""Settings that are off in a run's configuration unless it names them."""
STATE_READINGS = (32, 96)
"""Tokens that are read to see how large a state is, where no record has it."""


def describe_checkpoint(folder: Path, subject: ModelSubject, records: Mapping[str, Record]) -> str:
    """The card of the checkpoint in `folder`; `records` by the names of their files."""
    stages = read_stages(folder)
    source = stages[-1].config["data"]["source"]
    kinds = sorted(_united(stage.kinds for stage in stages))
    by_depth = [n for n, r in records.items() if any("depth" in s.detail for s in r.scores)]
    return CARD.format(
        name=folder.name,
        variant=subject.config.variant.upper(),
        parameters=sum(p.numel() for p in subject.model.parameters()),
        source=source,
        kinds=f" ({_listed(kinds)})" if kinds else "",
        facts="\n".join(
            f"| {name} | {value} |"
            for name, value in _facts(folder, subject, stages, [*records.values()]).items()
        ),
        texts=_texts(folder),
        limits=_limits(source, kinds, stages),
        table=_table([*records.values()]),
        depths=f" Accuracy by depth: {_code(by_depth)}." if by_depth else "",
    )


def _facts(
    folder: Path, subject: ModelSubject, stages: Sequence[Stage], records: Sequence[Record]
) -> dict[str, str]:
    """The lines of the card's first table."""
    data = stages[-1].config["data"]
    trained = add_up([stage.trained for stage in stages])
    lengths = sorted(_united(stage.lengths for stage in stages))
    settings = inference_settings(subject, stages[-1])
    facts = {
        "training": f"{trained.steps:,} steps, {trained.tokens:,} tokens, "
        f"{trained.seconds / 60:.0f} minutes on one CPU thread"
        + (f" in {len(stages)} stages (`stage-1`, ...)" if len(stages) > 1 else ""),
        "training text": _code(sorted(_united(s.texts for s in stages))) or "none: made of tokens",
        "tokenizer": _tokenizer(subject, data),
        "lengths in training": _listed(map(format_length, lengths)) or str(data["sequence_len"]),
        "seed": _listed(map(str, sorted({int(stage.config.get("seed", 0)) for stage in stages}))),
        "settings for inference": _code(f"{k}={v}" for k, v in settings.items()) or "as trained",
        "state while reading": _state(subject, records),
    }
    provenance = folder / PROVENANCE_NAME
    if provenance.is_file():
        made = json.loads(provenance.read_text(encoding="utf-8"))
        commit = f", commit {made['commit'][:12]}" if made.get("commit") else ""
        facts["trained with"] = f"{made['package']} {made['version']}{commit}"
    return facts


def _texts(folder: Path) -> str:
    """The section about the training texts, where the folder has something to say about them."""
    note = folder / TEXTS_NAME
    if not note.is_file():
        return ""
    return f"\n## Training texts\n\n{note.read_text(encoding='utf-8').strip()}\n"


def _limits(source: str, kinds: Sequence[str], stages: Sequence[Stage]) -> str:
    minutes = add_up([stage.trained for stage in stages]).seconds / 60
    tasks = f"{len(kinds)} synthetic tasks" if len(kinds) > 1 else "one synthetic task"
    return (TEXT_LIMITS if source == "text" else TASK_LIMITS).format(tasks=tasks, minutes=minutes)


def inference_settings(subject: ModelSubject, stage: Stage) -> dict[str, object]:
    """Fields of the shipped configuration that are not as the run was trained."""
    trained = {name: v for name, v in stage.config["model"].items() if v is not None}
    trained = {**dict.fromkeys(THRESHOLDS), **trained}
    shipped = subject.config.to_dict()
    return {
        name: shipped[name]
        for name, value in trained.items()
        if name in shipped and shipped[name] != value
    }


def _tokenizer(subject: ModelSubject, data: dict[str, Any]) -> str:
    size = "" if subject.tokenizer is None else f" ({len(subject.tokenizer):,} entries)"
    if data["source"] not in TOKEN_TASKS:
        return f"`{data['tokenizer']}`{size}"
    return f"the task's own words{size}; trained on tokens" if size else "none: the task is tokens"


def _state(subject: ModelSubject, records: Sequence[Record]) -> str:
    states = {s.value for r in records for s in r.scores if s.metric == "state_bytes"}
    if states:
        return f"{states.pop():,.0f} bytes at every length" if len(states) == 1 else "see records"
    read = [np.zeros((1, length), dtype=np.int64) for length in STATE_READINGS]
    sizes = [f"{subject.predict(tokens).state_bytes:,}" for tokens in read]
    lengths = " and ".join(map(str, STATE_READINGS))
    return f"{' and '.join(dict.fromkeys(sizes))} bytes after {lengths} tokens (not in the records)"


def _table(records: Sequence[Record]) -> str:
    """One line per score, a task's lengths together."""
    metrics = {s.metric for record in records for s in record.scores} & set(SHOWN)
    title = " / ".join(SHOWN[metric] for metric in sorted(metrics)) or "accuracy"
    lines = [f"| task | length | {title} | interval | samples |", "|---|---|---|---|---|"]
    scores = [
        (_kind(record, score), score.length, score)
        for record in records
        for score in record.scores
        if score.metric in SHOWN and score.length and not {"depth", "from"} & set(score.detail)
    ]
    for kind, length, score in sorted(scores, key=lambda found: found[:2]):
        lines.append(
            f"| {kind} | {format_length(length)} | {score.value:.3f} | "
            f"{score.low:.3f} to {score.high:.3f} | {score.samples} |"
        )
    return "\n".join(lines) + "\n"


def _kind(record: Record, score: Score) -> str:
    """The task of a score, which of its kinds, and what its needles lie in."""
    kind = str(score.detail.get("task", score.detail.get("kind", "")))
    if "distractors" in record.options:
        kind = f"{'with' if record.options['distractors'] else 'without'} distractors"
    text = f"in {haystack_name(record, kind)}" if record.options.get("haystack") else ""
    return _listed(filter(None, (record.task, kind, text)))


def _united(sets: Iterable[set[Any]]) -> set[Any]:
    return set().union(*sets)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _code(words: Iterable[str]) -> str:
    return _listed(f"`{word}`" for word in words)
