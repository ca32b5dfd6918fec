"""See a memory at work: what it found worth remembering, what it kept, and what it is worth.

`trace(model, ids)` reads tokens and returns typed records (`titans.analysis.records`);
`titans.analysis.plots` draws them, `titans.analysis.report` writes the page of `titans analyze`.
"""

from titans.analysis.forgetting import forgetting_curve as forgetting_curve
from titans.analysis.records import Passage as Passage
from titans.analysis.records import Trace as Trace
from titans.analysis.tracing import trace as trace
from titans.analysis.tracing import trace_memory as trace_memory

__all__ = ["Passage", "Trace", "forgetting_curve", "trace", "trace_memory"]
