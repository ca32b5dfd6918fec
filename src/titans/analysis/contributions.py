"""How much of a layer's output is the memory's, and how much is attention's.

The output is written as a sum of two parts, one of which is what the layer would give with the
memory switched off:

    MAG and MAC, convex         g a            + (1 - g) m
    MAG, paper; MAC, normalised norm(a) / 2    + norm(a) (sigmoid(norm(m)) - 1/2)
                                attention        memory

A memory that is off counts as one that answers zero, whose gate is 1/2. The memory's share of a
token is |memory part| / (|attention part| + |memory part|). LMM and MAL have no such sum.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from titans.models.mixer import Mixer


@dataclass
class PartOutputs:
    """Outputs of the modules that the two parts are made of, call by call."""

    outputs: dict[str, list[Tensor]] = field(default_factory=dict)

    def joined(self, name: str) -> Tensor:
        """All calls of one module, `[time dim]`."""
        return torch.cat([part[0] for part in self.outputs[name]])

    def clear(self) -> None:
        """Forget all calls."""
        self.outputs.clear()


def watch_parts(mixer: Mixer, parts: PartOutputs) -> list[RemovableHandle]:
    """Note the outputs that `memory_share` needs; nothing where there is no such sum."""
    watched: dict[str, nn.Module] = {}
    if hasattr(mixer, "attention_norm"):
        watched = {"attention": mixer.attention_norm, "memory": mixer.memory_norm}  # type: ignore[dict-item]
    elif hasattr(mixer, "gate_proj"):
        attention = mixer.attention.o_proj  # type: ignore[union-attr]
        watched = {"gate": mixer.gate_proj, "attention": attention, "memory": mixer.memory}  # type: ignore[dict-item]
    return [_watch(module, name, parts) for name, module in watched.items()]


def memory_share(mixer: Mixer, parts: PartOutputs) -> Tensor | None:
    """The memory's share in the layer's output at every token, `[time]`."""
    if not parts.outputs:
        return None
    attention, memory = parts.joined("attention"), parts.joined("memory")
    if "gate" in parts.outputs:
        gate = torch.sigmoid(parts.joined("gate"))
        attention = attention * getattr(mixer, "attention_scale", 1.0)
        attention, memory = gate * attention, (1 - gate) * memory
    else:
        memory = attention * (torch.sigmoid(memory) - 0.5)
        attention = attention * 0.5
    ours, theirs = memory.norm(dim=-1), attention.norm(dim=-1)
    return ours / (ours + theirs).clamp_min(torch.finfo(ours.dtype).tiny)


def _watch(module: nn.Module, name: str, parts: PartOutputs) -> RemovableHandle:
    def note(module: nn.Module, args: tuple, output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output
        assert isinstance(first, Tensor)
        parts.outputs.setdefault(name, []).append(first)

    return module.register_forward_hook(note)
