"""A short soak in the default tests: each suite once. The long one is `make soak`."""

import pytest

from soak.driver import Suite, Tally, run_trial, suites


@pytest.mark.parametrize("suite", suites(), ids=lambda suite: suite.name)
def test_promises_hold(suite: Suite) -> None:
    tally = Tally()
    run_trial(suite, 1, 0, tally)
    assert tally.trials == 1 and not tally.failures, tally.failures
