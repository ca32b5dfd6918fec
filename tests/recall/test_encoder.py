from pathlib import Path

import numpy as np
import pytest

from titans.errors import CheckpointError, ConfigError
from titans.recall.encoder.bert import WORTH_TORCH, BertEncoder, NumPy, Torch
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
        np.testing.assert_allclose(ours.vectors, theirs.vectors, atol=2e-5, rtol=1e-4)
        assert ours.spans == theirs.spans
    assert minilm.token_spans(TEXTS[0]) == other.token_spans(TEXTS[0])


def test_numpy_and_torch_encode_alike(minilm: MiniLMEncoder):
    ids = np.random.default_rng(0).integers(1000, 20_000, (3, 40))
    padded = np.arange(40) < np.array([[40], [33], [2]])
    plain, quick = (BertEncoder.load(minilm.folder, kind) for kind in (NumPy(), Torch()))
    np.testing.assert_allclose(plain(ids), quick(ids), atol=1e-5)
    np.testing.assert_allclose(plain(ids, padded)[padded], quick(ids, padded)[padded], atol=1e-5)
    assert isinstance(plain._arithmetic, NumPy)
    plain(np.tile(ids, (WORTH_TORCH // ids.size, 1)))
    assert isinstance(plain._arithmetic, Torch)


def test_minilm_reproduces_the_published_similarity(minilm: MiniLMEncoder):
    a, b = (
        t.pool("mean")
        for t in minilm.encode(["That is a happy person", "That is a very happy person"])
    )
    assert float(a @ b) > 0.9


def test_batch_does_not_change_a_text(minilm: MiniLMEncoder):
    alone = minilm.encode(TEXTS[:1])[0].vectors
    np.testing.assert_allclose(minilm.encode(TEXTS)[0].vectors, alone, atol=1e-5, rtol=1e-4)


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
    assert np.array_equal(a, b)
    assert np.array_equal(a[0], HashingEncoder(32).encode(["a dog"])[0].vectors[1])


def test_pooling():
    tokens = TokenVectors(
        np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]], np.float32), ((0, 0), (0, 2), (3, 4))
    )
    assert tokens.pool("cls").tolist() == [1.0, 0.0]
    np.testing.assert_allclose(tokens.pool("max"), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(tokens.pool("mean"), [0.6, 0.8], rtol=1e-6)
    two = TokenVectors(np.eye(2, dtype=np.float32), ((0, 2), (3, 4)))
    assert two.pool("mean", 3).tolist() == [0.0, 1.0]


def test_unknown_encoders_are_explained():
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_encoder("no-such/model")
    with pytest.raises(ConfigError, match="whole number"):
        load_encoder("hashing:many")
