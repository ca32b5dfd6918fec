"""A BERT encoder for inference, and nothing else: the forward pass of all-MiniLM-L6-v2.

Importing `transformers` takes seconds, which a command like `titans remember` would pay each time;
these lines load the same weights at once. Equal to `transformers.BertModel`
(tests/recall/test_encoder.py). Any other model goes through `transformers` (encoder.py).

The arithmetic is NumPy's. A process that has imported PyTorch, or has so much to encode that its
import pays (`WORTH_TORCH`), takes PyTorch's, with matrices packed for oneDNN: about twice as fast.
"""

import json
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

Array = NDArray[np.float32]
Mask = NDArray[np.bool_] | None
"""`[batch, time]`, False is padding; None if there is none."""
WORTH_TORCH = 4096
"""Tokens after which a process takes PyTorch's second of import upon itself."""


class Arithmetic(Protocol):
    """What a layer is computed with. Values are arrays or tensors, as the arithmetic has them."""

    def value(self, array: Array) -> Any:
        """An array of this arithmetic."""
        ...

    def matrix(self, weight: Array, bias: Array) -> Any:
        """A linear map, made ready once."""
        ...

    def linear(self, x: Any, matrix: Any, *, gelu: bool = False) -> Any:
        """The map, and the nonlinearity behind it."""
        ...

    def norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        """Layer norm."""
        ...

    def attend(self, qkv: Any, num_heads: int, mask: Mask) -> Any:
        """Attention over `[batch, time, 3 dim]`, heads joined again."""
        ...

    def array(self, x: Any) -> Array:
        """The inverse of `value`."""
        ...


class NumPy:
    """At once; no import but the one that is there."""

    def value(self, array: Array) -> Array:
        """As it is."""
        return array

    def matrix(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """A view in the order of the product."""
        return weight.T, bias

    def linear(self, x: Array, matrix: tuple[Array, Array], *, gelu: bool = False) -> Array:
        """One product for all rows."""
        weight, bias = matrix
        y = x.reshape(-1, x.shape[-1]) @ weight
        y += bias
        if gelu:
            y = _gelu(y)
        return y.reshape(*x.shape[:-1], -1)

    def norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """Layer norm."""
        x = x - x.mean(-1, keepdims=True)
        variance = np.einsum("...i,...i->...", x, x) / np.float32(x.shape[-1])
        x /= np.sqrt(variance + np.float32(eps))[..., None]
        x *= weight
        x += bias
        return x

    def attend(self, qkv: Array, num_heads: int, mask: Mask) -> Array:
        """Scores, their softmax, the mean of the values."""
        batch, time, width = qkv.shape
        parts = qkv.reshape(batch, time, 3, num_heads, -1).transpose(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].swapaxes(-1, -2)
        scores *= np.float32(parts.shape[-1] ** -0.5)
        if mask is not None:
            scores[~np.broadcast_to(mask[:, None, None], scores.shape)] = -np.inf
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ parts[2]).transpose(0, 2, 1, 3).reshape(batch, time, width // 3)

    def array(self, x: Array) -> Array:
        """As it is."""
        return x


class Torch:
    """PyTorch, with oneDNN's packed matrices where it has them."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        has_onednn = torch.backends.mkldnn.is_available()
        self._packed = torch.ops.mkldnn if has_onednn else None

    def value(self, array: Array) -> Any:
        """Shares the array's memory."""
        return self._torch.from_numpy(array)

    def matrix(self, weight: Array, bias: Array) -> Any:
        """Packed for oneDNN."""
        whole = self.value(np.ascontiguousarray(weight))
        if self._packed is not None:
            whole = self._packed._reorder_linear_weight(whole, None)
        return whole, self.value(bias)

    def linear(self, x: Any, matrix: Any, *, gelu: bool = False) -> Any:
        """The map, and the nonlinearity in the same pass."""
        weight, bias = matrix
        if self._packed is not None:
            kind = ("gelu", [], "none") if gelu else ("none", [], "")
            return self._packed._linear_pointwise(x, weight, bias, *kind)
        y = self._torch.nn.functional.linear(x, weight, bias)
        return self._torch.nn.functional.gelu(y) if gelu else y

    def norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        """Layer norm."""
        return self._torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)

    def attend(self, qkv: Any, num_heads: int, mask: Mask) -> Any:
        """PyTorch's own attention."""
        batch, time, width = qkv.shape
        parts = qkv.view(batch, time, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        wide = None if mask is None else self._torch.from_numpy(mask)[:, None, None]
        attend = self._torch.nn.functional.scaled_dot_product_attention
        found = attend(parts[0], parts[1], parts[2], attn_mask=wide)
        return found.transpose(1, 2).reshape(batch, time, width // 3)

    def array(self, x: Any) -> Array:
        """Shares the tensor's memory."""
        return x.numpy()


class BertEncoder:
    """Token ids to one vector per token."""

    def __init__(
        self, config: dict[str, int | float], named: dict[str, Array], arithmetic: Arithmetic
    ) -> None:
        self.dim, self._eps = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self._num_heads = int(config["num_attention_heads"])
        self._num_layers = int(config["num_hidden_layers"])
        self._named = named
        self._seen = 0
        self._use(arithmetic)

    def _use(self, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic
        norms = [_norm("embeddings.LayerNorm", self._named, arithmetic)]
        layers: list[dict[str, Any]] = []
        for number in range(self._num_layers):
            prefix = f"encoder.layer.{number}."
            parts = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
            qkv = [
                np.concatenate([self._named[f"{part}.{kind}"] for part in parts])
                for kind in ("weight", "bias")
            ]
            layer: dict[str, Any] = {"qkv": arithmetic.matrix(*qkv)}
            for ours, theirs in (
                ("out", "attention.output.dense"),
                ("up", "intermediate.dense"),
                ("down", "output.dense"),
            ):
                weights = (self._named[f"{prefix}{theirs}.{k}"] for k in ("weight", "bias"))
                layer[ours] = arithmetic.matrix(*weights)
            layers.append(layer)
            for theirs in ("attention.output.LayerNorm", "output.LayerNorm"):
                norms.append(_norm(prefix + theirs, self._named, arithmetic))
        self._layers, self._norms = layers, norms
        if isinstance(arithmetic, Torch):  # which has packed the others
            self._named = {k: v for k, v in self._named.items() if k.startswith("embeddings.")}

    def __call__(self, ids: NDArray[np.int64], mask: Mask = None) -> Array:
        """The last hidden states; padding (mask False) is not attended to."""
        self._seen += ids.size
        if self._seen > WORTH_TORCH and isinstance(self._arithmetic, NumPy):
            self._use(Torch())
        do, named = self._arithmetic, self._named
        x = named["embeddings.word_embeddings.weight"][ids]
        x += named["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x += named["embeddings.token_type_embeddings.weight"][0]
        norms = iter(self._norms)
        x = do.norm(do.value(x), *next(norms), self._eps)
        for layer in self._layers:
            mixed = do.attend(do.linear(x, layer["qkv"]), self._num_heads, mask)
            x = do.norm(do.linear(mixed, layer["out"]) + x, *next(norms), self._eps)
            wide = do.linear(x, layer["up"], gelu=True)
            x = do.norm(do.linear(wide, layer["down"]) + x, *next(norms), self._eps)
        return do.array(x)

    @classmethod
    def load(cls, folder: Path, arithmetic: Arithmetic | None = None) -> "BertEncoder":
        """Read `config.json` and `model.safetensors` in Hugging Face's layout."""
        arithmetic = arithmetic or (Torch() if "torch" in sys.modules else NumPy())
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        with safe_open(folder / "model.safetensors", framework="np") as file:
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return cls(config, named, arithmetic)


def _norm(name: str, named: dict[str, Array], arithmetic: Arithmetic) -> tuple[Any, Any]:
    return arithmetic.value(named[f"{name}.weight"]), arithmetic.value(named[f"{name}.bias"])


_ODD = (-1.60960333e-02, -2.95459981e-03, -7.34990631e-04, -5.69250639e-05, -2.10102402e-06)
_ODD += (2.77068142e-08, -2.72614226e-10)
_EVEN = (-1.42647390e-02, -7.37332917e-03, -1.68282697e-03, -2.13374055e-04, -1.45660718e-05)
"""A quotient of polynomials that is erf up to the last bits of float32 (Eigen's)."""
_BLOCK = 1 << 15
"""Numbers that stay in the cache while the polynomials are formed."""


def _gelu(x: Array) -> Array:
    """x (1 + erf(x / sqrt 2)) / 2, in place."""
    flat = x.reshape(-1)
    for begin in range(0, len(flat), _BLOCK):
        part = flat[begin : begin + _BLOCK]
        z: Array = np.clip(part * np.float32(0.5**0.5), np.float32(-4), np.float32(4))
        square = z * z
        erf = _horner(_ODD, square)
        erf *= z
        erf /= _horner(_EVEN, square)
        erf += 1
        part *= erf
        part *= np.float32(0.5)
    return x


def _horner(coefficients: tuple[float, ...], x: Array) -> Array:
    """A polynomial, its lowest coefficient first."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += np.float32(coefficient)
    return total
