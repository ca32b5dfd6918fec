"""Text for a terminal: what would act there is escaped."""

import unicodedata

_ACTING = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """A text on one line of a terminal or a prompt, as it is read: what would act is escaped.

    Line breaks, terminal codes and marks that turn the direction of writing are shown as in a
    Python string; the joiners of emoji and of Persian and Indic letters stay.
    """
    return "".join(_shown(c) if unicodedata.category(c) in _ACTING else c for c in text)


def _shown(character: str) -> str:
    return character if character in _JOINERS else repr(character)[1:-1]
