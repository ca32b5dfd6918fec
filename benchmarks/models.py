"""Cost of the models against a key-value-cache Transformer of equal parameters, on one core.

    python benchmarks/models.py cost                      # all variants of size tiny
    python benchmarks/models.py cost --size small --variants mac transformer
    python benchmarks/models.py flat
    python benchmarks/models.py stream --variant mac --tokens 1000000
    python benchmarks/models.py writes --variant lmm
    python benchmarks/models.py plot

`cost` measures prefill and decode speed over the length of the context, `flat` compares reading at
two places of one text in turns (a busy machine hits both alike), `stream` reads a long text
and watches the state's size and the process's memory, `writes` times prefill with all tokens
written, about half of them, and none. Results are added to benchmarks/results/models.json.
"""

import argparse
import json
import math
import platform
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
import torch
from tqdm import tqdm

from titans.layers.attention import KeyValues
from titans.models import TitansCache, TitansForCausalLM
from titans.models.presets import count_parameters, preset

RESULTS = Path(__file__).parent / "results" / "models.json"
PLOT = Path(__file__).parent.parent / "docs" / "figures" / "models.png"
PIECE = 2_048
DECODE_TOKENS = 48


LONG: dict[str, object] = {"window": 512, "segment_len": 512, "memory": {"chunk_size": 64}}
"""What one would choose for long texts, and what the large presets have."""


def model_of(size: str, variant: str) -> TitansForCausalLM:
    torch.manual_seed(0)
    return TitansForCausalLM(preset(size, variant, **LONG)).eval()


@torch.no_grad()
def curves(model: TitansForCausalLM, prefill: list[int], decode: list[int]) -> dict[str, object]:
    """Tokens per second to read a prompt of each length, and to go on after a context of each.

    A model of constant state reads one long text. Its state is kept at every length; afterwards the
    lengths take turns in decoding (median of single tokens), so that a slow moment of the machine
    hits all of them.
    The Transformer reads each prompt in one call, its best way, and decodes after a cache of
    made-up keys and values.
    """
    if model.config.variant == "transformer":
        reading = {
            n: n / _time(lambda n=n: _read(model, model.new_cache(1), n, n)) for n in prefill
        }
        going_on = _decode_speeds(model, {n: _filled_cache(model, n) for n in decode})
        return {"prefill_tokens_per_second": reading, "decode_tokens_per_second": going_on}
    reading, states = {}, {}
    cache, read, spent = model.new_cache(1), 0, 0.0
    for length in sorted({*prefill, *decode}):
        todo = length - read
        spent += _time(lambda todo=todo: _read(model, cache, todo, PIECE))
        read, reading[length], states[length] = length, length / spent, cache.fork()
    return {
        "prefill_tokens_per_second": {n: reading[n] for n in prefill},
        "decode_tokens_per_second": _decode_speeds(model, {n: states[n] for n in decode}),
    }


def _decode_speeds(model: TitansForCausalLM, states: dict[int, TitansCache]) -> dict[int, float]:
    """Tokens per second, one at a time (median), the lengths of context in turn."""
    token = torch.zeros(1, 1, dtype=torch.long)
    times: dict[int, list[float]] = {n: [] for n in states}
    for _ in range(DECODE_TOKENS):
        for n, cache in states.items():
            times[n].append(_time(lambda cache=cache: model(token, past_key_values=cache)))
    return {n: 1 / median(found) for n, found in times.items()}


def _read(model: TitansForCausalLM, cache: TitansCache, tokens: int, piece: int) -> None:
    generator = torch.Generator().manual_seed(int(cache.position[0]))
    bar = tqdm(total=tokens, unit="token", leave=False, delay=2, file=sys.stderr)
    while tokens > 0:
        now = min(piece, tokens)
        ids = torch.randint(0, model.config.vocab_size, (1, now), generator=generator)
        model(ids, past_key_values=cache, logits_to_keep=1)
        tokens -= now
        bar.update(now)
    bar.close()


def _filled_cache(model: TitansForCausalLM, context: int) -> TitansCache:
    """A Transformer's cache as after `context` tokens; the keys' values do not change its speed."""
    cache = model.new_cache(1)
    room = context + 2 * DECODE_TOKENS

    def fill(past: KeyValues) -> KeyValues:
        shape = (1, room, *past.keys.shape[2:])
        return KeyValues(torch.randn(shape) * 0.1, torch.randn(shape) * 0.1)

    cache.blocks = [type(b)(past=fill(b.past)) for b in cache.blocks]
    cache.position = torch.tensor([context])
    cache.start = cache.columns = context
    return cache


def _time(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def cost(args: argparse.Namespace) -> dict[str, object]:
    """Prefill and decode curves of several variants of one size, in one process."""
    found: dict[str, object] = {}
    for variant in args.variants:
        model = model_of(args.size, variant)
        found[variant] = {
            "parameters": count_parameters(model.config),
            "state_bytes": model.new_cache(1).num_bytes,
            **curves(model, args.prefill, args.decode),
        }
        print(json.dumps({variant: found[variant]}), flush=True)
    return {"size": args.size, "variants": found}


@torch.no_grad()
def flat(args: argparse.Namespace) -> dict[str, object]:
    """Is reading as fast late in a text as early? Two places take turns, 2,048 tokens each."""
    found: dict[str, object] = {}
    for variant in args.variants:
        model = model_of(args.size, variant)
        cache = model.new_cache(1)
        _read(model, cache, args.early, PIECE)
        early = cache.fork()
        _read(model, cache, args.late - args.early, PIECE)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.rounds):
            for state, spent in zip((early, cache), times, strict=True):
                spent.append(_time(partial(_read, model, state.fork(), PIECE, PIECE)))
        found[variant] = {
            "early_tokens_per_second": PIECE / min(times[0]),
            "late_tokens_per_second": PIECE / min(times[1]),
            "late_to_early": min(times[0]) / min(times[1]),
            "late_to_early_median_of_pairs": median(
                first / second for first, second in zip(*times, strict=True)
            ),
        }
        print(json.dumps({variant: found[variant]}), flush=True)
    return {"size": args.size, "early": args.early, "late": args.late, "variants": found}


def against_transformer(variants: dict[str, dict]) -> dict[str, object]:
    """Per variant and way: the ratio of speeds at each length, and from where it is above one."""
    found: dict[str, object] = {}
    for variant, ours in variants.items():
        if variant == "transformer" or "transformer" not in variants:
            continue
        for way in ("prefill", "decode"):
            name = f"{way}_tokens_per_second"
            theirs = {int(n): speed for n, speed in variants["transformer"][name].items()}
            ratio = {int(n): s / theirs[int(n)] for n, s in ours[name].items() if int(n) in theirs}
            found[f"{variant} {way}"] = {"ratio": ratio, "faster_from": crossing(ratio)}
    return found


def crossing(ratio: dict[int, float]) -> int | None:
    """Where a rising ratio passes one, on a line between its neighbours in log-log."""
    points = sorted(ratio.items())
    if points[0][1] >= 1:
        return points[0][0]
    for (n, low), (m, high) in pairwise(points):
        if low < 1 <= high:
            part = -math.log(low) / (math.log(high) - math.log(low))
            return round(math.exp(math.log(n) + part * (math.log(m) - math.log(n))))
    return None


@torch.no_grad()
def stream(args: argparse.Namespace) -> dict[str, object]:
    """Read a long text; the state's bytes and the resident memory on the way."""
    model = model_of(args.size, args.variant)
    cache, process, rows = model.new_cache(1), psutil.Process(), []
    read, begin = 0, time.perf_counter()
    bar = tqdm(total=args.tokens, unit="token", file=sys.stderr, mininterval=5)
    marks = [n for n in (1_024, 4_096, 16_384, 65_536, 262_144, 1_000_000) if n <= args.tokens]
    for mark in marks:
        while read < mark:
            now = min(PIECE, mark - read)
            ids = torch.randint(0, model.config.vocab_size, (1, now))
            logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
            read += now
            bar.update(now)
        rows.append(
            {
                "tokens": mark,
                "state_bytes": cache.num_bytes,
                "resident_mb": round(process.memory_info().rss / 2**20, 1),
                "seconds": round(time.perf_counter() - begin, 1),
                "finite": bool(torch.isfinite(logits).all()),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    bar.close()
    return {"size": args.size, "variant": args.variant, "rows": rows}


@torch.no_grad()
def writes(args: argparse.Namespace) -> dict[str, object]:
    """Does skipping writes save time? Prefill with all, some and no tokens written."""
    model = model_of(args.size, args.variant)
    ids = torch.randint(0, model.config.vocab_size, (1, 8_192))
    stats = model(ids).memory_stats
    theta = float(stats["step_size"].mean())
    found = {}
    for name, threshold in (("all", None), ("about half", theta), ("none", 1.0)):
        model.set_write_threshold(threshold)
        share = float(model(ids).memory_stats["written_share"].mean())
        model.set_memory_report(False)
        times = [_time(lambda: model(ids, logits_to_keep=1)) for _ in range(3)]
        model.set_memory_report(True)
        found[name] = {"written_share": share, "tokens_per_second": 8_192 / min(times)}
        print(json.dumps({name: found[name]}), flush=True)
    return {"size": args.size, "variant": args.variant, "found": found}


def plot(args: argparse.Namespace) -> None:
    """Both curves of the last `cost` run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    data = json.loads(RESULTS.read_text())["cost"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for variant, curves in data["variants"].items():
        for axis, name in zip(axes, ("prefill", "decode"), strict=True):
            curve = curves[f"{name}_tokens_per_second"]
            axis.plot([int(n) for n in curve], list(curve.values()), "o-", label=variant)
    for axis, title in zip(axes, ("prefill", "decode"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="tokens of context", title=title)
        axis.set_ylabel("tokens per second")
        axis.grid(alpha=0.3)
        ticks = [n for n in (2_048, 8_192, 32_768, 131_072) if n <= axis.get_xlim()[1]]
        axis.set_xticks(ticks, [f"{n // 1024}k" for n in ticks])
    axes[0].legend()
    figure.suptitle(f"size {data['size']}, equal parameters, one core")
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)
    print(PLOT)


def _keep(name: str, result: dict[str, object]) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known["machine"] = {"processor": platform.processor() or platform.machine(), "threads": 1}
    known["torch"] = torch.__version__
    if name in ("cost", "flat") and known.get(name, {}).get("size") == result["size"]:
        result["variants"] = {**known[name]["variants"], **result["variants"]}  # type: ignore[dict-item]
    if name == "cost":
        result["against_transformer"] = against_transformer(result["variants"])  # type: ignore[arg-type]
        print(json.dumps(result["against_transformer"], indent=2))
    known[name] = result
    RESULTS.write_text(json.dumps(known, indent=2) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("cost")
    one.add_argument("--size", default="tiny")
    variants = ["lmm", "mac", "mag", "mal", "transformer"]
    one.add_argument("--variants", nargs="+", default=variants)
    lengths = [2_048, 8_192, 32_768, 65_536, 131_072]
    one.add_argument("--prefill", nargs="+", type=int, default=lengths)
    one.add_argument("--decode", nargs="+", type=int, default=[1_024, 32_768, 131_072, 262_144])
    four = parts.add_parser("flat")
    four.add_argument("--size", default="tiny")
    four.add_argument("--variants", nargs="+", default=variants[:4])
    four.add_argument("--early", type=int, default=2_048)
    four.add_argument("--late", type=int, default=65_536)
    four.add_argument("--rounds", type=int, default=16)
    two = parts.add_parser("stream")
    two.add_argument("--size", default="nano")
    two.add_argument("--variant", default="mac")
    two.add_argument("--tokens", type=int, default=1_000_000)
    three = parts.add_parser("writes")
    three.add_argument("--size", default="micro")
    three.add_argument("--variant", default="lmm")
    parts.add_parser("plot")
    args = parser.parse_args()
    if args.part == "plot":
        plot(args)
        return
    measure = {"cost": cost, "flat": flat, "stream": stream, "writes": writes}[args.part]
    _keep(args.part, measure(args))


if __name__ == "__main__":
    main()
