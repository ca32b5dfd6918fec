"""Files that survive a crash: written whole or not at all, and flushed to the disk."""

import errno
import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "titans-neural-memory"


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def sync_folder(folder: Path, *, recursive: bool = True) -> None:
    """Flush every file of `folder` to the disk, then the folder itself."""
    for path in [*(folder.rglob("*") if recursive else ()), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_readable(folder: Path) -> None:
    """Give every file the permissions of a new one; some libraries make theirs private."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)


def replace_link(link: Path, target: str) -> None:
    """Point the symbolic link at `target`, atomically."""
    part = link.with_name(f".{link.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(link)


def is_out_of_space(error: BaseException) -> bool:
    """Whether a write failed for want of room (also as reported by safetensors)."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return True
    text = str(error).lower()
    return any(hint in text for hint in ("no space left", "file too large", "quota exceeded"))


def free_space(folder: Path) -> str:
    """Free space at `folder`, for a message."""
    free = shutil.disk_usage(folder).free
    return f"{free / 1e6:.0f} MB free"


def provenance() -> dict[str, str | None]:
    """The package's version and the source's commit, to save beside what they made."""
    try:
        package = version(DISTRIBUTION)
    except PackageNotFoundError:
        package = None
    return {"package": DISTRIBUTION, "version": package, "commit": source_commit()}


def source_commit() -> str | None:
    """The commit of the source tree that this module is in; `+changes` if files differ from it.

    None for an installed package.
    """
    here = Path(__file__).resolve().parent
    try:
        top = _git(here, "rev-parse", "--show-toplevel")
        if not (Path(top) / "src" / "titans").is_dir():
            return None
        commit = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
