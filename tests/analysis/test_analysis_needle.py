"""The shipped needle checkpoint: what was hidden stands out, and repetition makes it familiar."""

from pathlib import Path

import numpy as np
import pytest
import torch

from titans.analysis import Trace, trace
from titans.analysis.tracing import Limits
from titans.models import TitansForCausalLM
from titans.tasks.needle import MARK, NeedleGenerator

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "needle-lmm"
NEEDLES = 4
FEW = Limits(reads=12)
"""Looks at the memory itself cost time and do not matter here."""


@pytest.fixture(scope="module")
def model() -> TitansForCausalLM:
    return TitansForCausalLM.from_pretrained(CHECKPOINT)


def hidden(seed: int, distractors: bool, length: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """A text with needles (no questions), and where their values stand."""
    task = NeedleGenerator(length=length, num_needles=NEEDLES, distractors=distractors)
    tokens = task.batch(np.random.default_rng(seed), 1).tokens[0, : task.context_length]
    return tokens, np.flatnonzero(tokens == MARK) + 2


def rank(trace: Trace, measure: str) -> np.ndarray:
    """0 for the most surprising token."""
    return (-trace.surprise(measure)).argsort().argsort()


@pytest.mark.parametrize("distractors", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_needles_are_the_most_surprising_tokens(
    model: TitansForCausalLM, seed: int, distractors: bool
) -> None:
    tokens, values = hidden(seed, distractors)
    found = trace(model, torch.from_numpy(tokens), limits=FEW)
    for measure in ("grad_norm", "write_size"):
        ranks = rank(found, measure)[values]
        assert ranks.min() == 0, f"{measure}: the most surprising token is no needle"
        assert ranks.max() < 0.02 * len(tokens), f"{measure}: ranks {sorted(ranks)}"
    assert {peak.position for peak in found.peaks[:NEEDLES]} <= {
        int(v) + near for v in values for near in (-1, 0, 1)
    }


def test_repeating_a_passage_lowers_its_surprise(model: TitansForCausalLM) -> None:
    tokens, values = hidden(2, distractors=False, length=256)
    found = trace(model, torch.from_numpy(np.tile(tokens, 3)), limits=FEW)
    readings = found.surprise("loss").reshape(3, -1)
    assert readings[1].mean() < 0.97 * readings[0].mean()
    of_needles = readings[:, values].mean(1)
    assert of_needles[1] < 0.75 * of_needles[0]
    assert of_needles[2] < of_needles[1]


def test_the_memory_is_worth_something_at_the_questions(model: TitansForCausalLM) -> None:
    task = NeedleGenerator(length=400, num_needles=NEEDLES, distractors=False)
    batch = task.batch(np.random.default_rng(3), 1)
    found = trace(model, torch.from_numpy(batch.tokens), limits=FEW)
    assert found.worth is not None
    # Labels stand one token before the answers that they ask for.
    answers = np.flatnonzero(batch.labels[0, :-1] >= 0) + 1
    assert len(answers) == NEEDLES
    live, frozen, off = found.worth.tokens[answers].mean(0)
    assert live < 0.5
    assert min(frozen, off) > live + 1
