"""From a finished run to a checkpoint worth shipping: weights, configuration, log, records, card.

    python -m titans.evaluation.shipping runs/needle-mac checkpoints/needle-mac \\
        --record results/needle/needle-mac.json --set write_threshold=0.05 --words

`--after RUN` (repeated) names the runs that this one started from: their logs and configurations
go along, and the card adds them up. `--again` writes card and records of a shipped folder anew:

    python -m titans.evaluation.shipping --again checkpoints/needle-mac \\
        --record results/needle/needle-mac.json --record results/needle/needle-mac-distractors.json

`--texts FILE` goes with both: what the training texts were, in words, for the card.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from titans.data.tasks.needle_words import needle_tokenizer
from titans.errors import DataError, TitansError
from titans.evaluation.records import Record
from titans.evaluation.shipped_card import PROVENANCE_NAME, TEXTS_NAME, describe_checkpoint
from titans.evaluation.subject import ModelSubject, weights_digest
from titans.evaluation.training_log import LOG_NAME
from titans.evaluation.training_stages import CONFIG_NAME, read_stage
from titans.files import read_text, write_bytes, write_text

MAX_BYTES = 8_000_000
"""No file of a shipped checkpoint may be larger."""


def ship(
    run: Path,
    target: Path,
    records: Sequence[Path],
    *,
    earlier: Sequence[Path] = (),
    settings: dict[str, object] | None = None,
    with_words: bool = False,
    texts: Path | None = None,
) -> None:
    """Fill `target` with the last checkpoint of `run` and all that belongs to it.

    Args:
        earlier: the runs that this one started from, first one first.
        texts: what the training texts were, in Markdown, for the card.
    """
    source = run / "checkpoints" / "last"
    subject = ModelSubject.load(source, settings=settings)
    _load_records(records, subject)
    target.mkdir(parents=True, exist_ok=True)
    subject.model.save_pretrained(target)
    tokenizer = needle_tokenizer() if with_words else subject.tokenizer
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    if (source / PROVENANCE_NAME).is_file():
        shutil.copy(source / PROVENANCE_NAME, target)
    runs = [*earlier, run]
    for number, stage in enumerate(runs, start=1):
        folder = target if number == len(runs) else target / f"stage-{number}"
        folder.mkdir(exist_ok=True)
        shutil.copy(stage / LOG_NAME, folder)
        _write_config(read_stage(stage).config, folder, f"runs/{target.name}")
    _write_card(target, records, texts)


def ship_again(target: Path, records: Sequence[Path], texts: Path | None = None) -> None:
    """Write card and records of a shipped checkpoint anew; its weights stay as they are.

    Args:
        records: take the place of those in its folder; none: those stay.
        texts: takes the place of what its folder says about its texts; none: that stays.
    """
    _write_card(target, records or sorted((target / "records").glob("*.json")), texts)


def _load_records(paths: Sequence[Path], subject: ModelSubject) -> dict[str, Record]:
    """Records by the names of their files; those of other weights are refused."""
    loaded = {path.name: Record.load(path) for path in paths}
    digest = weights_digest(subject.model)
    for name, record in loaded.items():
        if record.model.digest != digest:
            raise DataError(
                f"{name} was measured on other weights ({record.model.digest}) than those of "
                f"{subject.name} ({digest}): measure again"
            )
    return loaded


def _write_card(target: Path, records: Sequence[Path], texts: Path | None) -> None:
    """Card and records of what lies in `target`; records that lay there before go."""
    subject = ModelSubject.load(target)
    loaded = _load_records(records, subject)
    if texts is not None:
        write_text(target / TEXTS_NAME, read_text(texts))
    card = describe_checkpoint(target, subject, loaded)
    contents = {path.name: path.read_bytes() for path in records}
    folder = target / "records"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for name, content in contents.items():
        write_bytes(folder / name, content)
    write_text(target / "README.md", card)
    for file in target.rglob("*"):
        if file.is_file() and file.stat().st_size > MAX_BYTES:
            raise DataError(f"{file} has {file.stat().st_size:,} bytes, more than {MAX_BYTES:,}")


def _write_config(config: dict[str, Any], target: Path, out: str) -> None:
    """A run's configuration, without where it ran: of an absolute path its name is left."""
    plain = {**_without_folders(config), "out": out}
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    write_text(target / CONFIG_NAME, text)


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_folders(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_folders(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def main(words: Sequence[str] | None = None) -> int:
    """Ship one run, or write the card of a shipped one anew."""
    parser = argparse.ArgumentParser(prog="python -m titans.evaluation.shipping")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--again", type=Path, metavar="CHECKPOINT", help="a shipped folder")
    parser.add_argument("--record", type=Path, action="append", default=[])
    parser.add_argument("--after", type=Path, action="append", default=[], metavar="RUN")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--words", action="store_true", help="add the needle task's tokenizer")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="what was read in training")
    args = parser.parse_args(words)
    target = args.again or args.target
    if args.again and (args.run or args.after or args.set or args.words):
        parser.error("--again takes a shipped folder as it is: --record and --texts go with it")
    if target is None:
        parser.error("give RUN and TARGET, or --again CHECKPOINT")
    if args.texts and not args.texts.is_file():
        parser.error(f"--texts {args.texts}: no such file")
    settings = {name: yaml.safe_load(v) for name, _, v in (s.partition("=") for s in args.set)}
    try:
        if args.again:
            ship_again(target, args.record, args.texts)
        else:
            ship(
                args.run,
                target,
                args.record,
                earlier=args.after,
                settings=settings,
                with_words=args.words,
                texts=args.texts,
            )
    except TitansError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {target}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
