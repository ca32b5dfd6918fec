"""What can be known to fail before anything is measured or trained: data that a task cannot read,
and places where its results cannot be written."""

import os
from collections.abc import Callable
from pathlib import Path

from titans.data.corpus import find_files
from titans.data.tasks.babilong import find_babi_file
from titans.data.tasks.haystack import read_books
from titans.data.tasks.niah import KeyWords
from titans.errors import ConfigError, DataError
from titans.evaluation.babilong import Babilong
from titans.evaluation.registry import PATH_OPTIONS

READERS: dict[str, Callable[[Path], object]] = {
    "haystack": read_books,
    "background": read_books,
    "words": KeyWords.load,
    "text": find_files,
}
"""Options whose file or folder is read, or its files listed, as the task will do it."""


def check_data(task: object) -> None:
    """Raise `DataError` if a file or folder that the task names is not there or cannot be used."""
    for option in PATH_OPTIONS:
        path = getattr(task, option, None)
        if path is None:
            continue
        if not Path(path).exists():
            raise DataError(f"--{option} {path}: no such file or folder")
        if option in READERS:
            READERS[option](path)
    if isinstance(task, Babilong):
        assert task.babi is not None, "checked at construction"
        for name in task.tasks:
            find_babi_file(task.babi, name, task.split)


def check_file(path: Path, flag: str) -> None:
    """Raise `ConfigError` if no file can be written at `path`."""
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder: name a file in it")
    check_folder(path.parent, flag)


def check_folder(path: Path, flag: str) -> None:
    """Raise `ConfigError` if `path` is no folder that can be written to, nor can become one."""
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise ConfigError(f"{flag}: {existing} is a file, not a folder: choose another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag}: the folder {existing} cannot be written to: choose another")
