"""Learning rate against step: a closed form, so there is no scheduler state to save."""

import math

from titans.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """The learning rate of optimizer step `step` (0 is the first): warm-up, then the schedule."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    falling = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    floor = config.min_learning_rate_ratio
    return config.learning_rate * (floor + (1 - floor) * falling)
