"""Synthetic tasks: pure generators, seeded by numpy Generators, that download nothing."""
