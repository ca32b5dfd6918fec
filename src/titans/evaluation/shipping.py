"""From a finished run to a checkpoint worth shipping: weights, configuration, log, records, card.

    python -m titans.evaluation.shipping runs/needle-mac checkpoints/needle-mac \\
        --record results/needle/needle-mac.json --set write_threshold=0.05 --words

`--after RUN` (repeated) names the runs that this one started from: their logs and configurations
go along, and the card adds them up.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from titans.data.tasks.needle_words import needle_tokenizer
from titans.errors import DataError
from titans.evaluation.lengths import format_length
from titans.evaluation.records import Record
from titans.evaluation.subject import ModelSubject

MAX_BYTES = 8_000_000
"""No file of a shipped checkpoint may be larger."""

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
| training | {steps:,} steps, {tokens:,} tokens, {minutes:.0f} minutes on one CPU thread{stages} |
| lengths in training | {lengths} |
| settings for inference | {settings} |
| state while reading | {state} |

## Evaluation

{table}
Intervals are 95 %. Records: `records/`.

## Use

```python
from titans.models import TitansForCausalLM

model = TitansForCausalLM.from_pretrained("checkpoints/{name}")
```

## Limits

{limits}
"""
TASK_LIMITS = """\
A small model of one synthetic task: it knows no language beyond it, and nothing else should be
expected of it. It shows what its kind of memory does with lengths far beyond those in training."""
TEXT_LIMITS = """\
A small model of bytes after a few minutes of training: it spells words, and writes nothing that
makes sense. It shows what its kind of memory does for language modelling at lengths beyond those in
training."""
SHOWN = {"accuracy": "accuracy", "bits_per_byte": "bits per byte"}
"""Metrics that a card shows."""


def ship(
    run: Path,
    target: Path,
    records: Sequence[Path],
    *,
    earlier: Sequence[Path] = (),
    settings: dict[str, object] | None = None,
    with_words: bool = False,
) -> None:
    """Fill `target` with the last checkpoint of `run` and all that belongs to it.

    Args:
        earlier: the runs that this one started from, first one first.
    """
    source = run / "checkpoints" / "last"
    subject = ModelSubject.load(source, settings=settings)
    target.mkdir(parents=True, exist_ok=True)
    subject.model.save_pretrained(target)
    tokenizer = needle_tokenizer() if with_words else subject.tokenizer
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    stages = [_read_stage(stage) for stage in (*earlier, run)]
    for number, stage in enumerate(stages, start=1):
        folder = target if number == len(stages) else target / f"stage-{number}"
        folder.mkdir(exist_ok=True)
        shutil.copy(stage.log, folder / "log.jsonl")
        _write_config(stage.config, folder, f"runs/{target.name}")
    loaded = []
    (target / "records").mkdir(exist_ok=True)
    for path in records:
        loaded.append(Record.load(path))
        shutil.copy(path, target / "records" / path.name)
    card = _card(target.name, subject, stages, loaded, settings or {})
    (target / "README.md").write_text(card, encoding="utf-8")
    for file in target.rglob("*"):
        if file.is_file() and file.stat().st_size > MAX_BYTES:
            raise DataError(f"{file} has {file.stat().st_size:,} bytes, more than {MAX_BYTES:,}")


class _Stage(NamedTuple):
    """One run of a training in several."""

    config: dict[str, Any]
    log: Path

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines of the log that are training steps."""
        lines = [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["kind"] == "train"]

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The options of every task that it was trained on."""
        task = self.config["data"].get("task") or {}
        return [{**task, **part} for part in self.config["data"].get("mixture") or [{}]]

    @property
    def lengths(self) -> set[int]:
        """Lengths of the sequences it was trained on."""
        return {int(part["length"]) for part in self.parts if "length" in part}

    @property
    def kinds(self) -> set[str]:
        """Which of a family of tasks it was trained on: qa1, pk."""
        return {str(part[key]) for part in self.parts for key in ("name", "kind") if key in part}


def _read_stage(run: Path) -> _Stage:
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    return _Stage(config, run / "log.jsonl")


def _write_config(config: dict[str, Any], target: Path, out: str) -> None:
    """A run's configuration, without where it ran: of an absolute path its name is left."""
    plain = {**_without_folders(config), "out": out}
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    (target / "config.yaml").write_text(text, encoding="utf-8")


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_folders(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_folders(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _card(
    name: str,
    subject: ModelSubject,
    stages: Sequence[_Stage],
    records: Sequence[Record],
    settings: dict[str, object],
) -> str:
    config = stages[-1].config
    source = config["data"]["source"]
    steps = [stage.steps for stage in stages]
    lengths = sorted(set().union(*(stage.lengths for stage in stages)))
    kinds = ", ".join(sorted(set().union(*(stage.kinds for stage in stages))))
    states = [s.value for r in records for s in r.scores if s.metric == "state_bytes"]
    return CARD.format(
        name=name,
        variant=subject.config.variant.upper(),
        parameters=sum(p.numel() for p in subject.model.parameters()),
        source=source,
        kinds=f" ({kinds})" if kinds else "",
        limits=TEXT_LIMITS if source == "text" else TASK_LIMITS,
        stages="" if len(stages) == 1 else f" in {len(stages)} stages (`stage-1`, ...)",
        steps=sum(lines[-1]["step"] for lines in steps),
        tokens=sum(lines[-1]["tokens"] for lines in steps),
        minutes=sum(line["seconds"] for lines in steps for line in lines) / 60,
        lengths=", ".join(format_length(n) for n in lengths) or config["data"]["sequence_len"],
        settings=", ".join(f"`{k}={v}`" for k, v in settings.items()) or "as trained",
        state=f"{states[0]:,.0f} bytes at every length" if len(set(states)) == 1 else "see records",
        table=_table(records),
    )


def _table(records: Sequence[Record]) -> str:
    metrics = {s.metric for record in records for s in record.scores} & set(SHOWN)
    title = " / ".join(SHOWN[metric] for metric in sorted(metrics)) or "accuracy"
    lines = [f"| task | length | {title} | interval | samples |", "|---|---|---|---|---|"]
    for record in records:
        for score in record.scores:
            if score.metric in SHOWN and score.length and not {"depth", "from"} & set(score.detail):
                kind = str(score.detail.get("kind", ""))
                kind = str(score.detail.get("task", kind))
                if "distractors" in record.options:
                    kind = "with" if record.options["distractors"] else "without"
                    kind += " distractors"
                between = f"{score.low:.3f} to {score.high:.3f}"
                lines.append(
                    f"| {', '.join(filter(None, (record.task, kind)))} | "
                    f"{format_length(score.length)} | "
                    f"{score.value:.3f} | {between} | {score.samples} |"
                )
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Ship one run."""
    parser = argparse.ArgumentParser(prog="python -m titans.evaluation.shipping")
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--record", type=Path, action="append", default=[])
    parser.add_argument("--after", type=Path, action="append", default=[], metavar="RUN")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--words", action="store_true", help="add the needle task's tokenizer")
    args = parser.parse_args(words)
    settings = {name: yaml.safe_load(v) for name, _, v in (s.partition("=") for s in args.set)}
    ship(
        args.run,
        args.target,
        args.record,
        earlier=args.after,
        settings=settings,
        with_words=args.words,
    )
    print(f"wrote {args.target}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
