"""Keys: who may do what in which scopes. Only a hash of each is kept, one file per key.

A key reads `titans_ID_SECRET`. Its secret has 256 random bits, so one round of SHA-256 is enough.
Every request looks the file up again: a key that is revoked stops working at once.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from titans.errors import ConfigError, FileError
from titans.files import explained, write_text

Right = Literal["read", "write", "forget", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)
"""What a key may allow: recall and list; remember and import; forget; look at the whole server."""
TOKEN = re.compile(r"titans_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True)
class Key:
    """A key as it is kept."""

    id: str
    name: str
    """Shown with everything that was remembered through the key."""
    scopes: tuple[str, ...]
    """Names of scopes; `*` at the end stands for anything."""
    rights: tuple[Right, ...]
    is_trusted: bool
    """Whether what it writes counts as trusted."""
    created: str
    digest: str

    def covers(self, scope: str) -> bool:
        """Whether a scope is among those of the key."""
        return any(scope.startswith(s[:-1]) if s.endswith("*") else s == scope for s in self.scopes)

    @property
    def home(self) -> str | None:
        """The scope that is meant if a request names none."""
        return None if self.scopes[0].endswith("*") else self.scopes[0]


class KeyRing:
    """The keys of a store, as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __bool__(self) -> bool:
        return self.folder.is_dir() and any(self.folder.glob("*.json"))

    def make(
        self,
        name: str,
        scopes: Sequence[str],
        rights: Sequence[Right] = ("read", "write"),
        *,
        is_trusted: bool = True,
    ) -> tuple[Key, str]:
        """A new key, and its text, which is shown this once."""
        if not name.strip() or len(name) > 80 or not name.isprintable():
            raise ConfigError(f"name {name!r}: give 1 to 80 printable characters")
        if any(key.name == name for key in self.all()):
            raise ConfigError(f"there is a key {name!r} already: choose another name or revoke it")
        for scope in scopes:
            if not scope or "*" in scope[:-1]:
                raise ConfigError(f"scope {scope!r}: give a name, or its beginning and a * (ann-*)")
        if not scopes:
            raise ConfigError("a key needs a scope: --scope NAME, or --scope '*' for all")
        for right in rights:
            if right not in RIGHTS:
                raise ConfigError(f"right {right!r} is unknown; known: {', '.join(RIGHTS)}")
        secret = secrets.token_urlsafe(32)
        key = Key(
            id=secrets.token_hex(6),
            name=name,
            scopes=tuple(scopes),
            rights=tuple(r for r in RIGHTS if r in rights),
            is_trusted=is_trusted,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            digest=_digest(secret),
        )
        with explained(self.folder, "written"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / f"{key.id}.json"
        write_text(path, json.dumps(asdict(key), indent=1) + "\n")
        path.chmod(0o600)
        return key, f"titans_{key.id}_{secret}"

    def all(self) -> list[Key]:
        """All keys, oldest first."""
        found = map(self._read, sorted(self.folder.glob("*.json")))
        return sorted((key for key in found if key), key=lambda key: (key.created, key.name))

    def revoke(self, name: str) -> Key:
        """Remove a key by its name or id: it stops working at once."""
        for key in self.all():
            if name in (key.name, key.id):
                with explained(self.folder, "changed"):
                    (self.folder / f"{key.id}.json").unlink()
                return key
        known = ", ".join(key.name for key in self.all()) or "none"
        raise ConfigError(f"there is no key {name!r}; there is: {known}")

    def find(self, token: str) -> Key | None:
        """The key that a text is, if it is one."""
        parts = TOKEN.fullmatch(token)
        key = self._read(self.folder / f"{parts[1]}.json") if parts else None
        if parts is None or key is None:
            return None
        return key if hmac.compare_digest(key.digest, _digest(parts[2])) else None

    def _read(self, path: Path) -> Key | None:
        try:
            values = json.loads(path.read_bytes())
            values["scopes"] = tuple(values["scopes"])
            values["rights"] = tuple(values["rights"])
            return Key(**values)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FileError(
                f"{path} is not a key ({error}): remove it and make the key again"
            ) from error


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def keys_folder(store: str | Path) -> Path | None:
    """Where the keys of a store are: beside its file; None if the store is no file."""
    if "://" in str(store):
        return None
    path = Path(store)
    return path.with_name(path.name + ".keys")
