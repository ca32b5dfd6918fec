"""`titans demo`: small models read a book with secrets in it and are asked for them."""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from titans.cli.values import LARGEST_SEED, whole

if TYPE_CHECKING:
    from titans.demo.reader import Reader

EXAMPLES = """examples:
  titans demo
  titans demo --secret "Mary went to the garden"
  titans demo --seed 7

It takes less than a minute on one core and needs no network.
"""
THINGS = (
    "My sister Lena moved to Lisbon in March.",
    "The code of the garage door is 4417.",
    "I cannot eat peanuts.",
)
QUESTIONS = (
    "Where does Lena live?",
    "What is the code of the garage door?",
    "Which food must I avoid?",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--secret",
        action="append",
        metavar="TEXT",
        help="a sentence to hide, up to three times (three that are drawn)",
    )
    parser.add_argument(
        "--seed", type=whole(0, LARGEST_SEED), default=0, help="decides what is hidden where (0)"
    )


def run(args: argparse.Namespace) -> int:
    """Hide, read, ask, and show what the memory did."""
    import numpy as np
    import torch
    from tqdm import tqdm
    from transformers.utils import logging

    from titans import shipped
    from titans.demo.reader import Reader
    from titans.demo.secret import Secret, check_secrets, draw_secrets, hide

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    rng = np.random.default_rng(args.seed)
    secrets = [Secret.parse(text) for text in args.secret or []] or draw_secrets(rng)
    check_secrets(secrets)
    book = shipped.SAMPLE_TEXT.read_text(encoding="utf-8")
    sentences, hidden = hide(book, secrets, rng)

    readers = {name: Reader.load(folder) for name, folder in shipped.DEMO.items()}
    memory, window = readers["mac"], readers["swa"]
    tokens = [memory.encode(f" {sentence}") for sentence in sentences]
    ids = [token for sentence in tokens for token in sentence]
    starts = [sum(map(len, tokens[:place])) for place in hidden]

    print(
        f'The book: chapters I to V of "Dracula" by Bram Stoker, {len(book):,} characters.\n'
        "Somewhere in it are hidden:"
    )
    for secret, start in zip(secrets, starts, strict=True):
        print(f"  after {start / len(ids):3.0%} of the book: {secret.sentence}")
    print(
        "\nTwo small models read it once, word by word, and cannot look back:\n"
        f"  with memory:    MAC, {memory.num_parameters:,} parameters; a memory that learns while "
        "it reads\n"
        f"  without memory: Transformer, {window.num_parameters:,} parameters; sees the last "
        f"{window.model.config.window} tokens\n",
        flush=True,
    )
    with tqdm(total=2 * len(ids), unit=" tokens", desc="reading", leave=False, disable=None) as bar:
        for reader in readers.values():
            reader.read(ids, bar.update)

    found = {name: 0 for name in readers}
    for secret in secrets:
        print(f"{secret.question}")
        for name, label in (("mac", "with memory:"), ("swa", "without memory:")):
            answer = readers[name].answer(secret.question)
            is_right = answer.split()[0] == secret.place
            found[name] += is_right
            print(f"  {label:<16}{answer:<12}{'right' if is_right else 'wrong'}")
    print(
        f"\nWith memory {found['mac']} of {len(secrets)} are found, without {found['swa']}; "
        "there are six places to guess from.\n"
        f"All that the memory model keeps of the book is a state of {memory.state_bytes[-1]:,} "
        f"bytes:\n{_growth(memory)}.\n"
    )
    _draw(memory, [start / len(ids) for start in starts])
    _text_memory()
    print(
        "\nWhat to try next:\n"
        '  titans demo --secret "Mary went to the garden"   # a secret of your own\n'
        '  titans remember "My dog is called Rex."          # a text memory that stays\n'
        "  titans train mac --data sample                   # train a model (5 minutes)"
    )
    return 0


def _growth(reader: "Reader") -> str:
    first, last = reader.state_bytes[0], reader.state_bytes[-1]
    same = "the same size as after the first page"
    return same if first == last else f"after the first page it had {first:,}"


def _draw(reader: "Reader", places: list[float]) -> None:
    from titans.demo.picture import average_line, marks, peak_line

    written = (reader.writes > 0).double().mean()
    print(
        f"From the first page to the last (^ are the secrets):\n"
        f"  surprise  {average_line(reader.surprise)}\n"
        f"  writes    {peak_line(reader.writes)}\n"
        f"            {marks(places)}\n"
        f"It wrote {written:.1%} of the tokens into its memory, those that seemed worth keeping.\n"
    )


def _text_memory() -> None:
    """Three things remembered and recalled, as an application would do it."""
    try:
        from titans.recall import TextMemory
    except ModuleNotFoundError as error:
        print(f"The text memory needs {error.name}: pip install 'titans-neural-memory[recall]'")
        return
    print("The text memory for assistants keeps what it is told:")
    with tempfile.TemporaryDirectory() as folder, TextMemory(Path(folder) / "demo.db") as memory:
        for thing in THINGS:
            memory.remember(thing)
            print(f"  remembered: {thing}")
        for question in QUESTIONS:
            best = memory.recall(question, k=1)
            print(f"  {question:<38}-> {best[0].text if best else 'nothing found'}")
    sys.stdout.flush()
