"""The text memory inside a chat loop of your own. A few seconds, no network.

Put your language model where `answer` is. Type lines; an empty one ends.
"""

import sys

from titans.recall import TextMemory


def answer(prompt: str) -> str:
    """Your model: here, it says what it was given."""
    return f"(a model would read this)\n{prompt}"


def main(store: str = "chat.db") -> None:
    with TextMemory(store, scope="ann") as memory:
        while text := input("> " if sys.stdin.isatty() else "").strip():
            known = memory.recall(text, k=3, threshold=0.1)
            memory.remember(text, speaker="Ann")
            facts = "\n".join(f"- {found.time:%Y-%m-%d} {found.text}" for found in known)
            print(answer(f"What Ann said before:\n{facts}\nAnn says: {text}" if known else text))


if __name__ == "__main__":
    main(*sys.argv[1:])
