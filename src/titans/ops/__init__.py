"""Pure functions of the neural memory: tensors and state in, tensors and state out.

Reading order: `reference` (the paper's equations), `reference_options` (all that goes beyond
them), `writes` (which token is written, and how strongly), `scan` (the fast form: chunk, group,
loop), `step` (one token), `generic` (any network as memory), `delta` (the online rule of one
matrix). The derivation is in README.md.
"""

from titans.ops import reference as reference
from titans.ops import reference_options as reference_options
from titans.ops.generic import associative_scan as associative_scan
from titans.ops.options import ScanOptions as ScanOptions
from titans.ops.read import read_memory as read_memory
from titans.ops.scan import scan_memory as scan_memory
from titans.ops.state import Gates as Gates
from titans.ops.state import MemoryState as MemoryState
from titans.ops.state import Surprise as Surprise
from titans.ops.state import Trace as Trace
from titans.ops.step import step as step

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
    "step",
]
