"""Published numbers to hold ours against, with where each comes from.

PLOT marks figures read off a raster image (about +-0.01 in accuracy, +-0.1 in k tokens/s).
"""

PLOT = "read off a plot"

S_NIAH_LENGTHS = (2_048, 4_096, 8_192, 16_384)
S_NIAH: dict[str, dict[str, tuple[float, ...]]] = {
    "TTT": {
        "pk": (98.4, 98.8, 98.0, 88.4),
        "n": (60.2, 36.6, 10.2, 4.4),
        "w": (78.8, 28.0, 4.4, 0.0),
    },
    "Mamba2": {
        "pk": (98.6, 61.4, 31.0, 5.4),
        "n": (98.4, 55.8, 14.2, 0.0),
        "w": (42.2, 4.2, 0.0, 0.0),
    },
    "DeltaNet": {
        "pk": (96.8, 98.8, 98.6, 71.4),
        "n": (47.2, 15.4, 12.8, 5.4),
        "w": (46.2, 20.0, 1.6, 0.0),
    },
    "Titans LMM": {
        "pk": (99.8, 98.4, 98.2, 96.2),
        "n": (100.0, 99.8, 93.4, 80.2),
        "w": (90.4, 89.4, 85.8, 80.6),
    },
    "Titans MAC": {
        "pk": (99.2, 98.8, 99.0, 98.4),
        "n": (99.6, 98.2, 97.6, 97.4),
        "w": (98.2, 98.2, 95.6, 95.2),
    },
    "Titans MAG": {
        "pk": (99.4, 98.0, 97.4, 97.4),
        "n": (99.2, 98.8, 97.2, 98.6),
        "w": (98.0, 98.0, 90.2, 88.2),
    },
    "Titans MAL": {
        "pk": (98.8, 98.6, 98.8, 97.8),
        "n": (99.8, 98.1, 96.8, 96.4),
        "w": (98.0, 97.4, 92.0, 90.4),
    },
}
"""Titans, table 2: accuracy in per cent, models of unstated size, zero-shot after pretraining."""

BABILONG_LENGTHS = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072)
BABILONG: dict[str, tuple[float, ...]] = {
    "Titans MAC, fine-tuned": (99, 99, 99, 98, 99, 99, 97, 98),
    "Mamba, fine-tuned": (99, 99, 99, 99, 99, 98, 96, 92),
    "RMT, fine-tuned": (97, 95, 92, 90, 86, 78, 70, 59),
    "GPT-4, few-shot": (81, 77, 74, 71, 64, 53, 43, 36),
}
"""Titans, figure 6 (PLOT): mean of qa1 to qa5 in per cent; lengths in GPT-2's tokens."""

MQAR_STATE: dict[str, tuple[tuple[str, float], ...]] = {
    "DeltaNet": (("8.9k", 0.79), ("34k", 0.96), ("134k", 0.995)),
    "Gated DeltaNet": (("17k", 0.89), ("66k", 0.99), ("265k", 0.99), ("1.05M", 1.0)),
    "Mamba-2": (("8k", 0.52), ("16k", 0.69), ("33k", 0.785), ("65k", 0.83), ("98k", 0.845)),
    "sliding window": (("10k", 0.08), ("34k", 0.31), ("67k", 0.515), ("132k", 0.655)),
}
"""Zoology, setting B (PLOT): (state in bytes, accuracy), trained with the full published budget."""

ABLATION: dict[str, tuple[float, float, float]] = {
    "LMM": (27.01, 47.83, 92.68),
    "linear memory": (28.49, 46.97, 85.34),
    "no convolution": (28.73, 45.82, 90.28),
    "no momentum": (28.98, 45.49, 87.12),
    "no forgetting": (29.04, 45.11, 85.60),
    "no persistent memory": (27.63, 46.35, 92.49),
}
"""Titans, table 5: perplexity, reasoning accuracy, long-context accuracy (400M parameters)."""

DEPTH_THROUGHPUT_LENGTHS = (2_048, 4_096, 8_192, 16_384, 32_768)
DEPTH_THROUGHPUT: dict[int, tuple[float, ...]] = {
    1: (44.3, 44.4, 44.3, 44.2, 44.1),
    2: (37.3, 37.4, 37.2, 36.7, 36.7),
    3: (29.8, 30.0, 29.7, 29.3, 29.2),
    4: (23.6, 23.7, 23.6, 23.3, 23.2),
}
"""Titans, figure 8 (PLOT): training, thousand tokens per second by memory depth."""

THROUGHPUT_LENGTHS = (2_048, 4_096, 8_192, 16_384)
THROUGHPUT: dict[str, tuple[float, ...]] = {
    "Transformer++": (49.8, 42.3, 34.8, 24.0),
    "Mamba2": (42.6, 42.3, 42.35, 42.3),
    "Gated DeltaNet": (41.0, 40.0, 39.8, 39.65),
    "Titans MAL": (40.8, 40.75, 40.6, 40.4),
    "Titans MAG": (36.2, 36.15, 36.05, 35.9),
    "Titans MAC": (36.05, 36.05, 35.95, 35.85),
    "Titans LMM": (35.3, 35.3, 35.2, 35.15),
    "Mamba": (34.4, 34.4, 34.55, 34.9),
}
"""Titans, figure 9 (PLOT): training, thousand tokens per second."""

LANGUAGE: dict[str, tuple[float, float]] = {
    "Transformer++": (31.52, 41.08),
    "RetNet": (32.50, 49.73),
    "GLA": (28.51, 43.02),
    "Mamba": (30.83, 40.21),
    "DeltaNet": (28.65, 47.30),
    "TTT": (27.44, 34.19),
    "Gated DeltaNet": (27.01, 30.94),
    "Titans LMM": (26.18, 29.97),
    "Titans MAC": (25.43, 28.13),
    "Titans MAG": (25.07, 28.72),
    "Titans MAL": (24.69, 28.80),
}
"""Titans, table 1, 340M parameters and 15B tokens: perplexity on Wiki and on LAMBADA."""
