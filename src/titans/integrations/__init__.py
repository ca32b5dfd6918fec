"""The text memory inside other frameworks. Each module needs an extra; no other package needs one.

`langgraph` (store and middleware), `llama_index` (memory block), `claude` (Claude's memory tool),
the last and the store on `documents`: texts under keys that can be replaced. `telemetry` makes
OpenTelemetry spans.
"""
