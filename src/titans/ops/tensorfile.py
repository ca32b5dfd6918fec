"""Flat safetensors files with a format name and a version: how every state is saved."""

import os
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from titans.errors import StateError


def write_tensors(
    path: str | Path,
    tensors: dict[str, Tensor],
    kind: str,
    version: int,
    notes: dict[str, str] | None = None,
) -> None:
    """Write `tensors` to `path`, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": kind, "version": str(version), **(notes or {})}
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        save_file(plain, temporary, metadata=metadata)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_tensors(path: str | Path, kind: str, version: int) -> dict[str, Tensor]:
    """Read a file that `write_tensors` wrote, or say in one line why it cannot be."""
    return read_tensors_and_notes(path, kind, version)[0]


def read_tensors_and_notes(
    path: str | Path, kind: str, version: int
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Like `read_tensors`, with the file's notes."""
    path = Path(path)
    if not path.is_file():
        raise StateError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            notes = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise StateError(f"{path}: damaged, or not a safetensors file ({error})") from error
    if notes.get("format") != kind:
        raise StateError(f"{path}: holds {notes.get('format')!r}, expected {kind!r}")
    if int(notes.get("version", "0")) > version:
        raise StateError(
            f"{path}: format version {notes['version']}, this package reads up to {version}; "
            "upgrade titans-neural-memory"
        )
    return tensors, notes
