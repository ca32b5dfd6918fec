"""Speed and memory of the neural memory layer, beside titans-pytorch, in one interleaved run.

    make bench                       # everything, writes benchmarks/results/memory.json
    python benchmarks/memory.py --quick
    python benchmarks/memory.py cost     # beside nn.GRU and nn.MultiheadAttention; writes no file

Setting: dim 256, 4 heads of 64, MLP memory of depth 2 with hidden 128, batch 2, length 2048,
forward and backward, one thread, best of several. The rival is run at equal semantics
(`batch_size = chunk_size`, so that its surprise depends on what was memorised).
FLOPs: the matmuls of ops/README.md plus projections, recomputation not counted.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from titans import MemoryConfig, NeuralMemory

DIM, HEADS, HEAD_DIM, HIDDEN, BATCH, LENGTH = 256, 4, 64, 128, 2, 2048
RESULTS = Path(__file__).parent / "results" / "memory.json"


def ours(chunk: int, config: MemoryConfig) -> torch.nn.Module:
    return NeuralMemory(
        DIM,
        config,
        rule="chunk",
        depth=2,
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        expansion=HIDDEN / HEAD_DIM,
        chunk_size=chunk,
    )


def rival(chunk: int) -> torch.nn.Module:
    from titans_pytorch import MemoryMLP
    from titans_pytorch import NeuralMemory as Rival

    return Rival(
        dim=DIM,
        heads=HEADS,
        dim_head=HEAD_DIM,
        chunk_size=chunk,
        batch_size=chunk,
        model=MemoryMLP(HEAD_DIM, depth=2, expansion_factor=HIDDEN / HEAD_DIM),
    )


def build(name: str, chunk: int) -> torch.nn.Module:
    if name == "titans-pytorch":
        return rival(chunk)
    paper = MemoryConfig(forget_towards="zero", step_limit=None)
    config = {
        "ours": paper,
        "ours-default": MemoryConfig(),
        "ours-compiled": replace(paper, compiled=True),
    }[name]
    return ours(chunk, config)


def train_step(module: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        module.zero_grad()
        module(x)[0].square().mean().backward()

    return run


def forward_pass(module: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            module(x)

    return run


def best_of(
    runs: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Best seconds of each, interleaved, so that noise of the machine hits all alike."""
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            begin = clock()
            run()
            best[name] = min(best[name], clock() - begin)
    return best


def matmul_peak() -> float:
    """FLOP/s of a 1024-cubed float32 product."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = best_of({"matmul": lambda: torch.mm(a, b)}, 10)["matmul"]
    return 2 * 1024**3 / seconds


def forward_flops(chunk: int) -> float:
    """Matmul FLOPs per token of one forward pass (ops/README.md)."""
    pairs = [(HEAD_DIM, HIDDEN), (HIDDEN, HEAD_DIM)]
    weights = sum(i * o for i, o in pairs)
    recall = weights + HIDDEN * HEAD_DIM
    read = 2 * weights + chunk * sum(i + o for i, o in pairs)
    carry = 2 * weights
    memory = 2 * HEADS * (recall + read + carry)
    projections = 2 * 5 * DIM * HEADS * HEAD_DIM
    return memory + projections


def peak_growth(name: str, chunk: int) -> float:
    """Growth of peak resident memory over one training step, in a fresh process, in MB."""
    command = [sys.executable, __file__, "--measure-memory", name, "--chunk", str(chunk)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip())


def measure_memory(name: str, chunk: int) -> None:
    module = build(name, chunk)
    small, x = torch.randn(1, chunk, DIM), torch.randn(BATCH, LENGTH, DIM)
    train_step(module, small)()
    before = peak_resident()
    train_step(module, x)()
    print(peak_resident() - before)


def peak_resident() -> float:
    """This process's own high-water mark in MB (`ru_maxrss` would count the parent's too)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def compare(chunk: int, rounds: int) -> dict[str, object]:
    """Everything about one chunk size."""
    x = torch.randn(BATCH, LENGTH, DIM)
    names = ["ours", "ours-default", "ours-compiled", "titans-pytorch"]
    modules = {name: build(name, chunk) for name in names}
    steps = best_of({n: train_step(m, x) for n, m in modules.items()}, rounds)
    mine = {n: m for n, m in modules.items() if n != "titans-pytorch"}
    forwards = best_of({n: forward_pass(m, x) for n, m in mine.items()}, rounds)
    peak = matmul_peak()
    tokens, flops = BATCH * LENGTH, forward_flops(chunk)
    rss = {n: peak_growth(n, chunk) for n in ("ours", "ours-default", "titans-pytorch")}
    return {
        "chunk_size": chunk,
        "matmul_peak_gflops": peak / 1e9,
        "forward_mflop_per_token": flops / 1e6,
        "train_tokens_per_s": {n: tokens / s for n, s in steps.items()},
        "forward_tokens_per_s": {n: tokens / s for n, s in forwards.items()},
        "speedup_over_titans_pytorch": {
            n: steps["titans-pytorch"] / s for n, s in steps.items() if n != "titans-pytorch"
        },
        "forward_share_of_peak": {n: flops * tokens / s / peak for n, s in forwards.items()},
        "train_share_of_peak": {
            n: 3 * flops * tokens / steps[n] / peak for n in steps if n != "titans-pytorch"
        },
        "peak_rss_growth_mb": rss,
        "rss_ratio_to_titans_pytorch": {n: rss[n] / rss["titans-pytorch"] for n in rss},
    }


def lengths(rounds: int) -> dict[str, float]:
    """Training throughput at 32k tokens against 2k, one row; as many tokens in either timing."""
    module, total = build("ours-default", 64), 32768

    def steps(length: int) -> Callable[[], None]:
        step = train_step(module, torch.randn(1, length, DIM))

        def run() -> None:
            for _ in range(total // length):
                step()

        return run

    best = best_of({str(n): steps(n) for n in (2048, total)}, rounds)
    return {n: total / s for n, s in best.items()}


class CausalAttention(torch.nn.Module):
    """`nn.MultiheadAttention` of each token over itself and those before it."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        # The layer asks for a mask and, told that it is causal, does not look at it.
        mask = x.new_zeros(1).expand(x.shape[1], x.shape[1])
        return self.attention(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)


def cost(rounds: int) -> dict[str, object]:
    """CPU milliseconds of a training step at width 64: 8 rows of 512, and one row by its length."""
    dim, heads = 64, 4
    modules = {
        "memory": NeuralMemory(dim, num_heads=heads),
        "memory, one head": NeuralMemory(dim, num_heads=1),
        "memory, depth 2, chunk 64": NeuralMemory(
            dim, num_heads=heads, rule="chunk", depth=2, chunk_size=64
        ),
        "nn.GRU": torch.nn.GRU(dim, dim, batch_first=True),
        "nn.MultiheadAttention": CausalAttention(dim, heads),
    }
    milliseconds = {}
    for batch, length in [(8, 512), *((1, 1024 * 2**i) for i in range(3))]:
        x = torch.randn(batch, length, dim)
        steps = {n: train_step(m, x) for n, m in modules.items()}
        best = best_of(steps, rounds, time.process_time)
        shape = f"{batch} x {length} x {dim}"
        milliseconds[shape] = {name: round(1000 * seconds, 1) for name, seconds in best.items()}
        print(shape, milliseconds[shape], file=sys.stderr)
    return {"heads": heads, "milliseconds": milliseconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["rival", "cost"], default="rival")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no file")
    parser.add_argument("--measure-memory", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--chunk", type=int, default=64, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.measure_memory:
        measure_memory(args.measure_memory, args.chunk)
        return
    rounds = 2 if args.quick else 6
    if args.what == "cost":
        print(json.dumps(cost(rounds), indent=2))
        return
    record = {
        "command": "make bench",
        "machine": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
        "setting": {
            "dim": DIM, "heads": HEADS, "head_dim": HEAD_DIM, "hidden": HIDDEN, "batch": BATCH,
            "length": LENGTH,
        },
        "chunks": [compare(chunk, rounds) for chunk in (64, 16)],
        "train_tokens_per_s_by_length": lengths(rounds),
    }  # fmt: skip
    text = json.dumps(record, indent=2)
    print(text)
    if not args.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
