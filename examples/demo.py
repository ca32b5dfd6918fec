"""`make demo`: watch a memory learn while it reads, and keep what it read.

1. An untrained `NeuralMemory` reads four passages again and again. Its surprise falls each time it
   meets one it knows, rises for news, and its state does not grow.
2. If trained checkpoints are in `checkpoints/`, a needle reader finds what was hidden in a text
   far longer than it was trained on, beside a sliding-window Transformer of the same size.

Pictures go to `out/`. No network, one core, under two minutes.
"""

from pathlib import Path

import matplotlib
import torch
from tqdm import tqdm

from titans import NeuralMemory

matplotlib.use("Agg")
OUT = Path("out")
CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


LESSON = "A" * 8 + "B" * 8 + "A" + "C" * 8 + "ABC" + "D" * 8 + "ABCD"
"""The order in which four passages of 16 vectors are read."""


@torch.no_grad()
def watch_surprise() -> None:
    """Part 1."""
    dim = 128
    memory = NeuralMemory(dim, num_heads=2, chunk_size=16)
    passages = {name: torch.randn(1, 16, dim) for name in "ABCD"}
    state, sizes, losses = None, set(), []
    for name in tqdm(LESSON, desc="reading"):
        _, state, surprise = memory(passages[name], state, return_surprise=True)
        sizes.add(state.num_bytes)
        losses.append(surprise.loss.mean().item())
    assert len(sizes) == 1
    print(f"\nan untrained memory; state {sizes.pop():,} bytes, whatever it has read")
    print("surprise       first   2nd     8th     later meetings")
    for name in "ABCD":
        met = [loss for loss, n in zip(losses, LESSON, strict=True) if n == name]
        first, second, eighth = met[0], met[1], met[7]
        later = "  ".join(f"{loss:.2f}" for loss in met[8:])
        print(f"  passage {name}    {first:5.2f}   {second:5.2f}   {eighth:5.2f}   {later}")
    draw(losses)


def draw(losses: list[float]) -> None:
    """Surprise over time, a colour for each passage."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.5))
    axes.plot(losses, color="0.8", zorder=0)
    for name in "ABCD":
        at = [i for i, n in enumerate(LESSON) if n == name]
        axes.scatter(at, [losses[i] for i in at], label=f"passage {name}", s=30)
    axes.set(xlabel="passages read", ylabel="surprise", ylim=(0, None))
    axes.set_title(
        "Surprise falls as a passage comes back, and rises in part when others were read"
    )
    axes.legend(ncols=4, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    OUT.mkdir(exist_ok=True)
    figure.savefig(OUT / "surprise.png", dpi=120)
    plt.close(figure)
    print(f"picture: {OUT / 'surprise.png'}\n")


def find_needles(names: tuple[str, ...] = ("needle-mac", "needle-lmm", "needle-swa")) -> None:
    """Part 2, with whichever of the shipped checkpoints are there."""
    from titans.evaluation.demo import draw_demo, run_demo

    there = [CHECKPOINTS / name for name in names if (CHECKPOINTS / name).is_dir()]
    if not there:
        return
    demo = run_demo(there)
    print(f"\na text of {demo.length:,} words, {len(demo.questions)} needles: {demo.excerpt}")
    for reader in demo.readers:
        found = f"{demo.found(reader.name)} of {len(demo.questions)}"
        size = f"{reader.num_parameters:>9,} parameters, state {reader.state_size:>13}"
        print(f"  {reader.name:<12} {size}, found {found}")
    draw_demo(demo, OUT / "needles.png")
    print(f"picture: {OUT / 'needles.png'}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    watch_surprise()
    find_needles()
