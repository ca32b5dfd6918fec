"""A BERT encoder for inference, and nothing else: the forward pass of all-MiniLM-L6-v2.

Importing `transformers` takes seconds, which a command like `titans remember` would pay each time;
these eighty lines load the same weights at once. Equal to `transformers.BertModel`
(tests/recall/test_encoder.py). Any other model goes through `transformers` (encoder.py).
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from torch import Tensor, nn


class BertLayer(nn.Module):
    """One post-norm transformer layer."""

    def __init__(self, dim: int, num_heads: int, hidden_dim: int, eps: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attention_out = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim, eps=eps)
        self.up = nn.Linear(dim, hidden_dim)
        self.down = nn.Linear(hidden_dim, dim)
        self.output_norm = nn.LayerNorm(dim, eps=eps)

    def forward(
        self, x: Float[Tensor, "batch time dim"], mask: Bool[Tensor, "batch 1 1 time"] | None
    ) -> Float[Tensor, "batch time dim"]:
        """Attention, then the feed-forward part, each with its residual and norm."""
        batch, time, _ = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=mask)
        x = self.attention_norm(x + self.attention_out(heads.transpose(1, 2).reshape(x.shape)))
        return self.output_norm(x + self.down(F.gelu(self.up(x))))


class BertEncoder(nn.Module):
    """Token ids to one vector per token."""

    def __init__(self, config: dict[str, int | float]) -> None:
        super().__init__()
        dim, eps = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.words = nn.Embedding(int(config["vocab_size"]), dim)
        self.positions = nn.Embedding(int(config["max_position_embeddings"]), dim)
        self.token_type = nn.Embedding(int(config["type_vocab_size"]), dim)
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.layers = nn.ModuleList(
            BertLayer(
                dim, int(config["num_attention_heads"]), int(config["intermediate_size"]), eps
            )
            for _ in range(int(config["num_hidden_layers"]))
        )

    def forward(
        self, ids: Int[Tensor, "batch time"], mask: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time dim"]:
        """The last hidden states; padding (mask False) is not attended to."""
        x = self.words(ids) + self.positions.weight[: ids.shape[1]] + self.token_type.weight[0]
        x = self.norm(x)
        # Without padding the mask is all True: attention runs faster when it is not given one.
        wide = None if bool(mask.all()) else mask[:, None, None, :]
        for layer in self.layers:
            x = layer(x, wide)
        return x

    @classmethod
    def load(cls, folder: Path) -> "BertEncoder":
        """Read `config.json` and `model.safetensors` in Hugging Face's layout."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        with torch.device("meta"):
            encoder = cls(config)
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        encoder.load_state_dict(_ours(named, len(encoder.layers)), assign=True)
        return encoder.eval().requires_grad_(False)


def _ours(named: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Hugging Face's parameter names to ours; query, key and value joined into one matrix."""
    state = {
        "words.weight": named["embeddings.word_embeddings.weight"],
        "positions.weight": named["embeddings.position_embeddings.weight"],
        "token_type.weight": named["embeddings.token_type_embeddings.weight"],
    }
    names = {
        "attention_out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "output_norm": "output.LayerNorm",
    }
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"] = named[f"embeddings.LayerNorm.{kind}"]
        for i in range(num_layers):
            theirs = f"encoder.layer.{i}"
            parts = [
                named[f"{theirs}.attention.self.{p}.{kind}"] for p in ("query", "key", "value")
            ]
            state[f"layers.{i}.qkv.{kind}"] = torch.cat(parts)
            for ours, other in names.items():
                state[f"layers.{i}.{ours}.{kind}"] = named[f"{theirs}.{other}.{kind}"]
    return state
