"""Benchmarks that models also train on: one file each, with its generator, its cells and its score.

Read `task` first: what a benchmark is. A generator is a pure function of its options and of a
numpy Generator; nothing here is downloaded.
"""
