"""A progress bar for work that says how much of it is done."""

import sys

from tqdm import tqdm


class Bar(tqdm):
    """On stderr, if that is a terminal and the work takes longer than two seconds."""

    def __init__(self, label: str, total: int | None = None) -> None:
        super().__init__(desc=label, total=total, delay=2, disable=None, file=sys.stderr)

    def reach(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show how far it is."""
        self.total = self.total if total is None else total
        self.set_postfix_str(note, refresh=False)
        self.update(done - self.n)
