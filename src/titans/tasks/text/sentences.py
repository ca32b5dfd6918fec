"""Sentences of English prose without a model to download.

Ends are found by punctuation and case, with a list of abbreviations and the rule for initials:
what NLTK's punkt learns from data, written down. Joining the sentences with the text between them
gives the text back; `split_sentences` drops that white space as punkt does.
"""

import re

ABBREVIATIONS = frozenset(
    """
    mr mrs ms messrs mme mlle dr prof rev hon st sr jr esq capt col gen lieut lt sgt maj gov sen
    rep pres supt vs etc viz cf al no nos vol vols chap ch fig figs pp ed eds co corp inc ltd bros
    dept univ e.g i.e a.m p.m b.c a.d u.s u.k ph.d m.d b.a m.a jan feb mar apr jun jul aug sept
    sep oct nov dec mt ft ave blvd rd approx est
    """.split()
)
"""Words whose full stop does not end a sentence, in lower case without that stop."""

_OPENING, _CLOSING = "\"'([\u201c\u2018", "\"')]\u201d\u2019"
_CANDIDATE = re.compile(rf"([.!?]+)([{re.escape(_CLOSING)}]*)(\s+)(?=[{re.escape(_OPENING)}]*(\S))")
_LAST_WORD = re.compile(r"\S+$")


def split_sentences(text: str) -> list[str]:
    """The sentences of `text` in order, without the white space between them."""
    sentences: list[str] = []
    start = 0
    for match in _CANDIDATE.finditer(text):
        if _ends_sentence(text, start, match):
            sentences.append(text[start : match.end(2)].strip())
            start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether this stop ends the sentence that began at `start`."""
    following = match.group(4)
    if following.islower() and "\n\n" not in match.group(3):
        # "said" after a quotation, or an abbreviation that the list does not know.
        return False
    if match.group(1) != ".":
        return True
    word = _LAST_WORD.search(text, max(start, match.start() - 24), match.start())
    if word is None:
        return True
    bare = word.group().lstrip(_OPENING).lower()
    is_initial = len(bare) == 1 and bare.isalpha() and bare != "i"
    return not (is_initial or bare in ABBREVIATIONS)
