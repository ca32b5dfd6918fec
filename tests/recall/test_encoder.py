from pathlib import Path

import pytest
import torch

from titans.errors import CheckpointError, ConfigError
from titans.recall.encoder.encoder import (
    HashingEncoder,
    HuggingFaceEncoder,
    MiniLMEncoder,
    TokenVectors,
    load_encoder,
)

TEXTS = ["My dog is called Rex.", "A much longer sentence, about nothing in particular at all."]


def test_minilm_equals_transformers(minilm: MiniLMEncoder):
    other = HuggingFaceEncoder(str(minilm.folder))
    for ours, theirs in zip(minilm.encode(TEXTS), other.encode(TEXTS), strict=True):
        torch.testing.assert_close(ours.vectors, theirs.vectors, atol=2e-5, rtol=1e-4)
        assert ours.spans == theirs.spans
    assert minilm.token_spans(TEXTS[0]) == other.token_spans(TEXTS[0])


def test_minilm_reproduces_the_published_similarity(minilm: MiniLMEncoder):
    a, b = (
        t.pool("mean")
        for t in minilm.encode(["That is a happy person", "That is a very happy person"])
    )
    assert float(a @ b) > 0.9


def test_batch_does_not_change_a_text(minilm: MiniLMEncoder):
    alone = minilm.encode(TEXTS[:1])[0].vectors
    torch.testing.assert_close(minilm.encode(TEXTS)[0].vectors, alone, atol=1e-5, rtol=1e-4)


def test_tampered_weights_are_refused(tmp_path: Path, minilm: MiniLMEncoder):
    for file in minilm.folder.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not the weights")
    with pytest.raises(CheckpointError, match="not the pinned weights"):
        MiniLMEncoder(tmp_path)


def test_long_text_is_cut_at_the_encoders_limit(minilm: MiniLMEncoder):
    assert len(minilm.encode(["word " * 1000])[0].vectors) == minilm.max_tokens


def test_common_words_have_a_low_rank(minilm: MiniLMEncoder):
    assert minilm.word_rank("time") < minilm.word_rank("pottery") < minilm.word_rank("xylograph")


def test_hashing_is_the_same_in_every_instance():
    a, b = (HashingEncoder(32).encode(["dogs walk"])[0].vectors for _ in range(2))
    assert torch.equal(a, b)
    assert torch.equal(a[0], HashingEncoder(32).encode(["a dog"])[0].vectors[1])


def test_pooling():
    tokens = TokenVectors(
        torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]), ((0, 0), (0, 2), (3, 4))
    )
    assert tokens.pool("cls").tolist() == [1.0, 0.0]
    torch.testing.assert_close(tokens.pool("max"), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(tokens.pool("mean"), torch.tensor([0.6, 0.8]))
    assert TokenVectors(torch.eye(2), ((0, 2), (3, 4))).pool("mean", 3).tolist() == [0.0, 1.0]


def test_unknown_encoders_are_explained():
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_encoder("no-such/model")
    with pytest.raises(ConfigError, match="whole number"):
        load_encoder("hashing:many")
