"""The layer in your own PyTorch model, on a time series: no tokens anywhere. About 20 seconds.

Four sensors repeat a pattern that has never occurred before. Weights cannot know it: the model has
to memorise it while it reads.
"""

import sys

import torch
from torch import nn

from titans import NeuralMemory


class Forecaster(nn.Module):
    """Predicts the next reading of all sensors."""

    def __init__(self, sensors: int = 4, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(sensors, width)
        self.norm = nn.LayerNorm(width)
        self.memory = NeuralMemory(dim=width, num_heads=1, key_lag=1)
        self.head = nn.Linear(width, sensors)

    def forward(self, series, state=None):
        x = self.embed(series)
        y, state = self.memory(self.norm(x), state)
        return self.head(x + y), state


def patterns(batch: int, period: int = 8, repeats: int = 8) -> torch.Tensor:
    return torch.randn(batch, period, 4).repeat(1, repeats, 1)


def main(steps: int = 100) -> None:
    torch.manual_seed(0)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for step in range(steps):
        series = patterns(batch=8)
        prediction, _ = model(series[:, :-1])
        loss = (prediction - series[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: squared error {loss:.2f}")

    state, errors = None, []
    with torch.no_grad():  # reading is writing, also without gradients
        series = patterns(batch=64)
        for now, then in zip(series[:, :-1].split(1, 1), series[:, 1:].split(1, 1), strict=True):
            forecast, state = model(now, state)
            errors.append((forecast - then).square().mean().item())
    print(f"a new pattern, first time: {sum(errors[:7]) / 7:.2f} (knowing nothing: 1.00)")
    print(f"a new pattern, later:      {sum(errors[15:]) / len(errors[15:]):.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
