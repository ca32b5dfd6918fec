"""Text memory for conversations: remember, recall, forget, without an LLM.

Reading order: `memory` (the whole of it), `writing` and `replica` (a text into a scope), `text`
(what is kept of it), `neural` (the memory in weights), `search` (from a query to a score), `store`.
"""

from titans.recall.asynchronous import AsyncTextMemory as AsyncTextMemory
from titans.recall.chat import ChatSession as ChatSession
from titans.recall.config import NeuralConfig as NeuralConfig
from titans.recall.config import RecallConfig as RecallConfig
from titans.recall.config import preset as preset
from titans.recall.encoder import Encoder as Encoder
from titans.recall.encoder import load_encoder as load_encoder
from titans.recall.exchange import export_records as export_records
from titans.recall.exchange import import_records as import_records
from titans.recall.generator import Message as Message
from titans.recall.generator import Sampling as Sampling
from titans.recall.generator import ScriptedGenerator as ScriptedGenerator
from titans.recall.generator import TextGenerator as TextGenerator
from titans.recall.generator import load_generator as load_generator
from titans.recall.memory import TextMemory as TextMemory
from titans.recall.records import Recalled as Recalled
from titans.recall.records import Record as Record
from titans.recall.records import Summary as Summary
from titans.recall.records import Turn as Turn

__all__ = [
    "AsyncTextMemory",
    "ChatSession",
    "Encoder",
    "Message",
    "NeuralConfig",
    "RecallConfig",
    "Recalled",
    "Record",
    "Sampling",
    "ScriptedGenerator",
    "Summary",
    "TextGenerator",
    "TextMemory",
    "Turn",
    "export_records",
    "import_records",
    "load_encoder",
    "load_generator",
    "preset",
]
