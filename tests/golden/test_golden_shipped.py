"""The shipped checkpoints mean and compute what they did.

Logits are float32: 1e-4 allows for another processor. The first choice must be the same everywhere
(positions at which two words are nearly equal are left out of the recording).
"""

from pathlib import Path

import pytest

from golden import shipped
from golden.compare import assert_near
from golden.files import read

RECORDED = read("shipped.json")


@pytest.mark.parametrize("folder", shipped.FOLDERS, ids=lambda path: path.name)
def test_checkpoint(folder: Path) -> None:
    found, recorded = shipped.describe(folder), RECORDED[folder.name]
    assert found["settings"] == recorded["settings"]
    assert found["weights"] == recorded["weights"]
    assert found["stored_weights"] == recorded["stored_weights"]
    assert found["ids"] == recorded["ids"]
    assert_near(found["log_sums"], recorded["log_sums"], 1e-4)
    assert_near(found["logits"], recorded["logits"], 1e-4)
    choices = zip(found["choices"], recorded["choices"], strict=True)
    assert [ours for ours, theirs in choices if theirs >= 0] == [
        theirs for theirs in recorded["choices"] if theirs >= 0
    ]


def test_every_recorded_checkpoint_is_still_shipped() -> None:
    assert RECORDED.keys() <= {folder.name for folder in shipped.FOLDERS}
