"""Pure functions of the neural memory: tensors and state in, tensors and state out."""

from titans.ops.options import ScanOptions as ScanOptions
from titans.ops.state import Gates as Gates
from titans.ops.state import MemoryState as MemoryState
from titans.ops.state import Surprise as Surprise
