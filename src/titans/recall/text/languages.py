"""Whether a text is in a language that an English encoder knows: by its script and common words."""

import re
import unicodedata
from functools import lru_cache

from titans.recall.text.words import STOP_WORDS, words

FOREIGN_WORDS = frozenset(  # of languages in Latin letters
    # German, Dutch, Scandinavian; then French, Spanish, Portuguese, Italian, and others. Words that
    # English has as well (die, war, me, in) are left out.
    """ich und der das ist nicht wir mein meine meinen meiner wie wo ein eine einen dem den auf mit
    für von zu im sind hat habe haben bin bist auch noch aber oder wenn weil nach bei wird wurde
    heute gestern morgen sehr ihr ihre sein seine heißt heisst welche welcher welches wann warum
    wer kein keine mich mir dich dir uns unser aus zum zur vom schon immer
    ik een het mijn niet zijn wij waar hoe naar voor jag och är att som inte min mitt jeg og er ikke
    le la les une est je mon ma mes où et que qui dans pas avec sur pour nous vous il elle ils du
    des au aux ce cette suis ai très comment quel quelle quand chez
    el los las una es mi mis donde dónde como cómo en con por para yo tengo está soy muy llamo
    cuándo qué quién cuál del al se su sus o eu meu minha não uma onde quando quem você ele ela os
    um il gli uno io mio mia sono che dove quando perché della nel alla ho è non di
    nie jest się na moja mój gdzie jak ve bir bu benim nerede ben yang saya di dan ini aku tidak
    ja mun minun on missä és nem az egy a hol""".split()
)
SHARED_WORDS = frozenset(
    "a am an as at be can do he i in is me no of on or she so to was we".split()
)
"""English words that other languages write alike: no sign of either."""
MANY_PIECES = 0.35
"""A text whose words fall into more continued pieces than this is not English, or no words."""


@lru_cache(maxsize=4096)
def _is_latin(character: str) -> bool:
    return unicodedata.name(character, "").startswith(("LATIN", "FULLWIDTH LATIN"))


def is_mostly_latin(text: str) -> bool:
    """Whether at least half of the letters are Latin; so is a text without letters."""
    letters = [c for c in text if c.isalpha()]
    return 2 * sum(map(_is_latin, letters)) >= len(letters)


def seems_english(text: str, continued: float) -> bool:
    """Whether a text in Latin letters is English, as far as its words tell.

    Args:
        continued: the share of tokens that continue a word, for texts without any common word.
    """
    # A capital inside a text is a name: Los Angeles, La Paz.
    plain = re.sub(r"(?<=\w\s)[A-Z]\w*(?:\s[A-Z]\w*)*", "", text)
    found = [word for word in words(plain) if word not in SHARED_WORDS]
    foreign = sum(word in FOREIGN_WORDS for word in found)
    english = sum(word in STOP_WORDS for word in found if word not in FOREIGN_WORDS)
    if foreign or english:
        return english >= foreign
    return len(words(text)) < 3 or continued <= MANY_PIECES
