"""How golden values are compared."""

import math
from collections.abc import Sequence


def assert_near(found: Sequence[float], wanted: Sequence[float], relative: float) -> None:
    """Every value within `relative` of the wanted one, on the scale of the largest of all."""
    assert len(found) == len(wanted)
    scale = max((abs(value) for value in wanted), default=0.0)
    for place, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert math.isclose(ours, theirs, rel_tol=relative, abs_tol=relative * scale), (
            f"value {place} is {ours!r}, recorded was {theirs!r} ({ours - theirs:+.1e})"
        )
