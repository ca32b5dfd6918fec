"""How many random pairs fit in a memory of a given size? No training: what the shape alone allows.

    python benchmarks/capacity.py                    # 4,096 numbers, as mqar.py --dim 64
    python benchmarks/capacity.py --numbers 16384    # as mqar.py --dim 128
    python benchmarks/capacity.py --chunk 16 --silu  # keys and values as a layer first has them

Keys are random directions, values random words of a code; each pair is written once, then all keys
are asked and the nearest word is the answer. A matrix is written by the delta rule (of one layer,
our rule is that). Two layers start with a first one that is random or empty, is written or left as
it is, and a second one that is orthogonal or empty; what such a start answers by itself is taken
off. Each cell is the best of three step sizes and, for two layers, of these starts at several
scales: what a trained memory could choose. About ten minutes; with --chunk 16 two. With --silu keys
and values have gone through SiLU: they share a direction, along which all pairs disturb each other.
"""

import argparse
import itertools
import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from tqdm import tqdm

from titans.ops import Gates, MemoryState, ScanOptions, read_memory, scan_memory

WORDS = 4_096
PAIRS = (16, 32, 64, 128, 256)
STEPS = (0.1, 0.3, 1.0)
FIRST_SCALES = (0.0, 0.3, 1.0, 2.0, 8.0)
SECOND_SCALES = (0.0, 1.0, 2.0)


def shapes(numbers: int) -> dict[str, tuple[int, ...]]:
    """Widths of key, hidden layer and value with so many weights in all."""
    side = math.isqrt(numbers)
    middle = math.isqrt(numbers // 2)
    narrow = 3 * side // 8
    wider = (numbers - narrow**2) // narrow
    return {
        "matrix": (side, side),
        "wide keys": (2 * side, side // 2),
        "two layers, wide keys": (3 * side // 2, side // 2, side // 2),
        "the first of these layers alone, a matrix": (3 * side // 2, side // 2),
        "two layers, wider keys": (wider, narrow, narrow),
        "the first of these layers alone, a matrix of its size": (wider, narrow),
        "very wide keys and values": (2 * side, side // 4, 2 * side),
        "wide keys and values": (side, side // 2, side),
        "all alike": (middle, middle, middle),
        "wide hidden layer": (side // 2, side, side // 2),
        "very wide hidden layer": (side // 4, 2 * side, side // 4),
    }


@dataclass(frozen=True)
class Start:
    """How a memory of two layers starts: the scales of its layers, and whether the first learns."""

    first: float
    second: float
    written: bool


STARTS = [
    Start(first, second, True)
    for first in FIRST_SCALES
    for second in SECOND_SCALES
    if first or second  # two empty layers pass no gradient
]
STARTS += [Start(first, 0.0, False) for first in FIRST_SCALES if first]


def directions(*shape: int, silu: bool) -> Tensor:
    """Random directions of the last axis."""
    drawn = torch.randn(shape)
    return nn.functional.normalize(nn.functional.silu(drawn) if silu else drawn, dim=-1)


def recalled(
    widths: tuple[int, ...], pairs: int, chunk: int, step: float, start: Start | None, silu: bool
) -> float:
    """Share of the pairs that are answered right; the mean of four sets of pairs."""
    torch.manual_seed(0)
    keys = directions(4, pairs, 1, widths[0], silu=silu)
    code = directions(WORDS, widths[-1], silu=silu)
    words = torch.randint(WORDS, (4, pairs))
    layers = [torch.zeros(1, widths[-1], widths[-2])]
    if start is not None:
        first = start.first * torch.randn(1, widths[1], widths[0]) / math.sqrt(widths[0])
        if start.written:
            second = nn.init.orthogonal_(torch.empty(widths[2], widths[1]))
            layers = [first, start.second * second[None]]
        else:  # a first layer that is not written is a map of the keys
            keys = nn.functional.silu(keys @ first[0].mT)
    memory = MemoryState.initial(layers, 4)
    own = read_memory(keys, memory)
    # So large a gate that the limit decides: a write undoes `step` of its own error.
    gates = Gates(*(torch.full((4, pairs, 1), gate) for gate in (0.0, 0.0, 1e3)))
    _, memory, _ = scan_memory(
        keys, keys, own + code[words][:, :, None], gates, memory,
        chunk_size=chunk, options=ScanOptions(step_limit=step),
    )  # fmt: skip
    # The nearest word is told by what words do not have in common.
    own_part = nn.functional.normalize(code - code.mean(0), dim=-1)
    answers = (read_memory(keys, memory) - own)[:, :, 0] @ own_part.mT
    return (answers.argmax(-1) == words).float().mean().item()


@torch.no_grad()
def best(widths: tuple[int, ...], pairs: int, chunk: int, silu: bool) -> dict[str, object]:
    """The best of all steps and starts, and which they are."""
    starts: list[Start | None] = [*STARTS] if len(widths) == 3 else [None]
    share, step, start = max(
        ((recalled(widths, pairs, chunk, step, start, silu), step, start)
         for step, start in itertools.product(STEPS, starts)),
        key=lambda found: found[0],
    )  # fmt: skip
    return {"recalled": share, "step": step} | ({} if start is None else asdict(start))


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numbers", type=int, default=4_096, help="size of the memory")
    parser.add_argument("--chunk", type=int, default=1, help="pairs written at one error")
    parser.add_argument("--silu", action="store_true", help="of keys and values")
    args = parser.parse_args()
    cells = list(itertools.product(shapes(args.numbers).items(), PAIRS))
    for (name, widths), pairs in tqdm(cells, disable=None):
        row = {
            "shape": name,
            "widths": widths,
            "pairs": pairs,
            "chunk": args.chunk,
            "silu": args.silu,
        }
        print(json.dumps(row | best(widths, pairs, args.chunk, args.silu)), flush=True)


if __name__ == "__main__":
    main()
