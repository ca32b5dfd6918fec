"""The text memory as a server: REST, an OpenAI-compatible chat, MCP and a page.

Reading order: `config` (what can be set), `keys` (who may do what), `hub` (open scopes and their
queues), `verbs` (what callers can ask for; every door goes through it), then the doors that `app`
puts together behind `gate`: `rest`, `completions`, `tools` (MCP), `page` and `playground`.
"""

from typing import TYPE_CHECKING, Any

from titans.server.config import ServerConfig as ServerConfig
from titans.server.keys import Key as Key
from titans.server.keys import KeyRing as KeyRing

if TYPE_CHECKING:
    from titans.server.app import create_app as create_app

__all__ = ["Key", "KeyRing", "ServerConfig", "create_app"]


def __getattr__(name: str) -> Any:
    """`create_app` when it is asked for: keys are made without the web framework."""
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from titans.server.app import create_app

    return create_app
