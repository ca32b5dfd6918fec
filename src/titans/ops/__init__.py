"""Pure functions of the neural memory: tensors and state in, tensors and state out.

Reading order: `reference` (the specification), `chunk_math` (the closed form), `chunk_scan`
(its loop and backward), `chunkwise` (the public scan), `decode` (one token), `functional`
(any network as memory), `delta` (the online rule of one matrix).
"""

from titans.ops import reference as reference
from titans.ops import reference_options as reference_options
from titans.ops.chunkwise import scan_memory as scan_memory
from titans.ops.decode import step as step
from titans.ops.options import ScanOptions as ScanOptions
from titans.ops.read import read_memory as read_memory
from titans.ops.scan import associative_scan as associative_scan
from titans.ops.scan import sequential_scan as sequential_scan
from titans.ops.state import Gates as Gates
from titans.ops.state import MemoryState as MemoryState
from titans.ops.state import Surprise as Surprise
from titans.ops.state import Trace as Trace

__all__ = [
    "Gates",
    "MemoryState",
    "ScanOptions",
    "Surprise",
    "Trace",
    "associative_scan",
    "read_memory",
    "reference",
    "reference_options",
    "scan_memory",
    "sequential_scan",
    "step",
]
