"""The memory as a plain layer: read a sequence, keep the state, go on later."""

import torch

from titans import NeuralMemory

memory = NeuralMemory(dim=64, num_heads=2, chunk_size=16)
passage = torch.randn(1, 16, 64)  # any sequence of vectors, not only tokens
state = None
for reading in range(5):
    y, state, trace = memory(passage, state, return_trace=True)
    print(f"reading {reading}: surprise {trace.surprise.loss.mean():.3f}")
state.detach().save("state.safetensors")  # a constant size, whatever was read
