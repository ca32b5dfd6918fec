r"""From a finished run to a checkpoint worth shipping: weights, configuration, log and card.

    python -m tools.ship runs/needle-mac checkpoints/needle-mac --words \
        --set memory.write_threshold=0.05
    python -m tools.ship --card checkpoints/needle-mac

Of a training in stages every log and configuration goes along. The card (`card.md.j2`) has the
numbers of every record in `results/` that was measured on these weights; `--card` writes it again
if there are more. `texts.md` in the folder, if there is one, says what the training texts were.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from titans.data.synthetic import TOKEN_TASKS
from titans.errors import DataError, TitansError
from titans.evaluation.lengths import format_length
from titans.evaluation.model import ModelSubject, weights_digest
from titans.evaluation.record import Record, Score
from titans.files import read_text, write_text
from titans.models.upgrade import upgrade_names
from titans.settings import apply_settings, to_yaml
from titans.tasks.needle import needle_tokenizer
from titans.training.log import stage_folders
from tools.stages import CONFIG_NAME, LOG_NAME, Stage, read_stage, read_stages

ROOT = Path(__file__).parent.parent
MAX_BYTES = 8_000_000
"""No file of a shipped checkpoint may be larger."""
SHOWN = ("accuracy", "bits_per_byte")
"""Metrics that a card shows."""
STATE_READINGS = (32, 96)
"""Tokens that are read to see how large a state is, if no record has it."""
THRESHOLDS = ("memory.write_threshold", "memory.surprise_threshold")
"""Settings that are off in a run's configuration unless it names them."""


def ship(
    run: Path,
    target: Path,
    *,
    settings: dict[str, object] | None = None,
    with_words: bool = False,
    results: Path = ROOT / "results",
) -> None:
    """Fill `target` with the last checkpoint of `run` and all that belongs to it."""
    runs = stage_folders(run) or [run]
    source = runs[-1] / "checkpoints" / "last"
    subject = ModelSubject.load(source, settings=settings)
    target.mkdir(parents=True, exist_ok=True)
    subject.model.save_pretrained(target)
    tokenizer = needle_tokenizer() if with_words else subject.tokenizer
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    if (source / "provenance.json").is_file():
        shutil.copy(source / "provenance.json", target)
    for number, stage in enumerate(runs, start=1):
        folder = target if number == len(runs) else target / f"stage-{number}"
        folder.mkdir(exist_ok=True)
        shutil.copy(stage / LOG_NAME, folder)
        config = {**_without_folders(read_stage(stage).config), "out": f"runs/{target.name}"}
        write_text(folder / CONFIG_NAME, to_yaml(config))
    write_text(target / "README.md", write_card(target, results))
    for file in target.rglob("*"):
        if file.is_file() and file.stat().st_size > MAX_BYTES:
            raise DataError(f"{file} has {file.stat().st_size:,} bytes, more than {MAX_BYTES:,}")


def _without_folders(value: Any) -> Any:
    """A configuration without where it ran: of an absolute path only its name is left."""
    if isinstance(value, dict):
        return {name: _without_folders(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_folders(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def write_card(folder: Path, results: Path = ROOT / "results") -> str:
    """The card of the checkpoint in `folder`."""
    subject = ModelSubject.load(folder)
    stages = read_stages(folder)
    records = find_records(results, weights_digest(subject.model))
    texts = folder / "texts.md"
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("card.md.j2").render(
        name=folder.name,
        variant=subject.config.variant.upper(),
        parameters=f"{sum(p.numel() for p in subject.model.parameters()):,}",
        source=stages[-1].config["data"]["source"],
        kinds=sorted(_united(stage.kinds for stage in stages)),
        facts={
            **_facts(folder, subject, stages),
            "state while reading": _state(subject, records.values()),
        },
        texts=read_text(texts).strip() if texts.is_file() else "",
        rows=_rows(records.values()),
        records=list(records),
        minutes=f"{_minutes(stages):.0f}",
    )


def find_records(results: Path, digest: str) -> dict[str, Record]:
    """The records of these weights, by their places in `results`."""
    files = sorted(results.rglob("*.json"))
    loaded = {f"results/{file.relative_to(results)}": Record.load(file) for file in files}
    return {place: r for place, r in loaded.items() if r.model.digest == digest}


def _facts(folder: Path, subject: ModelSubject, stages: Sequence[Stage]) -> dict[str, str]:
    """The lines of the card's first table."""
    data = stages[-1].config["data"]
    done = [stage.trained for stage in stages]
    lengths = sorted(_united(stage.lengths for stage in stages))
    changed = inference_settings(subject, stages[-1])
    facts = {
        "training": f"{sum(t.steps for t in done):,} steps, {sum(t.tokens for t in done):,} "
        f"tokens, {_minutes(stages):.0f} minutes on one CPU thread"
        + (f" in {len(stages)} runs (`stage-1`, ...)" if len(stages) > 1 else ""),
        "training text": _code(sorted(_united(s.texts for s in stages))) or "none: made of tokens",
        "tokenizer": _tokenizer(subject, data),
        "lengths in training": ", ".join(map(format_length, lengths)) or str(data["sequence_len"]),
        "seed": ", ".join(map(str, sorted({int(s.config.get("seed", 0)) for s in stages}))),
        "settings for inference": _code(f"{k}={v}" for k, v in changed.items()) or "as trained",
    }
    provenance = folder / "provenance.json"
    if provenance.is_file():
        made = json.loads(read_text(provenance))
        commit = f", commit {made['commit'][:12]}" if made.get("commit") else ""
        facts["trained with"] = f"{made['package']} {made['version']}{commit}"
    return facts


def inference_settings(subject: ModelSubject, stage: Stage) -> dict[str, object]:
    """Fields of the shipped configuration that are not as the run was trained."""
    trained = _flat(upgrade_names(stage.config["model"]))
    trained = {**dict.fromkeys(THRESHOLDS), **{k: v for k, v in trained.items() if v is not None}}
    shipped = _flat(subject.config.to_dict())
    return {
        name: shipped[name]
        for name, value in trained.items()
        if name in shipped and shipped[name] != value
    }


def _flat(settings: Mapping[str, Any]) -> dict[str, object]:
    """Settings of a model in one table, those of its memory as `memory.depth`."""
    memory = {f"memory.{name}": value for name, value in settings.get("memory", {}).items()}
    return {**{name: v for name, v in settings.items() if name != "memory"}, **memory}


def _tokenizer(subject: ModelSubject, data: Mapping[str, Any]) -> str:
    size = "" if subject.tokenizer is None else f" ({len(subject.tokenizer):,} entries)"
    if data["source"] not in TOKEN_TASKS:
        return f"`{data['tokenizer']}`{size}"
    return f"the task's own words{size}; trained on tokens" if size else "none: the task is tokens"


def _rows(records: Iterable[Record]) -> list[list[str]]:
    """One line per score by task and length; those of maps and of positions are left out."""
    shown = [
        (_title(record, score), score.length or 0, score)
        for record in records
        for score in record.scores
        if score.metric in SHOWN and not {"depth", "from"} & set(score.detail)
    ]
    return [
        [
            title,
            format_length(length),
            f"{s.value:.3f}",
            f"{s.low:.3f} to {s.high:.3f}",
            f"{s.samples}",
        ]
        for title, length, s in sorted(shown, key=lambda row: row[:2])
    ]


def _state(subject: ModelSubject, records: Iterable[Record]) -> str:
    """How large the state is while the model reads: by the records, or by reading a little."""
    states = {s.value for r in records for s in r.scores if s.metric == "state_bytes"}
    if states:
        return f"{max(states):,.0f} bytes" + " at every length" * (len(states) == 1)
    read = [np.zeros((1, length), dtype=np.int64) for length in STATE_READINGS]
    sizes = dict.fromkeys(f"{subject.predict(tokens).state_bytes:,}" for tokens in read)
    lengths = " and ".join(map(str, STATE_READINGS))
    return f"{' and '.join(sizes)} bytes after {lengths} tokens (not in the records)"


def _title(record: Record, score: Score) -> str:
    """The task of a score, which of its kinds, and what its needle is hidden in."""
    kind = str(score.detail.get("task", score.detail.get("kind", "")))
    if "distractors" in record.options:
        kind = f"{'with' if record.options['distractors'] else 'without'} distractors"
    haystack = str(record.options.get("haystack") or "").split("@")[0]
    text = "in noise" if kind == "pk" else f"in `{haystack}`" if haystack else ""
    unit = "bits per byte" if score.metric == "bits_per_byte" else ""
    return ", ".join(filter(None, (record.task, kind, text, unit)))


def _minutes(stages: Sequence[Stage]) -> float:
    return sum(stage.trained.seconds for stage in stages) / 60


def _united(sets: Iterable[set[Any]]) -> set[Any]:
    return set().union(*sets)


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def main(words: Sequence[str] | None = None) -> int:
    """Ship one run, or write the card of a shipped one again."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.ship",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--card", type=Path, metavar="CHECKPOINT", help="a shipped folder")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--words", action="store_true", help="add the needle task's tokenizer")
    args = parser.parse_args(words)
    if not args.card and args.target is None:
        parser.error("give RUN and TARGET, or --card CHECKPOINT")
    try:
        if args.card:
            write_text(args.card / "README.md", write_card(args.card))
        else:
            ship(
                args.run,
                args.target,
                settings=apply_settings({}, args.set),
                with_words=args.words,
            )
    except TitansError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
