"""A short soak in the default tests: every suite a few times. The long one is `make soak`."""

import pytest

from soak.driver import Suite, Tally, run_trial, suites

TRIALS = 3


@pytest.mark.parametrize("suite", suites(), ids=lambda suite: suite.name)
def test_promises_hold(suite: Suite) -> None:
    tally = Tally()
    for number in range(TRIALS):
        run_trial(suite, 1, number, tally)
    assert tally.trials == TRIALS and not tally.failures, tally.failures
