"""Acts of speech: whether a text tells something, asks, orders, or only greets.

Rules for English; the question marks of other scripts count too. A text that tells nothing answers
nothing, however many words it shares with a question.
"""

import re
from dataclasses import dataclass

from titans.recall.text.words import sentences, words

_ASKS = re.compile(r"[?\uff1f\u061f\u037e][\s\"')\]\u201d\u2019]*$")
_INVERTED = re.compile(
    r"^(?:and |so |but |well,? |hey,? |hi,? |ok(?:ay)?,? )?"
    r"(?:(?:what|where|who|whom|whose|which|why|how)(?:'s|\u2019s)? (?:\w+ ){0,2}?"
    r"(?:is|are|was|were|do|does|did|can|could|will|would|should|has|have|had|am|'s)\b"
    r"|(?:what|where|who|how)(?:'s|\u2019s) "
    r"|when (?:is|are|was|were|do|does|did|can|could|will|would|should|has|have|had)\b"
    r"|(?:is|are|was|were|do|does|did|can|could|will|would|should|has|have|had|am) "
    r"(?:i|you|he|she|it|we|they|there|this|that|my|your|the|anyone|anybody)\b)",
    re.IGNORECASE,
)
_ORDERS = re.compile(
    r"^(?:(?:and|so|now|ok(?:ay)?|then|please|also|just|could you|can you|would you|will you"
    r"|i(?: woul|')?d like you to|i (?:want|need) you to)[, ]+)*"
    r"(?:please|remind|write|tell|show|explain|give|list|summari[sz]e|translate|find|search|suggest"
    r"|recommend|help|draft|generate|create|describe|compare|rewrite|rephrase|fix|convert"
    r"|calculate|compute|remember|forget|note|recall|let me know|make me|send|add|delete|remove"
    r"|continue|stop|repeat|check|look up|play|set|open|close|turn)\b(?! (?:is|are|was|were|of)\b)",
    re.IGNORECASE,
)
_GREETS = re.compile(
    r"^(?:(?:hi|hello|hey|hiya|howdy|good (?:morning|afternoon|evening|night|day)|bye|goodbye"
    r"|see you|see ya|take care|thanks?|thank you|thx|cheers|ok|okay|k|sure|yes|yeah|yep|no|nope"
    r"|great|cool|nice|wow|awesome|lol|haha|welcome|you're welcome|no problem|got it|sounds good"
    r"|alright|right|congrats|congratulations|well done|good luck|how are you(?: doing)?"
    r"|have a (?:good|nice|great) (?:day|one|weekend)|what's up|talk (?:to you )?(?:soon|later)"
    r"|so much|a lot|very much|there|everyone|all|again|then|that's|that is"
    r"|for (?:that|this|the help)|my friend|mate)"
    r"[\s,.!?\u2019]*)+$",
    re.IGNORECASE,
)
_NAME = r"(?:[\s,]+[A-Z][a-z]+)?[\s.!?,]*$"
_GREETS_SOMEBODY = re.compile(
    r"^(?:hi|hello|hey|good (?:morning|afternoon|evening|night)|bye|goodbye|thanks|thank you"
    r"|congrats|congratulations|welcome)" + _NAME,
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Acts:
    """The shares of a text's words in sentences that ask, order and greet."""

    asks: float
    orders: float
    greets: float

    @property
    def tells(self) -> float:
        """The share that is left: what can be a fact."""
        return max(1.0 - self.asks - self.orders - self.greets, 0.0)


def acts_of(text: str) -> Acts:
    """The acts in a text, sentence by sentence."""
    shares = {"asks": 0, "orders": 0, "greets": 0}
    total = 0
    for sentence in sentences(text):
        size = max(len(words(sentence)), 1)
        total += size
        act = _act(sentence.strip())
        if act is not None:
            shares[act] += size
    return Acts(*(shares[name] / max(total, 1) for name in ("asks", "orders", "greets")))


def _act(sentence: str) -> str | None:
    if _GREETS.match(sentence) or _GREETS_SOMEBODY.match(sentence):
        return "greets"
    if _ORDERS.match(sentence):
        return "orders"
    if _ASKS.search(sentence) or (_INVERTED.match(sentence) and not sentence.endswith("!")):
        return "asks"
    return None
