"""How many random pairs fit in a memory of a given size? No training: what the shape alone allows.

    python benchmarks/capacity.py                    # 4,096 numbers, as mqar.py --dim 64
    python benchmarks/capacity.py --numbers 16384    # as mqar.py --dim 128

Keys are random directions, values random words of a code; each pair is written once, then all keys
are asked and the nearest word is the answer. A matrix is written by the delta rule (of one layer,
our rule is that); two layers start with a random first and an empty second one. Each cell is the
best of three step sizes and, for two layers, four scales of the first one, which is either written
or left as it is: what a trained memory could choose.
"""

import argparse
import itertools
import json
import math

import torch
from tqdm import tqdm

from titans import ScanOptions
from titans.ops import Gates, MemoryState, read_memory, scan_memory

WORDS = 2_048
PAIRS = (16, 32, 64, 128, 256)
STEPS = (0.1, 0.3, 1.0)
SCALES = (0.03, 0.3, 1.0, 3.0)


def shapes(numbers: int) -> dict[str, tuple[int, ...]]:
    """Widths of key, hidden layer and value with so many weights in all."""
    side = math.isqrt(numbers)
    middle = math.isqrt(numbers // 2)
    return {
        "matrix": (side, side),
        "wide keys": (2 * side, side // 2),
        "wide keys and values": (side, side // 2, side),
        "all alike": (middle, middle, middle),
        "wide hidden layer": (side // 2, side, side // 2),
        "very wide hidden layer": (side // 4, 2 * side, side // 4),
    }


def recalled(
    widths: tuple[int, ...], pairs: int, chunk: int, step: float, scale: float, written: bool
) -> float:
    """Share of the pairs that are answered right; the mean of four sets of pairs."""
    torch.manual_seed(0)
    keys = torch.nn.functional.normalize(torch.randn(4, pairs, 1, widths[0]), dim=-1)
    code = torch.nn.functional.normalize(torch.randn(WORDS, widths[-1]), dim=-1)
    words = torch.randint(WORDS, (4, pairs))
    layers = [torch.zeros(1, widths[-1], widths[-2])]
    if len(widths) == 3:
        first = scale * torch.randn(1, widths[1], widths[0])
        if written:
            layers = [first, *layers]
        else:  # a first layer that is not written is a map of the keys
            keys = torch.nn.functional.silu(keys @ first[0].mT)
    # So large a gate that the limit decides: a write undoes `step` of its own error.
    gates = Gates(*(torch.full((4, pairs, 1), gate) for gate in (0.0, 0.0, 1e3)))
    _, state = scan_memory(
        keys, keys, code[words][:, :, None], gates, MemoryState.initial(layers, 4),
        chunk_size=chunk, options=ScanOptions(step_limit=step),
    )  # fmt: skip
    answers = read_memory(keys, state)[:, :, 0] @ code.mT
    return (answers.argmax(-1) == words).float().mean().item()


@torch.no_grad()
def best(widths: tuple[int, ...], pairs: int, chunk: int) -> dict[str, object]:
    deep = len(widths) == 3
    choices = itertools.product(
        STEPS, SCALES if deep else (1.0,), (True, False) if deep else (True,)
    )
    found = [
        {"recalled": recalled(widths, pairs, chunk, *choice), "step": choice[0]}
        | ({"scale": choice[1], "first layer written": choice[2]} if deep else {})
        for choice in choices
    ]
    return max(found, key=lambda row: row["recalled"])  # type: ignore[arg-type,return-value]


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numbers", type=int, default=4_096, help="size of the memory")
    parser.add_argument("--chunk", type=int, default=1, help="pairs written at one error")
    args = parser.parse_args()
    cells = list(itertools.product(shapes(args.numbers).items(), PAIRS))
    for (name, widths), pairs in tqdm(cells, disable=None):
        row = {"shape": name, "widths": widths, "pairs": pairs, "chunk": args.chunk}
        print(json.dumps(row | best(widths, pairs, args.chunk)), flush=True)


if __name__ == "__main__":
    main()
