"""What can be set about a server. Each field is a flag of `titans serve`."""

from dataclasses import dataclass
from ipaddress import ip_address

from titans.errors import ConfigError
from titans.server.keys import KeyRing


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Where a server listens and how much it takes on."""

    host: str = "127.0.0.1"
    """Anything but a loopback address needs keys."""
    port: int = 8765
    cors: tuple[str, ...] = ()
    """Origins whose pages may call the server, e.g. https://chat.example.com."""
    body_limit: int = 2**20
    """Bytes of a request's body."""
    import_limit: int = 2**26
    """Bytes of an imported file."""
    rate: float = 100.0
    """Requests per second and key, on average; twice as many may come at once."""
    concurrency: int = 256
    """Requests under way at once."""
    queue: int = 64
    """Calls that may wait for one scope."""
    open_scopes: int = 64
    """Scopes kept in memory; the one that was not used longest is closed for another."""
    answers: int = 4
    """Answers that a model gives at once; further ones wait."""
    upstream_timeout: float = 120.0
    """Seconds until a model that says nothing is given up."""

    def __post_init__(self) -> None:
        for name in ("body_limit", "import_limit", "concurrency", "queue", "open_scopes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rate", "upstream_timeout", "answers"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        for origin in self.cors:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
                raise ConfigError(
                    f"cors {origin!r}: give an origin like https://chat.example.com, without a path"
                )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_reach(config: ServerConfig, ring: KeyRing) -> None:
    """Refuse to listen where others can call as long as nobody has a key."""
    if not config.is_local and not ring:
        raise ConfigError(
            f"host {config.host} can be reached from other machines, and there are no keys: make "
            "one with `titans keys make NAME --scope SCOPE`, or listen on 127.0.0.1"
        )
