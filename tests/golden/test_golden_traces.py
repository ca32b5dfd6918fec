"""Twenty training steps of every kind of model are what they were.

In float64, and compared to 1e-10: on one machine they agree to the bit (record them again and look
at `git diff`), on another processor sums may be taken in another order.
"""

import pytest

from golden import traces
from golden.compare import assert_near
from golden.files import read

RECORDED = read("traces.json")


@pytest.mark.parametrize("name", traces.CASES)
def test_twenty_steps(name: str) -> None:
    found = traces.trace(traces.CASES[name])
    assert found.keys() == RECORDED[name].keys()
    for kind, values in found.items():
        assert_near(values, RECORDED[name][kind], 1e-10)


def test_every_trace_is_tested() -> None:
    assert traces.CASES.keys() == RECORDED.keys()
