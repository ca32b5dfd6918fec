"""`titans analyze` (and `titans-analyze`): look into a memory while it reads a text."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from titans.cli.values import whole

if TYPE_CHECKING:
    from titans.analysis.records import Trace
    from titans.analysis.subject import Subject

EXAMPLES = """examples:
  titans analyze checkpoints/needle-lmm --text docs/analyze/needles.txt
  titans analyze runs/mag/checkpoints/last --text book.txt --out out/book
  titans analyze runs/mag/checkpoints/last --text book.txt --compare runs/mac/checkpoints/last
  titans analyze runs/mag/checkpoints/last --text book.txt --compare letters.txt --json

Writes report.html (one file, opens from disk), trace.json (all numbers) and figures (.png).
What they show: docs/analyze.md.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.epilog = EXAMPLES
    parser.add_argument("checkpoint", type=Path, help="folder of a model with a memory")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="text in UTF-8")
    parser.add_argument(
        "--out", type=Path, default=Path("analysis"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--compare", type=Path, metavar="PATH", help="a second checkpoint or text, side by side"
    )
    parser.add_argument(
        "--tokens",
        type=whole(2),
        default=50_000,
        metavar="N",
        help="tokens shown one by one; curves cover all (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the main figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Read, then write the page, the numbers and the pictures."""
    import json

    from titans.analysis.export import summary, write_json
    from titans.analysis.plots import save_figures
    from titans.analysis.report import write_report
    from titans.files import check_folder, make_folder

    check_folder(args.out)
    traces = [_read(subject, text, args) for subject, text in _subjects(args)]
    make_folder(args.out)
    files = [args.out / "report.html", args.out / "trace.json"]
    write_report(traces, files[0], command=_command(args))
    write_json(traces, files[1])
    files += save_figures(traces, args.out)
    for found in traces:
        for note in found.notes:
            print(f"titans analyze: {found.name}: {note}", file=sys.stderr)
    if args.json:
        written = [str(file) for file in files]
        print(json.dumps({"files": written, "traces": [summary(t) for t in traces]}))
    else:
        _print(traces, files)
    return 0


def _subjects(args: argparse.Namespace) -> list[tuple["Subject", Path]]:
    """What reads what."""
    from titans.analysis.subject import Subject
    from titans.errors import DataError

    for path in (args.text, args.compare):
        if path is not None and not path.exists():
            raise DataError(f"{path}: no such file or folder")
    first = Subject.load(args.checkpoint)
    if args.compare is None:
        return [(first, args.text)]
    if args.compare.is_dir():
        return [(first, args.text), (Subject.load(args.compare), args.text)]
    return [(first, args.text), (first, args.compare)]


def _read(subject: "Subject", text: Path, args: argparse.Namespace) -> "Trace":
    from tqdm import tqdm

    from titans.analysis.tracing import Limits

    with tqdm(
        unit=" tokens", unit_scale=True, desc=f"{subject.name}: {text.name}", delay=2, leave=False
    ) as bar:

        def advance(count: int) -> None:
            bar.update(count)

        return subject.read(text, limits=Limits(tokens=args.tokens), on_read=advance)


def _command(args: argparse.Namespace) -> str:
    """The command line, with paths as they were given."""
    words = ["titans", "analyze", str(args.checkpoint), "--text", str(args.text)]
    if args.compare is not None:
        words += ["--compare", str(args.compare)]
    return shlex.join(words)


def _print(traces: list["Trace"], files: list[Path]) -> None:
    from titans.analysis.forgetting import forgetting_curve, show_tokens
    from titans.analysis.probes import verdict

    for found in traces:
        print(f"{found.name}: {found.num_tokens:,} tokens")
        words = [peak.texts[peak.offset].strip() for peak in found.peaks[:6] if peak.texts]
        if words:
            print(f"  strongest writes: {', '.join(words)}")
        for layer in found.layers:
            curve = forgetting_curve(layer.forgetting)
            if curve.half_life is not None:
                told = f"half-life {show_tokens(curve.half_life)} tokens"
            elif len(curve.ages):
                told = f"half-life beyond {curve.ages[-1]:,.0f} tokens"
            else:
                told = "nothing written"
            print(f"  layer {layer.layer}: {told}")
        if found.worth is not None:
            print(f"  {verdict(found.worth)}")
    print("wrote " + ", ".join(str(file) for file in files))
