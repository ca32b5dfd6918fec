"""Does the memory stay alive? Repeated keys at every chunk size, and long soaks.

    python benchmarks/stability.py repeat
    python benchmarks/stability.py soak --tokens 64k --text FILE      # bytes of a text
    python benchmarks/stability.py soak --tokens 2m                   # noise, needles every 10k
    python benchmarks/stability.py adversarial --tokens 64k           # float32, chunks 1 to 256
    python benchmarks/stability.py adversarial --tokens 16k --dtype bfloat16 --chunks 16 256
    python benchmarks/stability.py adversarial --rules online --depths 2 3 4 --chunks 16 256
    python benchmarks/stability.py gradient --tokens 16k --figure docs/figures/gradient-length.png

`repeat` compares the bare recurrence with the stabiliser. `soak` streams tokens through a default
layer of each kind of forgetting, hides a passage every 10,000 tokens, and reports at the end
whether the weights are finite and whether the memory still learns: how far the surprise of a
fresh passage of 16 tokens falls when it is read 16 times. `adversarial` reads and trains on rows
that a text would not have (see `ADVERSARIES`) and names those in which something is NaN or
infinite: an output, the state, or a gradient. `gradient` draws the norm of the outer gradient of an
untrained layer against the length of its input, for the default of before and today's.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from titans import NeuralMemory
from titans.files import write_figure
from titans.layers.memory_config import MemorySettings, Rule
from titans.ops import Gates, MemoryState, ScanOptions, scan_memory

CHUNKS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
RULES = ["online", "chunk"]
ADVERSARIES = ["repeated", "alternating", "zero", "huge", "denormal"]
"""One vector; it and its negative in turns; zeros; noise of 1e30; noise of 1e-40."""


def repeated_keys(chunk: int, depth: int, eta: float, limit: float | None) -> dict[str, float]:
    """Loss at the end and at its worst, relative to the first, over 4,096 equal tokens."""
    torch.manual_seed(0)
    width, hidden, time = 32, 64, 4096
    sizes = [width, *[hidden] * (depth - 1), width]
    layers = [torch.randn(1, o, i) * i**-0.5 for i, o in zip(sizes[:-1], sizes[1:], strict=True)]
    key = torch.nn.functional.normalize(torch.randn(1, 1, 1, width), dim=-1)
    keys, values = key.expand(1, time, 1, width), torch.randn(1, 1, 1, width).expand(1, time, 1, -1)
    gates = Gates(*(torch.full((1, time, 1), g) for g in (0.0, eta, 0.5)))
    with torch.no_grad():
        _, _, trace = scan_memory(
            keys, keys, values, gates, MemoryState.initial(layers, 1), chunk_size=chunk,
            options=ScanOptions(step_limit=limit),
        )  # fmt: skip
    loss = trace.surprise.loss.flatten()
    return {"end": (loss[-1] / loss[0]).item(), "worst": (loss.max() / loss[0]).item()}


def repeat() -> list[dict[str, object]]:
    rows = []
    for limit in (None, 1.0):
        for depth in (1, 2):
            for eta in (0.0, 0.5, 0.9):
                for chunk in CHUNKS:
                    found = repeated_keys(chunk, depth, eta, limit)
                    rows.append(
                        {"step_limit": limit, "depth": depth, "eta": eta, "chunk": chunk} | found
                    )
    return rows


def token_source(text: Path | None, tokens: int, dim: int) -> torch.Tensor:
    """Byte ids of the text (repeated if short), or uniform noise."""
    if text is None:
        return torch.randint(0, 256, (tokens,))
    raw = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    return raw.repeat(-(-tokens // len(raw)))[:tokens]


def learns(memory: NeuralMemory, state: object, passage: torch.Tensor) -> float:
    """Surprise of a passage at its sixteenth reading, relative to its first."""
    losses = []
    for _ in range(16):
        _, state, trace = memory(passage, state, return_trace=True)
        losses.append(trace.surprise.loss.mean().item())
    return losses[-1] / losses[0]


@torch.no_grad()
def soak(tokens: int, text: Path | None) -> list[dict[str, object]]:
    dim, block = 64, 10_000
    torch.manual_seed(0)
    ids, embed = token_source(text, tokens, dim), torch.randn(256, dim)
    rows = []
    for towards in ("initial", "zero"):
        torch.manual_seed(1)
        memory = NeuralMemory(
            dim, num_heads=2, rule="chunk", depth=2, chunk_size=64, forget_towards=towards
        )
        passages = torch.randn(2, 1, 16, dim)
        start = learns(memory, None, passages[0])
        state = None
        bar = tqdm(range(0, tokens, block), desc=f"soak, towards {towards}", file=sys.stderr)
        for begin in bar:
            x = embed[ids[begin : begin + block]][None]
            x = torch.cat([x, torch.randn(1, 16, dim)], dim=1)
            _, state = memory(x, state)
        assert state is not None
        weights = [w.norm().item() for w in state.memory.weights]
        rows.append(
            {
                "forget_towards": towards,
                "tokens": tokens,
                "finite": all(torch.isfinite(w).all().item() for w in state.memory.weights),
                "weight_norms": weights,
                "initial_norms": [w.norm().item() for w in state.memory.initial_weights],
                "learns_at_start": start,
                "learns_at_end": learns(memory, state, passages[1]),
            }
        )
    return rows


def adversaries(tokens: int, dim: int) -> torch.Tensor:
    """A row for each of `ADVERSARIES`."""
    one, noise = torch.randn(dim), torch.randn(tokens, dim)
    sign = 1 - 2 * (torch.arange(tokens) % 2)[:, None]
    rows = [one.expand(tokens, dim), sign * one, 0 * noise, 1e30 * noise, 1e-40 * noise]
    return torch.stack(rows)


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)


def adversarial(
    tokens: int, dtype: torch.dtype, rules: list[Rule], chunks: list[int], depths: list[int]
) -> Iterator[dict[str, object]]:
    """Forward and backward of a layer, for every rule, depth and chunk."""
    dim = 16
    cases = list(product(rules, depths, chunks))
    # A matrix under the online rule has no chunks.
    cases = [c for c in cases if c[:2] != ("online", 1) or c[2] == chunks[0]]
    for rule, depth, chunk in tqdm(cases, desc="adversarial", file=sys.stderr):
        torch.manual_seed(0)
        memory = NeuralMemory(dim, num_heads=1, rule=rule, depth=depth, chunk_size=chunk).to(dtype)
        found: dict[str, list[str]] = {"outputs": [], "states": [], "gradients": []}
        outputs, weights = [], []
        # One row's graph at a time; the gradients of the parameters add up over the rows.
        for name, row in zip(ADVERSARIES, adversaries(tokens, dim).to(dtype), strict=True):
            x = row[None].requires_grad_()
            y, state = memory(x)
            (y.float().square().mean() / len(ADVERSARIES)).backward()
            assert x.grad is not None
            state = state.detach().memory
            parts = {
                "outputs": [y],
                "states": [*state.weights, *state.momentum],
                "gradients": [x.grad],
            }
            for part, tensors in parts.items():
                if not all_finite(tensors):
                    found[part].append(name)
            outputs.append(y.detach().abs().max())
            weights += [w.abs().max() for w in state.weights]
            del y, x, parts
        gradients = [p.grad.float() for p in memory.parameters() if p.grad is not None]
        yield {
            "rule": rule,
            "depth": depth,
            "chunk": chunk,
            "tokens": tokens,
            "dtype": str(dtype),
            **{f"lost_{part}": names for part, names in found.items()},
            "parameters_finite": all_finite(gradients),
            "largest_output": torch.stack(outputs).max().item(),
            "largest_weight": torch.stack(weights).max().item(),
            "largest_gradient": torch.stack([g.abs().max() for g in gradients]).max().item(),
        }


MEMORIES: dict[str, MemorySettings] = {
    "before: two layers, gradients per chunk of 64": {
        "rule": "chunk",
        "depth": 2,
        "chunk_size": 64,
    },
    "the same, chunks of 16": {"rule": "chunk", "depth": 2},
    "default: a matrix, the online rule": {},
}


def gradient(longest: int) -> Iterator[dict[str, object]]:
    """Norm of the gradient of the mean square of all outputs, for noise of 512 tokens and more."""
    for name, settings in MEMORIES.items():
        tokens = 512
        while tokens <= longest:
            torch.manual_seed(0)
            memory = NeuralMemory(64, **settings)
            memory(torch.randn(1, tokens, 64))[0].square().mean().backward()
            grads = [p.grad.double().norm() for p in memory.parameters() if p.grad is not None]
            norm = torch.stack(grads).norm().item()
            yield {"memory": name, "tokens": tokens, "norm": norm}
            tokens *= 2


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name in MEMORIES:
        line = [(r["tokens"], r["norm"]) for r in rows if r["memory"] == name]
        axes.plot(*zip(*line, strict=True), marker="o", label=name)
    axes.set_xscale("log", base=2)
    lengths = sorted({r["tokens"] for r in rows})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_yscale("log")
    axes.set_xlabel("tokens read")
    axes.set_ylabel("norm of the outer gradient")
    axes.legend(fontsize="small")
    write_figure(path, figure)


def count(text: str) -> int:
    scale = {"k": 1024, "m": 1024**2}.get(text[-1].lower(), 1)
    return int(text.rstrip("kKmM")) * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["repeat", "soak", "adversarial", "gradient"])
    parser.add_argument("--tokens", type=count, default=count("64k"))
    parser.add_argument("--text", type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4])
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "adversarial":
        dtype = getattr(torch, args.dtype)
        rows = adversarial(args.tokens, dtype, args.rules, args.chunks, args.depths)
    elif args.what == "gradient":
        rows = list(gradient(args.tokens))
        if args.figure:
            draw(rows, args.figure)
    else:
        rows = repeat() if args.what == "repeat" else soak(args.tokens, args.text)
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
