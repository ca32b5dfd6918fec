"""A memory network of your own: what learns while it reads is any PyTorch module. Some seconds.

The module maps `[..., dim]` to `[..., dim]`; its parameters are the first weights of the memory.
"""

import torch
from torch import Tensor, nn

from titans import NeuralMemory


class Bottleneck(nn.Module):
    """Two layers with a narrow, normalised middle."""

    def __init__(self, dim: int, middle: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(middle, dim) * dim**-0.5)
        self.up = nn.Parameter(torch.randn(dim, middle) * middle**-0.5)

    def forward(self, keys: Tensor) -> Tensor:
        hidden = torch.tanh(keys @ self.down.mT)
        return hidden @ self.up.mT


def main() -> None:
    torch.manual_seed(0)
    dim, heads = 32, 2
    layer = NeuralMemory(
        dim=dim, num_heads=heads, chunk_size=8, module=Bottleneck(dim // heads, middle=12)
    )
    passage = torch.randn(1, 16, dim)
    state = None
    with torch.no_grad():
        for reading in range(5):
            _, state, trace = layer(passage, state, return_trace=True)
            print(f"reading {reading}: surprise {trace.surprise.loss.mean():.3f}")
    print(f"its weights in the state: {[tuple(w.shape) for w in state.memory.weights]}")


if __name__ == "__main__":
    main()
