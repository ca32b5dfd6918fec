"""A line of a terminal for numbers along a text."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_max_pool1d

COLUMNS = 64
BLOCKS = " ▁▂▃▄▅▆▇█"


def average_line(values: Tensor) -> str:
    """The mean of every part of the text, from the lowest bar to the highest."""
    return _bars(adaptive_avg_pool1d(values[None], COLUMNS)[0], lowest=1)


def peak_line(values: Tensor) -> str:
    """The largest value of every part of the text, from none to the highest bar."""
    return _bars(adaptive_max_pool1d(values[None], COLUMNS)[0], lowest=0)


def marks(places: Sequence[float]) -> str:
    """A ^ under each place, given as a share of the text."""
    columns = {int(place * COLUMNS) for place in places}
    return "".join("^" if column in columns else " " for column in range(COLUMNS)).rstrip()


def _bars(values: Tensor, lowest: int) -> str:
    low = values.min() if lowest else 0.0
    shares = (values - low) / (values.max() - low).clamp_min(1e-12)
    return "".join(BLOCKS[lowest + round((len(BLOCKS) - 1 - lowest) * x)] for x in shares.tolist())
