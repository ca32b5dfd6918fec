"""Files on the disk: written whole or not at all, and read with an explanation if that fails.

A writer fills a file beside its target, flushes it to the disk, and renames it over the target. A
reader, a crash or a full disk therefore never meets half of a file. Every file that this package
writes goes through here.
"""

import errno
import hashlib
import io
import json
import os
import platform
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakSet, finalize

from titans.errors import DataError, FileError, StateError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

DISTRIBUTION = "titans-neural-memory"
_DIGEST = "sha256"
"""The note of a tensor file that holds the hash of all its tensors and other notes."""


def check_path(path: str | Path) -> None:
    """Raise `FileError` if no file can have this name: Python says so in ways of its own."""
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise FileError(f"{str(path)!r} is no path: it has a zero byte or half of a character")


# Write


def check_target(path: str | Path, inputs: Iterable[str | Path] = ()) -> Path:
    """Raise `FileError` if `path` cannot be replaced by a file; returns where a link leads.

    A command that works for long asks this before it begins.

    Args:
        inputs: files that the caller reads (or folders of them), which must not be overwritten.
    """
    with explained(path, "written"):
        target = Path(path).resolve()
        if not target.exists():
            above = next(place for place in target.parents if place.exists())
            if not above.is_dir():
                raise FileError(f"{path}: {above} is a file, not a folder: choose another place")
            return target
        kind = target.stat().st_mode
        if stat.S_ISDIR(kind):
            raise FileError(f"{path} is a folder: name a file in it")
        if not stat.S_ISREG(kind):
            raise FileError(f"{path} is a device or a pipe: name a file")
        for source in map(Path, inputs):
            is_inside = source.is_dir() and target.is_relative_to(source.resolve())
            if is_inside or (source.exists() and target.samefile(source)):
                raise FileError(f"{path} is one of the files to read: name another file")
    return target


@contextmanager
def replacing(path: str | Path, inputs: Iterable[str | Path] = ()) -> Iterator[Path]:
    """A new file beside `path` to write to; it replaces `path` if the block ends without an error.

    An existing file keeps its permissions; a symbolic link stays one.
    """
    target = check_target(path, inputs)
    part = target.with_name(f".{target.stem[:80]}.{secrets.token_hex(4)}.part{target.suffix}")
    with explained(path, "written"):
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True)
        old = target.stat() if target.exists() else None
        mode = 0o666 if old is None else stat.S_IMODE(old.st_mode)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        try:
            # Some libraries replace the file by a private one.
            mode = stat.S_IMODE(part.stat().st_mode) if old is None else mode
            yield part
            part.chmod(mode)
            if old is not None and hasattr(os, "chown"):
                with suppress(PermissionError):
                    os.chown(part, old.st_uid, old.st_gid)
            sync(part)
            part.replace(target)
            sync(target.parent)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def writing(path: str | Path, inputs: Iterable[str | Path] = ()) -> Iterator[TextIO]:
    """A stream of UTF-8 text that replaces `path` if the block ends without an error."""
    with replacing(path, inputs) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        yield file


def write_bytes(path: str | Path, content: bytes) -> None:
    """Replace `path` by `content`."""
    with replacing(path) as part:
        part.write_bytes(content)


def check_unicode(text: str, name: str) -> None:
    """Raise `DataError` if UTF-8 cannot hold a text: it has half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} is not valid Unicode: character {error.start} of the text is half of a "
            "surrogate pair; remove it"
        ) from None


def check_folder(path: str | Path) -> Path:
    """A folder to write into, or a place for one; what is there must not be a file."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file, not a folder: choose another place")
    return folder


def make_folder(path: str | Path) -> Path:
    """A folder to write into, made if it is not there; one line if that cannot be."""
    folder = Path(path)
    with explained(folder, "made"):
        check_folder(folder).mkdir(parents=True, exist_ok=True)
    return folder


def write_text(path: str | Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8."""
    check_unicode(text, str(path))
    write_bytes(path, text.encode())


def write_figure(path: str | Path, figure: "Figure", dpi: int = 120) -> None:
    """Replace `path` by a picture; its suffix says which format.

    No date and no version are in it: the same figure gives the same bytes.
    """
    suffix = Path(path).suffix.lower()
    stamps = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}
    if suffix not in stamps:
        raise DataError(f"{path}: not a picture format (use {', '.join(stamps)})")
    content = io.BytesIO()
    figure.savefig(content, format=suffix[1:], dpi=dpi, metadata={stamps[suffix]: None})
    write_bytes(path, content.getvalue())


def plain_label(name: str) -> str:
    """A name for a figure: its dollar signs begin no formula."""
    return name.replace("$", r"\$")


def append_text(path: str | Path, text: str) -> None:
    """Add whole lines to a journal and flush them to the disk."""
    check_target(path)
    with explained(path, "written"), Path(path).open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to fill; it takes its place if the block ends without an error.

    If another process was faster, its folder stays.
    """
    part = folder.with_name(f".{folder.name[:80]}.{secrets.token_hex(4)}.part")
    with explained(folder, "written"):
        part.mkdir(parents=True)
        try:
            yield part
            make_readable(part)
            sync_folder(part)
            try:
                part.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
            sync(folder.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def replace_link(link: Path, target: str) -> None:
    """Point the symbolic link at `target`, atomically."""
    part = link.with_name(f".{link.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(link)


def make_readable(folder: Path) -> None:
    """Give every file the permissions of a new one; some libraries make theirs private."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)


def sync(path: Path) -> None:
    """Flush a file, or the list of a folder's entries, to the disk."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Flush a folder and everything in it to the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


@contextmanager
def explained(path: str | Path, done: str) -> Iterator[None]:
    """Turn a failure of the file system into one line that names the path."""
    check_path(path)
    try:
        yield
    except FileError:
        raise
    except Exception as error:
        if is_out_of_space(error):
            raise FileError(
                f"{path}: the disk is full ({free_space(Path(path))}); make room and try again"
            ) from error
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise FileError(f"{path} cannot be {done}: {reason}") from error
        raise


def is_out_of_space(error: BaseException) -> bool:
    """Whether a write failed for lack of room (also as reported by safetensors)."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return True
    text = str(error).lower()
    return any(
        hint in text
        for hint in ("no space left", "file too large", "quota exceeded", "disk is full")
    )


def free_space(path: Path) -> str:
    """Free space at the nearest folder that exists, for a message."""
    folder = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return f"{shutil.disk_usage(folder).free / 1e6:.0f} MB free"


# Read


def read_text(path: str | Path) -> str:
    """A UTF-8 file's text, line ends as they are in the file."""
    with explained(path, "read"):
        content = Path(path).read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error


def read_stdin(one_line: bool = False) -> str:
    """What standard input holds, or its next line."""
    try:
        return sys.stdin.readline() if one_line else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise not_utf8("standard input", error) from error


def not_utf8(path: str | Path, error: UnicodeDecodeError, offset: int = 0) -> DataError:
    """The error to raise for a file of which `error.object` begins at byte `offset`."""
    return DataError(
        f"{path}: not UTF-8 text at byte {offset + error.start} "
        f"(0x{error.object[error.start]:02x}); convert it, for example with iconv"
    )


def read_json(path: str | Path) -> Any:
    """The value in a JSON file."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; one line if there is none, or none that fits into memory."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        # Python's hint about long numbers is for programmers.
        reason = str(error).partition(";")[0]
    shown = text[:60] if isinstance(text, str) else text[:60].decode(errors="replace")
    raise DataError(f"{where} is not JSON that can be read ({reason}): {shown!r}")


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_path(path: Path) -> str:
    """A file or folder as its own name and a hash of what it holds, without where it is."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    state = hashlib.sha256()
    for file in files:
        if file.is_file():
            state.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    state.update(block)
    return f"{path.name}@{state.hexdigest()[:12]}"


# Tensors


def write_tensors(
    path: str | Path,
    tensors: dict[str, "Tensor"],
    kind: str,
    version: int,
    notes: dict[str, str] | None = None,
) -> None:
    """A flat safetensors file with the name and version of its format and its own digest."""
    from safetensors.torch import save_file

    # A copy: safetensors refuses tensors that share memory.
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    metadata = {"format": kind, "version": str(version), **(notes or {})}
    metadata[_DIGEST] = tensors_digest(plain, metadata)
    with replacing(path) as part:
        save_file(plain, part, metadata=metadata)


def read_tensors(path: str | Path, kind: str, version: int) -> dict[str, "Tensor"]:
    """Read a file that `write_tensors` wrote, or say in one line why that is not possible."""
    return read_tensors_and_notes(path, kind, version)[0]


def read_tensors_and_notes(
    path: str | Path, kind: str, version: int
) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    """Like `read_tensors`, with the file's notes. Files without a digest are older than it."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise StateError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            notes = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise StateError(f"{path}: damaged, or not a safetensors file ({error})") from error
    if notes.get("format") != kind:
        raise StateError(f"{path}: holds {notes.get('format')!r}, expected {kind!r}")
    if not notes.get("version", "").isdecimal() or int(notes["version"]) > version:
        raise StateError(
            f"{path}: format version {notes.get('version')}, this package reads up to {version}; "
            "upgrade titans-neural-memory"
        )
    written = notes.pop(_DIGEST, None)
    if written is not None and written != tensors_digest(tensors, notes):
        raise StateError(f"{path}: damaged (its content does not match its checksum)")
    return tensors, notes


def tensors_digest(tensors: dict[str, "Tensor"], notes: dict[str, str] | None = None) -> str:
    """SHA-256 of named tensors (types, shapes, bytes) and notes, in any order."""
    import torch

    state = hashlib.sha256(repr(sorted((notes or {}).items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


# Locks


class FolderLock:
    """Keeps other processes out of a folder until it is released or this process ends."""

    def __init__(self, folder: Path) -> None:
        with explained(folder, "written"):
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        self._close = finalize(self, os.close, handle)
        _HELD.add(self)
        if fcntl is None:
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 500).decode(errors="replace").strip() or "another process"
            self.release()
            raise FileError(
                f"{folder} is in use by {owner}: wait for its end, or choose another folder"
            ) from None
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()}, started {now}\n".encode())

    def release(self) -> None:
        """Let others in."""
        self._close()


_HELD: "WeakSet[FolderLock]" = WeakSet()


def _release_copies() -> None:
    """A forked child shares its parent's locks, and would keep them if the parent is killed."""
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_copies)


# The code itself


def provenance() -> dict[str, str | None]:
    """The package's version and the source's commit, to save beside what they made."""
    return {"package": DISTRIBUTION, "version": package_version(), "commit": source_commit()}


def package_version() -> str | None:
    """The installed version of this package; None if it runs without being installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def source_commit() -> str | None:
    """The commit of the source that runs, with `+` if the source differs from it.

    None for an installed package.
    """
    here = Path(__file__).resolve().parent
    try:
        top = Path(_git(here, "rev-parse", "--show-toplevel"))
        if here != top / "src" / "titans":
            return None
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+" if changed else commit


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
