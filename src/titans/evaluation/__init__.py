"""Runs benchmarks (`titans.tasks`, and those here) and keeps every result as a typed record."""
