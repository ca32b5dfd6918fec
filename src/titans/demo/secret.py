"""Secrets that the demonstration's models can read: who went where."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from titans.errors import ConfigError
from titans.tasks.text.sentences import split_sentences

PEOPLE = ("Daniel", "John", "Mary", "Sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
NUMBER = 3
"""How many secrets a book holds at most: one in each third of it."""


@dataclass(frozen=True)
class Secret:
    """A sentence of the small language in which the models were trained to answer."""

    person: str
    place: str

    @property
    def sentence(self) -> str:
        """What is hidden."""
        return f"{self.person} went to the {self.place}."

    @property
    def question(self) -> str:
        """What is asked."""
        return f"Where is {self.person}?"

    @classmethod
    def parse(cls, text: str) -> "Secret":
        """From a sentence that names one of the people and one of the places."""
        words = set(re.findall(r"[a-z]+", text.lower()))
        people = [person for person in PEOPLE if person.lower() in words]
        places = [place for place in PLACES if place in words]
        if len(people) != 1 or len(places) != 1:
            raise ConfigError(
                f'a secret names one person and one place, as in "Mary went to the garden"; got '
                f"{text!r}. These small models know only {', '.join(PEOPLE)}, and "
                f"{', '.join(PLACES)}"
            )
        return cls(people[0], places[0])


def draw_secrets(rng: np.random.Generator) -> list[Secret]:
    """Different people in different places."""
    people, places = rng.permutation(PEOPLE)[:NUMBER], rng.permutation(PLACES)[:NUMBER]
    return [Secret(str(a), str(b)) for a, b in zip(people, places, strict=True)]


def check_secrets(secrets: Sequence[Secret]) -> None:
    """Raise if they cannot all be asked for."""
    if len(secrets) > NUMBER:
        raise ConfigError(f"the book takes up to {NUMBER} secrets; got {len(secrets)}")
    if len({secret.person for secret in secrets}) < len(secrets):
        raise ConfigError("two secrets are about the same person: the later one would count")


def hide(
    book: str, secrets: Sequence[Secret], rng: np.random.Generator
) -> tuple[list[str], list[int]]:
    """The sentences of the book with the secrets among them, and where those are."""
    sentences = split_sentences(" ".join(book.split()))
    number, places = len(sentences), []
    for index, secret in enumerate(secrets):
        # In one part of the book each, not at its borders.
        part = (index + 0.15 + 0.7 * rng.random()) / len(secrets)
        places.append(int(part * number) + index)
        sentences.insert(places[-1], secret.sentence)
    return sentences, places
