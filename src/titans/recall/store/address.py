"""Addresses of stores that a server keeps: which there are, and how to show one."""

from pathlib import Path
from urllib.parse import urlsplit

from titans.errors import StoreError

FORM = "postgresql://ROLE:PASSWORD@HOST:PORT/DATABASE"


def is_address(place: str | Path) -> bool:
    """Whether a place is an address and no path."""
    return "://" in str(place)


def shown(place: str | Path) -> str:
    """How messages and logs call a place: of an address, nothing that may hold a password."""
    if not is_address(place):
        return str(place)
    try:
        parts = urlsplit(str(place))
    except ValueError:
        raise StoreError(f"the address is not {FORM}") from None
    if parts.scheme not in ("postgresql", "postgres"):
        scheme = str(place).partition("://")[0]
        raise StoreError(f"{scheme}:// is no store: give the path of a file, or {FORM}")
    role, at, hosts = parts.netloc.rpartition("@")
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        # A password cut in two would pass for a host.
        raise StoreError(f"the address is not {FORM}: write @ : / ? # % in a password as %40 ...")
    return f"postgresql://{role.partition(':')[0]}{at}{hosts}{parts.path}"
