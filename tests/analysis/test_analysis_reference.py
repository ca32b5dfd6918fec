"""The numbers of a report are those of the slow reference, token by token."""

import base64
import json
import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.models import tiny_model, tiny_tokens
from titans.analysis import Passage, trace
from titans.analysis.export import write_json
from titans.analysis.report import write_report
from titans.layers.memory import NeuralMemory
from titans.models import TitansForCausalLM
from titans.ops import Gates, MemoryState, reference_options

TIME = 21
MODES = ("live", "frozen", "off")


class Slow(NamedTuple):
    """What the reference says about one layer, `[time heads]` unless said."""

    loss: Tensor
    grad_norm: Tensor
    gates: Gates
    states: list[MemoryState]
    """After 0, 1, 2, ... tokens."""
    keys: Tensor
    values: Tensor


def conv(x: Tensor, weight: Tensor) -> Tensor:
    """`y_t = sum_j weight_j x_{t-j}` per channel, written with torch's own convolution."""
    padded = F.pad(x.mT, (len(weight) - 1, 0))
    return F.conv1d(padded, weight.flip(0).T[:, None], groups=x.shape[-1]).mT


def project(memory: NeuralMemory, x: Tensor, name: str) -> Tensor:
    raw = getattr(memory, f"{name}_proj")(x)
    raw = F.silu(conv(raw, getattr(memory, f"{name}_conv").weight))
    heads = raw.unflatten(-1, (memory.num_heads, -1))
    length = memory.value_length if name == "value" else 1.0
    return heads if length is None else length * heads / heads.norm(dim=-1, keepdim=True)


def slow_memory(memory: NeuralMemory, x: Tensor, writes: bool) -> tuple[Tensor, Slow]:
    """The layer's output and its insides, by `ops.reference_options` only."""
    queries, keys, values = (project(memory, x, n) for n in ("query", "key", "value"))
    raw = torch.sigmoid(memory.gates.proj(x)).unflatten(-1, (3, memory.num_heads))
    alpha, eta, step = raw.unbind(2)
    gates = Gates(alpha, eta, step * (1 - eta))
    states = [MemoryState.from_parameters(memory.initial_memory, 1).detach()]
    reads, losses, norms = [], [], []
    for t in range(x.shape[1]):
        part = slice(t, t + 1)
        read, state, trace = reference_options.scan_memory(
            queries[:, part],
            keys[:, part],
            values[:, part],
            Gates(*(gate[:, part] for gate in gates)),
            states[-1],
            chunk_size=memory.chunk_size,
            write_mask=torch.full((1, 1), writes),
            options=memory.options,
        )
        states.append(state)
        reads.append(read)
        losses.append(trace.surprise.loss[0, 0])
        norms.append(trace.surprise.grad_norm[0, 0])
    out = memory.output_norm(torch.cat(reads, dim=1)).flatten(-2)
    out = memory.output_proj(out * torch.sigmoid(memory.output_gate(x)))
    slow = Slow(torch.stack(losses), torch.stack(norms), gates, states, keys, values)
    return out, slow


def slow_model(model: TitansForCausalLM, ids: Tensor, mode: str) -> tuple[Tensor, list[Slow]]:
    """An LMM written out: losses of every token but the first, and the insides of its layers."""
    x, layers = model.model.embed_tokens(ids)[None], []
    for block in model.model.layers:
        if mode != "off":
            out, slow = slow_memory(block.mixer.memory, block.mixer_norm(x), mode == "live")
            x = x + out
            layers.append(slow)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    logits = model.lm_head(model.model.norm(x))[0]
    return F.cross_entropy(logits[:-1], ids[1:], reduction="none"), layers


def decoded(packed: dict) -> np.ndarray:
    """What the page's script makes of a packed array."""
    if "all" in packed:
        return np.full(packed["n"], packed["all"])
    kind = "f4" if "f4" in packed else "f2"
    raw = np.frombuffer(base64.b64decode(packed[kind]), dtype=f"<{kind}").astype(np.float64)
    return raw * 2.0 ** -packed.get("scale", 0)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict, dict[str, tuple]]:
    """The JSON, the page's data, and what the reference says in each mode."""
    folder = tmp_path_factory.mktemp("report")
    # Float64 and gates of visible size, so that every number matters.
    model = tiny_model("lmm", memory={"forget_init": 0.05})
    ids = tiny_tokens(batch=1, time=TIME)[0]
    found = trace(model, [Passage(ids, [f" w{i}" for i in ids.tolist()])])
    write_json([found], folder / "trace.json")
    write_report([found], folder / "report.html")
    numbers = json.loads((folder / "trace.json").read_text())["traces"][0]
    page = (folder / "report.html").read_text()
    (embedded,) = re.findall(r'id="data">(.*?)</script>', page, flags=re.DOTALL)
    with torch.no_grad():
        slow = {mode: slow_model(model, ids, mode) for mode in MODES}
    return numbers, json.loads(embedded)["runs"][0], slow


def test_surprise_and_gates(case: tuple) -> None:
    numbers, page, slow = case
    for number, layer in enumerate(slow["live"][1]):
        wanted = {
            "loss": layer.loss,
            "grad_norm": layer.grad_norm,
            "forget_gate": layer.gates.forget_gate[0],
            "momentum_decay": layer.gates.momentum_decay[0],
            "step_size": layer.gates.step_size[0],
        }
        for name, values in wanted.items():
            written = np.array(numbers["layers"][number]["tokens"][name])
            np.testing.assert_allclose(written, values.numpy(), rtol=2e-6, err_msg=name)
            for head, packed in enumerate(page["memories"][number]["tokens"][name]):
                shown = decoded(packed)
                np.testing.assert_allclose(shown, values[:, head].numpy(), rtol=5e-4, err_msg=name)
            curve = np.array(numbers["layers"][number]["curves"][name]["mean"])
            np.testing.assert_allclose(curve, values.numpy(), rtol=2e-6, err_msg=name)


def flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t[0].flatten(1) for t in tensors], dim=1)


def test_life(case: tuple) -> None:
    numbers, _, slow = case
    for number, layer in enumerate(slow["live"][1]):
        life = numbers["layers"][number]["life"]
        assert life["positions"] == list(range(TIME + 1))
        start = flat(layer.states[0].weights)
        for place, state in enumerate(layer.states):
            weights, momentum = flat(state.weights), flat(state.momentum)
            for name, wanted in (
                ("weight_norm", weights.norm(dim=1)),
                ("drift", (weights - start).norm(dim=1)),
                ("momentum_norm", momentum.norm(dim=1)),
            ):
                np.testing.assert_allclose(life[name][place], wanted.numpy(), rtol=2e-6, atol=1e-9)
        for head in range(2):
            for matrix, weight in enumerate(layer.states[-1].weights):
                values = np.linalg.svd(weight[0, head].numpy(), compute_uv=False)
                shares = values / values.sum()
                rank = np.exp(-(shares * np.log(shares)).sum())
                assert life["effective_rank"][-1][head][matrix] == pytest.approx(rank, rel=1e-6)


def network(weights: tuple[Tensor, ...], key: Tensor) -> Tensor:
    """M(k) of a memory of two layers, `[heads dim]`."""
    hidden = F.silu(torch.einsum("hoi,hi->ho", weights[0][0], key))
    return torch.einsum("hoi,hi->ho", weights[1][0], hidden)


def test_recall(case: tuple) -> None:
    numbers, _, slow = case
    checked = 0
    for number, layer in enumerate(slow["live"][1]):
        record = numbers["layers"][number]["forgetting"]
        for row, token in enumerate(record["written_at"]):
            key, value = layer.keys[0, token], layer.values[0, token]
            state = layer.states[0]
            base = network(state.initial_weights, key)
            target = value - base
            for column, position in enumerate(record["read_at"]):
                if position <= token:
                    assert record["recall"][row][column] == [None, None]
                    continue
                state = layer.states[position]
                change = network(state.weights, key) - base
                recall = (change * target).sum(-1) / target.square().sum(-1)
                shown = record["recall"][row][column]
                np.testing.assert_allclose(shown, recall.numpy(), rtol=1e-5, atol=1e-7)
                checked += 1
                if position == token + 1:
                    np.testing.assert_allclose(record["at_once"][row], recall.numpy(), rtol=1e-5)
    assert checked > 100


def test_worth(case: tuple) -> None:
    numbers, page, slow = case
    worth = numbers["worth"]
    means = []
    for number, mode in enumerate(MODES):
        losses = slow[mode][0].numpy()
        assert worth["tokens"][0] == [None, None, None]
        written = np.array([row[number] for row in worth["tokens"][1:]])
        np.testing.assert_allclose(written, losses, rtol=2e-6)
        assert worth["mean_loss"][number] == pytest.approx(losses.mean(), rel=1e-6)
        assert page["worth"]["mean_loss"][mode] == pytest.approx(losses.mean(), rel=1e-6)
        shown = decoded(page["worthCurves"]["tokens"][number])[1:]
        np.testing.assert_allclose(shown, losses, rtol=5e-4)
        means.append(losses.mean())
    assert worth["gain"] == pytest.approx([means[1] - means[0], means[2] - means[0]], rel=1e-5)
    assert len({round(mean, 6) for mean in means}) == 3
