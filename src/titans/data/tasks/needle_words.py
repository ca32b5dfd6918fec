"""The tokens of the needle task as words, so that a person can read what a model reads.

    ... river the stone REMEMBER alice lisbon wind of ... RECALL alice

Keys are first names, values are cities, noise is made of common words (and, as distractors, of the
names and cities themselves). Made for the default sizes of `NeedleTask`: 32 / 32 / 64.
"""

from functools import lru_cache

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

KEYS = """
    alice boris clara david elena felix greta henry irene jonas karin louis maria nikos olga pablo
    queenie ruben sofia tomas ursula victor wanda xavier yvonne zoran amelia bruno cecilia dario
    edith franz
""".split()
VALUES = """
    athens berlin cairo dublin essen florence geneva havana istanbul jakarta kyoto lisbon madrid
    nairobi oslo paris quito rome seville tokyo utrecht vienna warsaw xiamen york zurich bergen
    cracow delhi exeter fargo ghent
""".split()
NOISE = """
    the of and a to in is was he for it with as his on be at by had not are but from or have they
    which one you were her all she there would their we him been has when who will more no if out
    river stone wind tree road house door lamp field bird cloud hill rain snow leaf sand fish
""".split()
SPECIAL = ("<|pad|>", "REMEMBER", "RECALL")


def needle_words() -> list[str]:
    """The word of each token, in the order of the tokens."""
    return [*SPECIAL, *KEYS, *VALUES, *NOISE]


@lru_cache
def needle_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer of exactly the needle task's vocabulary."""
    vocabulary = {word: number for number, word in enumerate(needle_words())}
    backend = Tokenizer(WordLevel(vocabulary, unk_token=SPECIAL[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=SPECIAL[0], clean_up_tokenization_spaces=False
    )
