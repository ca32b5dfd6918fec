"""What a statement gives a value to, where there is one value at a time: a home, a job, a name.

Two statements by one speaker about the same `Topic` with different values update each other,
however differently they put it: "I live in Rome", "We moved to Oslo". Rules for English, made for
precision: most texts have no topic.
"""

import re
from typing import NamedTuple

from titans.recall.text.words import stem


class Topic(NamedTuple):
    """Something that has one value at a time, and whose it is ("" for the speaker's own)."""

    slot: str
    subject: str


_SLOTS: dict[str, tuple[str, str]] = {
    # slot: (what statements about it hold, nouns in it that own nothing)
    "home": (
        r"\b(?:(?:live|lives|living|lived) in|moved (?:in)?to|relocated to|settled in|based in"
        r"|(?:home|house|flat|apartment) (?:is )?in|address (?:is|changed))\b",
        "home house flat apartment place address",
    ),
    "work": (
        r"\b(?:work(?:s|ing)? (?:as|at|for) (?:an?|the|my)\b|(?:job|profession) is|promoted to"
        r"|earn\w* (?:my|his|her|their|a) living|started (?:as|at)|hired as"
        r"|quit (?:my job|the \w+)|retired|got laid off|changed jobs)\b",
        "job profession employer career living",
    ),
    "diet": (
        r"\b(?:(?:am|i'm|is|became|went|being|longer|not) (?:\w+ ){0,2}"
        r"(?:vegetarian|vegan|pescatarian)|(?:eat|eats|eating) (?:no |any )?(?:meat|fish))\b",
        "diet",
    ),
    "relationship": (
        r"\b(?:(?:am|i'm|is|are|we're|got|not|now) (?:single|married|engaged|divorced|separated)"
        r"|broke up with|in a relationship)\b",
        "",
    ),
    "smoking": (r"\b(?:i smoke|smokes|(?:quit|stopped|started) smoking|non-?smoker)\b", ""),
    "phone": (r"\b(?:phone number|(?:reach|call) me (?:at|on|under))\b", "phone number"),
    "email": (r"\be-?mail (?:address|is|me at)\b", "email mail e address"),
    "car": (r"\b(?:drives? an?|driving an?|my car is|(?:and|now) drives? an?)\b", "car"),
    "rent": (r"\b(?:rent (?:is|went|rose)|euros of rent|pay .{1,12} rent)\b", "rent"),
    "boss": (r"\b(?:boss|manager)\b.*\b(?:is|called|named)\b", "boss manager name"),
    "gym": (r"\b(?:my gym is|i train at|switched gyms)\b", "gym"),
    "reading": (r"\b(?:(?:am|i'm) (?:now )?reading|book on my bedside)\b", "book bedside"),
    "instrument": (r"\b(?:i|and|instead) play the\b|\binstruments? i play\b", "instrument"),
    "allergy": (r"\b(?:allergic to|i have an? \w+ allergy|my allergy is)\b", "allergy"),
    "coffee": (r"\b(?:take|drink) (?:my )?coffee\b", "coffee"),
    "flight": (r"\b(?:flight|plane)\b.*\b(?:leaves|departs|rescheduled)\b", "flight plane"),
    "laptop": (
        r"\b(?:my laptop (?:is|was)|computer i use is|replaced my laptop)\b",
        "laptop computer",
    ),
    "team": (r"\b(?:I support [A-Z]|(?:football )?team is (?:now )?[A-Z])", "team football"),
    "study": (r"\b(?:studies|switched to)\b|\bsubject .{1,20} studies\b", "subject"),
    "language": (
        r"\blanguage (?:I am|I'm) learning\b|\bI study \w+ in the\b|\bI study [A-Z]",
        "language",
    ),
    "dentist": (r"\bdentists?\b.*\bis dr\b", "dentist"),
    "weight": (r"\bweigh(?:s|t)\b.*\d", "weight"),
    "age": (r"\b(?:am|is|turned) [\w-]+ years old\b", ""),
    "project": (r"\bproject\b.*\b(?:called|renamed)\b", "project"),
    "bedtime": (
        r"\b(?:go(?:es)? to (?:bed|sleep) (?:at|around)|bedtime is)\b",
        "bed bedtime routine",
    ),
    "waking": (r"\b(?:get|gets|wake|wakes) up at\b", ""),
    "commute": (r"\btakes? (?=the \w+ to (?:work|school|the office)\b)", "work office"),
    "partner": (r"\b(?:dating [A-Z]|(?:girl|boy)friend is [A-Z])", "girlfriend boyfriend"),
    "bank": (r"\b(?:banks? with|switched banks|bank is)\b", "bank"),
    "school": (r"\b(?:goes|go) to (?:[\w']+ ){1,3}(?:school|college|university)\b", "school"),
    "size": (r"\b(?:shoe|dress|shirt|ring) size\b", "shoe dress shirt ring size"),
    "hair": (r"\b(?:dyed (?:my|her|his) hair|hair is)\b", "hair"),
}
_PATTERNS = {
    name: (re.compile(p, re.IGNORECASE if "[A-Z]" not in p else 0), set(nouns.split()))
    for name, (p, nouns) in _SLOTS.items()
}
_POSSESSED = re.compile(
    r"\b(?:my|our|his|her|their|the|\w+['\u2019]s)\s+"
    r"(?:new |old |favou?rite |little |big |older |younger )?(\w+)",
    re.IGNORECASE,
)
_NAMED_BY = re.compile(
    r"\b(?:named|renamed)\s+(?:the|my|our|his|her)\s+(\w+)"
    r"|\b(?:my|our|the)\s+(\w+),?\s+(?:is|was)\s+(?:now\s+)?(?:called|named)\b"
    r"|\bname of (?:my|our|the) (\w+) is\b|\b(?:my|our|the) (\w+)['\u2019]s name is\b",
    re.IGNORECASE,
)
# "my password hint is", "the code of my bicycle lock changed to", "the party for my birthday takes"
_FRAME = re.compile(
    r"(?:^|[,;] |\band )(?:(?:actually|so|by the way|btw|update|correction|now|well)[,:]? )*"
    r"(?:my|our|the|his|her|their|\w+['\u2019]s) (?P<noun>[\w' -]{2,60}?)"
    r",? (?:(?:is|are|was|were|will be|went|got)(?: now| called| on| at| in)?|(?:has )?changed"
    r"|takes place|leaves?|starts?|opens?|closes?|costs?|switched|moved|expires|ends)\b",
    re.IGNORECASE,
)
# "my doctor is Dr Adams", "our landlord is now Ms Lang", "I have a new doctor, Dr Evans"
_HOLDER = re.compile(
    r"\b(?i:my|our|his|her|their|\w+['\u2019]s) (?:new )?(?P<noun>[a-z]+) (?:is|are) (?:now )?"
    r"(?:called |named )?[A-Z\d]"
    r"|\b(?:have|has|got|found) an? new (?P<new>[a-z]+)(?:,|:| called| named)? [A-Z]"
)
_SEVERAL = frozenset(
    """aunt brother child colleague cousin daughter friend grandchild kid neighbour pet sister son
    student uncle""".split()
)
"""What a person may have several of: a second name is no new value."""
_ATTRIBUTES = frozenset(
    """address age appointment band birthday book budget code colour color course deadline diet exam
    film flight food gym hint hobby hometown interview job language major meeting movie name number
    party password pin plan price rent salary school season size song sport subject team time title
    train trip university wedding weight""".split()
)
_VALUES = ("diet", "relationship", "smoking")
"""Slots whose words are the values themselves."""
_STEMS = {
    name: {
        stem(word) for word in re.findall(r"[a-z]{3,}", f"{pattern} {nouns}".replace("\\b", " "))
    }
    for name, (pattern, nouns) in _SLOTS.items()
    if name not in _VALUES
}
_MANY = re.compile(r"\b(?:one of|some of|another|also|too|as well|other)\b", re.IGNORECASE)
_SMALL = frozenset("of for the my our a an i new old now in on to".split())


def topics(text: str) -> set[Topic]:
    """What a statement gives a value to; empty for most texts."""
    if _MANY.search(text):
        return set()
    found: set[Topic] = set()
    for name, (pattern, nouns) in _PATTERNS.items():
        match = pattern.search(text)
        if match is not None:
            found.add(Topic(name, _subject(text[: match.end()], nouns)))
    for match in _NAMED_BY.finditer(text):
        found.add(Topic("name", stem(next(g for g in match.groups() if g).lower())))
    for match in _HOLDER.finditer(text):
        noun = (match["noun"] or match["new"]).lower()
        if noun not in _SEVERAL:
            found.add(Topic(stem(noun), ""))
    for frame in _FRAME.finditer(text):
        nouns = [w for w in re.findall(r"[a-z]+", frame["noun"].lower()) if w not in _SMALL]
        if _ATTRIBUTES.intersection(nouns):
            found.add(Topic(" ".join(sorted(map(stem, nouns))), ""))
    return found


def topic_stems(found: set[Topic]) -> set[str]:
    """Stems of words that name these topics, and are no value of them."""
    return {word for topic in found for word in _STEMS.get(topic.slot, topic.slot.split())}


def _subject(before: str, nouns: set[str]) -> str:
    """Of whom it is said: "my sister", "Ann's dog"; "" for the speaker."""
    for match in _POSSESSED.finditer(before):
        noun = match[1].lower()
        if noun not in nouns:
            return stem(noun)
    return ""
