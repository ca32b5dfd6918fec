"""Benchmarks: one file per task, every result a typed record that can be regenerated."""
