"""How many random pairs fit in a memory of a given size? No training: what the shape alone allows.

    python benchmarks/capacity.py                    # 4,096 numbers, as mqar.py --dim 64
    python benchmarks/capacity.py --numbers 16384    # as mqar.py --dim 128
    python benchmarks/capacity.py --chunk 16 --silu  # keys and values as a layer first has them
    python benchmarks/capacity.py --similar          # keys that resemble each other, all rules

Keys are random directions, values random words of a code; each pair is written once, then all keys
are asked and the nearest word is the answer. A matrix is written by the delta rule (of one layer,
our rule is that). Two layers start with a first one that is random or empty, is written or left as
it is, and a second one that is orthogonal or empty; what such a start answers by itself is taken
off. Each cell is the best of three step sizes and, for two layers, of these starts at several
scales: what a trained memory could choose. About ten minutes; with --chunk 16 two. With --silu keys
and values have gone through SiLU: they share a direction, along which all pairs disturb each other.

With --similar half of the square of each key of 64 numbers is a centre that it shares with seven
others, queries have noise of .3, and a matrix of 64-wide values is written by the online rule or by
least squares, behind the key or behind products of it. Each cell is the best of three steps, or
weights of an observation. The state counts what least squares knows of the keys. Two minutes.
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
from titans.ops.least_squares import initial_known, scan_least_squares
from titans.ops.online import scan_online

WORDS = 4_096
PAIRS = (16, 32, 64, 128, 256)
STEPS = (0.1, 0.3, 1.0)
FIRST_SCALES = (0.0, 0.3, 1.0, 2.0, 8.0)
SECOND_SCALES = (0.0, 1.0, 2.0)
SIMILAR_PAIRS = (16, 32, 64, 128, 256, 512)
SIMILAR_WIDTH, SIMILAR_WORDS, CENTRE_SIZE, NOISE, SETS = 64, 1_024, 8, 0.3, 4
SIMILAR_STEPS = {"online": (0.25, 0.5, 1.0), "least_squares": (1.0, 10.0, 100.0)}
SIMILAR_FEATURES = {"online": (None, 64, 128, 256), "least_squares": (None, 40, 64, 96)}
"""Per rule: its steps, and how many products of the key it is behind (None: the key)."""


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


def similar(rule: str, features: int | None, pairs: int, step: float, shared: float) -> float:
    """Share of pairs with similar keys that are answered right; the mean of several sets."""
    torch.manual_seed(pairs)
    unit, width = nn.functional.normalize, SIMILAR_WIDTH

    def drawn(*shape: int) -> Tensor:
        return unit(torch.randn(*shape, width), dim=-1)

    centres = drawn(SETS, math.ceil(pairs / CENTRE_SIZE)).repeat_interleave(CENTRE_SIZE, 1)
    keys = unit(shared**0.5 * centres[:, :pairs] + (1 - shared) ** 0.5 * drawn(SETS, pairs), dim=-1)
    queries = unit(keys + NOISE * drawn(SETS, pairs), dim=-1)
    code = drawn(SIMILAR_WORDS)
    words = torch.stack([torch.randperm(SIMILAR_WORDS)[:pairs] for _ in range(SETS)])
    if features is not None:
        a, b = (torch.randn(width, features) for _ in "ab")
        keys, queries = (unit((x @ a) * (x @ b), dim=-1) for x in (keys, queries))
    memory = MemoryState.initial([torch.zeros(1, width, keys.shape[-1])], SETS)
    # b = 2 theta is the share of its error that a write undoes; of least squares theta is a weight.
    theta = step / 2 if rule == "online" else step
    gates = Gates(*(torch.full((SETS, pairs, 1), gate) for gate in (0.0, 0.0, theta)))
    tokens = [t[:, :, None] for t in (keys, keys, code[words])]
    if rule == "online":
        options = ScanOptions(momentum=False)
        memory = scan_online(*tokens, gates, memory, options=options)[1]
    else:
        memory = scan_least_squares(*tokens, gates, initial_known(memory))[1]
    answers = read_memory(queries[:, :, None], memory)[:, :, 0] @ code.T
    return (answers.argmax(-1) == words).float().mean().item()


@torch.no_grad()
def print_similar(shared: float) -> None:
    """A line per rule, features and number of pairs."""
    for rule, several in SIMILAR_FEATURES.items():
        for features, pairs in tqdm(list(itertools.product(several, SIMILAR_PAIRS)), disable=None):
            width = features or SIMILAR_WIDTH
            share, step = max(
                (similar(rule, features, pairs, step, shared), step) for step in SIMILAR_STEPS[rule]
            )
            numbers = width * SIMILAR_WIDTH + (width**2 if rule == "least_squares" else 0)
            row = {"rule": rule, "products": features, "numbers": numbers, "pairs": pairs}
            print(json.dumps(row | {"recalled": share, "step": step}), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numbers", type=int, default=4_096, help="size of the memory")
    parser.add_argument("--chunk", type=int, default=1, help="pairs written at one error")
    parser.add_argument("--silu", action="store_true", help="of keys and values")
    parser.add_argument("--similar", action="store_true", help="keys that resemble each other")
    parser.add_argument("--shared", type=float, default=0.5, help="of --similar keys' square")
    args = parser.parse_args()
    if args.similar:
        print_similar(args.shared)
        return
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
