"""How a command ends that fails: one line with the value and the fix, and an exit code.

2 says that the command was used wrongly (an option, a setting), 1 that it failed otherwise.
"""

import argparse
from typing import NoReturn

from titans.errors import ConfigError, TitansError
from titans.files import is_out_of_space
from titans.terminal import printable

EXTRAS = {
    **dict.fromkeys(("train", "tokenizer", "plot", "tune", "eval", "sweep"), "train"),
    **dict.fromkeys(("remember", "recall", "list", "show", "forget", "export"), "recall"),
    **dict.fromkeys(("import", "memory"), "recall"),
    "analyze": "analyze",
    "chat": "recall,llm",
    "serve": "serve",
    "mcp": "mcp",
    "keys": "serve",
    "demo": "models,recall",
}
"""Command -> the extras of the package that it needs; the others need `models`."""
DONE, FAILED, WRONG_USE, STOPPED = 0, 1, 2, 130


class Parser(argparse.ArgumentParser):
    """Options of a command. A wrong one is one line; Python's own parser prints its usage first."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end the process."""
        self.exit(WRONG_USE, f"{self.prog}: {one_line(message)} (see {self.prog} --help)\n")


def exit_code(error: Exception) -> int:
    """What the process returns to its caller."""
    return WRONG_USE if isinstance(error, ConfigError) else FAILED


def explain(error: Exception, command: str) -> str:
    """What went wrong and what to do about it, on one line."""
    if isinstance(error, TitansError):
        return one_line(str(error))
    if is_out_of_space(error):
        return f"the disk is full ({one_line(str(error))}); make room and try again"
    if isinstance(error, OSError) and error.filename is not None:
        return one_line(f"{error.filename}: {error.strerror}; check the path and its permissions")
    if isinstance(error, OSError):
        return one_line(f"{error.strerror or error}; check the files that were given and the disk")
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"not enough memory ({one_line(str(error))}); give less text or a smaller model"
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("titans"):
        extra = EXTRAS.get(command, "models")
        return (
            f"{error.name} is not installed; {command} needs the extra {extra!r}: "
            f"pip install 'titans-neural-memory[{extra}]' (in the project's folder: '.[{extra}]')"
        )
    what = one_line(f"{type(error).__name__}: {error}")
    return f"unexpected {what}; `titans --debug {command} ...` shows where, please report it"


def one_line(text: str) -> str:
    """A message without line breaks and without what would act in a terminal."""
    return printable(" ".join(part.strip() for part in text.splitlines()).strip())
