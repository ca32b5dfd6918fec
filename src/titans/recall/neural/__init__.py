"""The memory in weights.

Reading order: `turn` (the formulas), `memory` (online: observe, write, read), `sketch` (words as a
vector), `meta` (training the projections).
"""
