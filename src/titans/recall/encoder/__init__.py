"""From texts to token vectors: `encoder` (what there is), `bert` (the forward pass of MiniLM)."""

from titans.recall.encoder.encoder import DEFAULT_ENCODER as DEFAULT_ENCODER
from titans.recall.encoder.encoder import Encoder as Encoder
from titans.recall.encoder.encoder import HashingEncoder as HashingEncoder
from titans.recall.encoder.encoder import MiniLMEncoder as MiniLMEncoder
from titans.recall.encoder.encoder import Pooling as Pooling
from titans.recall.encoder.encoder import TokenVectors as TokenVectors
from titans.recall.encoder.encoder import is_built_in as is_built_in
from titans.recall.encoder.encoder import load_encoder as load_encoder

__all__ = [
    "DEFAULT_ENCODER",
    "Encoder",
    "HashingEncoder",
    "MiniLMEncoder",
    "Pooling",
    "TokenVectors",
    "is_built_in",
    "load_encoder",
]
