"""Who asks: the key of a request, or anybody on this machine if no keys are in use."""

from dataclasses import dataclass

from titans.server.keys import Key, Right
from titans.server.refusal import Refusal

DEFAULT_SCOPE = "default"
LONGEST_SCOPE = 200
LOCAL = "local"
"""The name under which texts are remembered without a key."""


@dataclass(frozen=True)
class Caller:
    """A caller and its rights; without a key everything is allowed."""

    key: Key | None = None

    @property
    def name(self) -> str:
        """What is remembered as the writer."""
        return LOCAL if self.key is None else self.key.name

    @property
    def is_trusted(self) -> bool:
        """Whether what the caller writes counts as trusted."""
        return self.key is None or self.key.is_trusted

    def may(self, right: Right) -> bool:
        """Whether the caller has a right."""
        return self.key is None or right in self.key.rights

    def need(self, *rights: Right) -> None:
        """Refuse a caller that lacks one of these rights."""
        for right in rights:
            if not self.may(right):
                raise Refusal(
                    403,
                    "right_missing",
                    f"this key has no right to {right}: make one with --right {right} "
                    "(titans keys make)",
                )

    def scope(self, asked: str | None) -> str:
        """The scope of a request, if the caller may use it."""
        home = DEFAULT_SCOPE if self.key is None else self.key.home
        scope = asked or home
        if scope is None:
            raise Refusal(
                422, "scope_missing", "this key covers several scopes: name one in X-Titans-Scope"
            )
        if len(scope) > LONGEST_SCOPE or not scope.isprintable():
            raise Refusal(
                422, "scope_invalid", f"a scope has 1 to {LONGEST_SCOPE} printable characters"
            )
        if self.key is not None and not self.key.covers(scope):
            raise Refusal(
                403,
                "scope_forbidden",
                "this key does not cover the scope that was asked for: name one of its own, or "
                "make a key with --scope (titans keys make)",
            )
        return scope
